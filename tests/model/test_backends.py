"""Backend and level of a run's passes, in its record and keys; promises of a pass; a made-up backend in one file."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from ssd_bench.contract.tree import TokenTree
from ssd_bench.engine.lossless import tolerance
from ssd_bench.errors import ConfigError
from ssd_bench.model import arithmetic, backends
from ssd_bench.model.arithmetic import FORCED, Arithmetic, available_levels, resolve
from ssd_bench.model.backend import all_backends, select
from ssd_bench.model.backends.cpu import NativeDecoder, native_problem
from ssd_bench.model.backends.torch import TorchDecoder
from ssd_bench.model.decoder import Decoder, Pass
from ssd_bench.run.loading import profile_path
from ssd_bench.run.plan import Plan
from tests.conftest import LAYERS
from tests.runs import executed, planned

CPU = torch.device("cpu")
COUNTING = """
from ssd_bench.model.backends.torch import TorchDecoder


class CountingDecoder(TorchDecoder):
    name, rank, passes = "counting", -1, []

    def _run(self, what, cache):
        self.passes.append((len(what.sublayers), len(what.nodes)))
        return super()._run(what, cache)


BACKEND = CountingDecoder
"""


def test_select() -> None:
    assert select(CPU, torch.float32, "torch").arithmetic.kernels == "torch"
    assert select("cuda", torch.float16, "torch").arithmetic == Arithmetic("torch", None, torch.float16, torch.float16)
    assert select(CPU, torch.float64, "auto").arithmetic.activations == torch.float64
    if not native_problem():
        chosen = select(CPU, torch.float16, "auto")
        assert chosen == select(CPU, torch.float32, "native") and chosen.arithmetic.kernels == "native"
        assert chosen.kind is NativeDecoder and select(CPU, torch.float64, "auto").kind is TorchDecoder
    for device, dtype, choice in (
        ("cuda", torch.float16, "native"),
        ("cpu", torch.float64, "native"),
        ("cpu", torch.float32, "x"),
    ):
        with pytest.raises(ConfigError) as caught:
            select(device, dtype, choice)
        assert caught.value.field == "hardware.kernels"


def test_levels_are_refused_by_name(monkeypatch: pytest.MonkeyPatch, every_level: None) -> None:
    for isa in ("sse9", ""):
        with pytest.raises(ConfigError, match="generic, avx2, avx512, avx512_bf16, amx") as caught:
            resolve(isa)
        assert caught.value.field == "hardware.isa"
    monkeypatch.setenv(arithmetic.FORCED, "avx2")
    assert resolve("auto").name == "avx2" and resolve("avx512").name == "avx512"
    monkeypatch.setenv(arithmetic.FORCED, "nonsense")
    with pytest.raises(ConfigError, match=arithmetic.FORCED):
        resolve("auto")


def test_a_level_that_the_cpu_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "_flags", set)
    arithmetic.available_levels.cache_clear()
    try:
        assert [level.name for level in arithmetic.available_levels()] == ["amx_emulated", "generic"]
        with pytest.raises(
            ConfigError, match="'avx2' is invalid: expected auto or one of amx_emulated, generic, which this CPU has"
        ):
            resolve("avx2")
    finally:
        monkeypatch.undo()
        arithmetic.available_levels.cache_clear()


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A backend in its own file, in a folder that stands for `ssd_bench/model/backends`."""
    (tmp_path / "counting.py").write_text(COUNTING, encoding="utf-8")
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(tmp_path)])
    yield tmp_path / "runs"
    sys.modules.pop(f"{backends.__name__}.counting", None)


def test_a_backend_is_one_file(counting: Path) -> None:
    """It is chosen by name, runs every pass, and is recorded; outputs are PyTorch's."""
    options = ("method=layerskip", "limit=1", "decode.max_new_tokens=24", "decode.reuse_prefix=false")
    run, plain = (executed(counting, *options, f"hardware.kernels={name}") for name in ("counting", "torch"))
    assert run.header.model.arithmetic["kernels"] == "counting"
    assert run.prompts["output_ids"].map(list).tolist() == plain.prompts["output_ids"].map(list).tolist()
    every = 2 * run.header.model.n_layers
    looked_at = run.prompts["prompt_len"].min()  # whose logits have to be finite
    expected = Counter((every, n) for n in (looked_at, *run.prompts["prompt_len"], *run.steps["tree_nodes"]))
    for step in run.steps.query("draft_len > 0").itertuples():
        expected[len(run.layer_set(step.layer_set_id).kept), 1] += step.draft_len
    assert Counter(all_backends()["counting"].passes) == expected  # type: ignore[attr-defined]


