"""The other runs of a machine see each other, and wait if asked to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ssd_bench.run import neighbours as module
from ssd_bench.run.hardware import Hardware
from ssd_bench.run.neighbours import Neighbours, places
from tests.kills import dead
from tests.runs import executed, local_model


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without other runs."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def on(*devices: int, exclusive: bool = False) -> Hardware:
    """Hardware with these GPUs, else the CPU."""
    found = tuple(torch.device("cuda", index) for index in devices) or (torch.device("cpu"),)
    cpu = Hardware.of("cpu", "float32", 1, 0, "auto", "auto", None)
    return replace(cpu, devices=found, exclusive=exclusive)


@pytest.mark.parametrize(
    ("visible", "devices", "found"),
    [
        ("", (0, 2), ["GPU 0", "GPU 2"]),
        ("5,7", (0,), ["GPU 5"]),
        ("5,7", (1, 0), ["GPU 7", "GPU 5"]),
        ("GPU-1f2e", (0,), ["GPU GPU-1f2e"]),
    ],
)
def test_a_gpu_has_the_name_that_it_has_for_others(
    visible: str, devices: tuple[int, ...], found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert places(on(*devices)) == found


def test_runs_see_each_other_and_what_they_share(monkeypatch: pytest.MonkeyPatch, machine: Path) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with Neighbours("cpu", on()) as first:
        with Neighbours("gpu0", on(0)) as second, Neighbours("both", on(0, 1)) as third:
            for one in (first, second, third):
                one.look()
        second.look()
    assert first.seen == [{"run": "both", "shares": False}, {"run": "gpu0", "shares": False}]
    assert second.seen == [{"run": "both", "shares": True}, {"run": "cpu", "shares": False}]
    assert not [path for path in machine.rglob("*") if path.is_file()]


def test_cores_that_two_may_use_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    def bound(*cores: int) -> Callable[[int], set[int]]:
        return lambda _: set(cores)

    with Neighbours("all", on()):
        monkeypatch.setattr(module.os, "sched_getaffinity", bound(500, 501), raising=False)
        with Neighbours("own", on()) as own:
            monkeypatch.setattr(module.os, "sched_getaffinity", bound(501, 502), raising=False)
            with Neighbours("overlapping", on()):
                own.look()
    assert own.seen == [{"run": "all", "shares": False}, {"run": "overlapping", "shares": True}]


def test_one_that_was_killed_is_not_there(machine: Path) -> None:
    with Neighbours("lives", on(exclusive=True)) as lives:
        folder = next(machine.iterdir())
        dead(folder / "x.run")
        entry = {"name": "dead", "places": places(on()), "exclusive": True}
        (folder / "x.json").write_text(json.dumps(entry), encoding="utf-8")
        lives.look()
    assert lives.seen == [] and not [path for path in folder.iterdir() if path.stem == "x"]


@pytest.mark.parametrize("other", [False, True])
def test_only_those_that_both_ask_for_it_wait(other: bool) -> None:
    entered = threading.Event()

    def enter() -> None:
        with Neighbours("second", on(exclusive=True)):
            entered.set()

    waits = threading.Thread(target=enter)
    with Neighbours("first", on(exclusive=other)):
        waits.start()
        assert entered.wait(timeout=0.5 if other else 30) is not other
    assert entered.wait(timeout=30)
    waits.join()


def test_a_run_says_which_were_beside_it(small_checkpoint: Path, tmp_path: Path) -> None:
    options = (*local_model(small_checkpoint), "task=gsm8k", "limit=2", "method=ar")
    assert executed(tmp_path / "alone", *options).header.concurrent_runs == []
    with Neighbours("another", on()):
        beside = executed(tmp_path / "beside", *options)
    assert beside.header.concurrent_runs == [{"run": "another", "shares": True}]
