"""What a run computes with is part of what it is: of its record, its keys, its profile and its searches."""

from __future__ import annotations

from pathlib import Path

import pytest

from ssd_bench.core.lossless import tolerance
from ssd_bench.model.arithmetic import FORCED, available
from ssd_bench.model.backends.cpu import native_problem
from ssd_bench.plan import Plan
from ssd_bench.run import _profile_path
from tests.runs import executed, planned

LEVELS = [level.name for level in available()]


@pytest.fixture(autouse=True)
def nothing_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FORCED, raising=False)


def identities(plan: Plan) -> tuple[str, str, Path]:
    return plan.content_key, plan.origin.machine, _profile_path(plan, 512)


@pytest.mark.skipif(bool(native_problem("generic")), reason=native_problem("generic"))
def test_levels_and_kernels_are_told_apart(tmp_path: Path) -> None:
    """Whether they were chosen or forced: in the run's key, in the identity of its searches, in the profile's name."""
    choices = [*([f"hardware.isa={level}"] for level in LEVELS), ["hardware.isa=generic", "hardware.kernels=torch"]]
    found = [identities(planned(tmp_path, "method=ar", "limit=1", *choice)) for choice in choices]
    for each in zip(*found):
        assert len(set(each)) == len(choices)


@pytest.mark.skipif(bool(native_problem("generic")), reason=native_problem("generic"))
def test_auto_is_what_it_resolves_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("method=ar", "limit=1")
    best = planned(tmp_path, *options)
    assert best.backend.arithmetic.isa == LEVELS[-1]
    monkeypatch.setenv(FORCED, "generic")
    forced = planned(tmp_path, *options)
    assert forced.backend.arithmetic.isa == "generic"
    assert (forced.content_key == best.content_key) == (LEVELS[-1] == "generic")


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_record_says_how_it_was_computed(kernels: str, dtype: str, tmp_path: Path) -> None:
    """With or without a compiler a CPU computes in float32; the audit's tolerance follows."""
    options = (
        f"hardware.kernels={kernels}",
        f"hardware.dtype={dtype}",
        "hardware.isa=generic",
        "decode.max_new_tokens=4",
    )
    header = executed(tmp_path, "method=ar", "limit=1", *options).header
    ran = "torch" if kernels == "torch" or native_problem("generic") else "native"
    expected = {"kernels": ran, "isa": "generic", "activations": "float32", "inputs": "float32"}
    assert header["model"]["arithmetic"] == expected
    assert header["tie_tolerance"] == tolerance("float32", "float32", dtype)