def test_auto_takes_no_backend_of_lower_rank(counting: Path) -> None:
    assert list(all_backends())[-1] == "counting"
    assert planned(counting, "method=ar", "limit=1").machine.backend.kind.name != "counting"
    with pytest.raises(ConfigError, match="one of auto, counting, torch, native"):
        planned(counting, "method=ar", "limit=1", "hardware.kernels=cuda")


def test_auto_says_why_a_faster_backend_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not if it is for another kind of device."""
    monkeypatch.setattr(NativeDecoder, "problem", classmethod(lambda *_: "no compiler"))
    chosen = select(CPU, torch.float32)
    assert chosen.kind is TorchDecoder and chosen.warning.endswith("no compiler")
    assert not select("cuda", torch.float16).warning and not select(CPU, torch.float32, "torch").warning


TREE = TokenTree((3, 1, 4, 1, 5), (-1, 0, 0, 1, 2))


@pytest.mark.parametrize("tree", [None, TREE])
def test_all_of_a_pass_is_known_before_its_first_sublayer(
    tree: TokenTree | None, decoders: Callable[..., Decoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache grows once, masks and positions are made once, then only sublayers run."""
    decoder, events = decoders(), []

    def noted(owner: object, name: str) -> None:
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, **k: (events.append(name), original(*a, **k))[1])

    cache = decoder.new_cache(64, bucket=2)
    for owner, name in (
        (cache, "reserve"),
        (decoder._ops, "visibility"),
        (TokenTree, "mask"),
        (decoder, "_attention"),
        (decoder, "_mlp"),
    ):
        noted(owner, name)
    decoder.run(Pass(decoder.all_sublayers, torch.tensor(TREE.tokens), 0, tree), cache)
    first = ["reserve", "mask", "visibility"] if tree else ["reserve", "visibility"]
    assert events == first + ["_attention", "_mlp"] * LAYERS and cache.rows >= len(TREE)


# ---- what a run computes with is part of what it is


LEVELS = [level.name for level in available_levels()]


@pytest.fixture
def nothing_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FORCED, raising=False)


def identities(plan: Plan) -> tuple[str, str, Path]:
    return plan.identity.content_key, plan.origin.machine, profile_path(plan, 512)


@pytest.mark.usefixtures("nothing_forced")
@pytest.mark.skipif(bool(native_problem("generic")), reason=native_problem("generic"))
def test_levels_and_kernels_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run's key, searches' identity and profile's name have them; `auto` is what it resolves to, also if forced."""
    choices = [*([f"hardware.isa={level}"] for level in LEVELS), ["hardware.isa=generic", "hardware.kernels=torch"]]
    found = [identities(planned(tmp_path, "method=ar", "limit=1", *choice)) for choice in choices]
    for each in zip(*found):
        assert len(set(each)) == len(choices)
    best = identities(planned(tmp_path, "method=ar", "limit=1"))
    monkeypatch.setenv(FORCED, "generic")
    forced = identities(planned(tmp_path, "method=ar", "limit=1"))
    assert best[1:] == found[len(LEVELS) - 1][1:] and forced[1:] == found[LEVELS.index("generic")][1:]
    assert (forced[0] == best[0]) == (LEVELS[-1] == "generic")


@pytest.mark.usefixtures("nothing_forced")
@pytest.mark.parametrize(("kernels", "dtype"), [("auto", "bfloat16"), ("torch", "float32")])
def test_the_record_says_how_it_was_computed(kernels: str, dtype: str, tmp_path: Path) -> None:
    """A CPU computes in float32 with or without a compiler; the audit's tolerance follows."""
    options = (f"hardware.kernels={kernels}", f"hardware.dtype={dtype}", "hardware.isa=generic")
    header = executed(tmp_path, "method=ar", "limit=1", "decode.max_new_tokens=4", *options).header
    ran = "torch" if kernels == "torch" or native_problem("generic") else "native"
    expected = {"kernels": ran, "isa": "generic", "activations": "float32", "inputs": "float32"}
    assert header.model.arithmetic == expected
    assert header.tie_tolerance == tolerance("float32", "float32", dtype)
