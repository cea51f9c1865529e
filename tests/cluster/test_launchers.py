"""The same sweep through every launcher: equal outputs, layer sets, steps; simultaneous jobs have their own GPUs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.conftest import Launched
from tests.cluster.sweeps import Bench, asked_runs, assert_same, records

pytestmark = pytest.mark.cluster
METHODS = ("ar", "fixed_layers", "swift", "knapspec", "clasp", "conflayers", "jacobi", "lookahead", "del", "layerskip")
TASKS = ("gsm8k", "humaneval", "xsum", "alpaca")


def sweep() -> tuple[str, ...]:
    """Return options for as many runs as requested, or a few more."""
    tasks = TASKS if asked_runs() > 2 * len(METHODS) else TASKS[:2]
    methods = METHODS[: -(-asked_runs() // len(tasks))]
    return f"method={','.join(methods)}", f"task={','.join(tasks)}"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the records of the sweep in one process."""
    folder = tmp_path_factory.mktemp("alone")
    Bench(folder / "own", {}).swept(folder / "runs", *sweep(), seconds=1800)
    return folder / "runs"


def test_every_launcher_makes_the_same_records(launched: Launched, alone: Path, tmp_path: Path) -> None:
    bench, options = launched
    bench.swept(tmp_path / "runs", *sweep(), *options, seconds=1800)
    assert len(records(alone)) >= asked_runs()
    assert_same(tmp_path / "runs", alone)


@pytest.mark.parametrize("launched", ["box", "slurm", "ray"], indirect=True)
def test_jobs_that_run_at_once_have_different_gpus(launched: Launched, tmp_path: Path) -> None:
    bench, options = launched
    running = bench.start(tmp_path / "runs", "method=staying", "task=gsm8k", "limit=4", "seed=0,1,2,3", *options)
    bench.staying(2)
    bench.go()
    running.ended()
    reports = bench.reports()
    together = [
        (later, earlier)
        for i, later in enumerate(reports)
        for earlier in reports[:i]
        if later["begun"] < earlier["seen"] and earlier["begun"] < later["seen"]
    ]
    assert len(reports) == 4 and together
    assert len({report["gpus"] for report in reports}) == 2
    assert all(a["gpus"] != b["gpus"] for a, b in together)
    if "hydra/launcher=box" in options and len(os.sched_getaffinity(0)) > 1:  # elsewhere they are the scheduler's
        assert all(set(a["cores"]).isdisjoint(b["cores"]) for a, b in together)
