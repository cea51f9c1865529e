"""Jobs, sweeps and a node's daemon killed midway: the same command ends the sweep, no prompt lost or doubled."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from ssd_bench.lease import NAME, holder
from ssd_bench.papers.runs import index
from tests.cluster.conftest import Launched
from tests.cluster.services import until
from tests.cluster.slurm import Slurm
from tests.cluster.sweeps import Bench, Sweep, assert_same, assert_whole

pytestmark = pytest.mark.cluster
SWEEP = ("method=staying", "task=gsm8k", "limit=4", "seed=0,1")
EXPERIMENT = "swift_table2"
JOB = "ssd-bench"
everywhere = pytest.mark.parametrize("launched", ["box", "slurm", "ray"], indirect=True)


def same_again(bench: Bench, runs: Path, launcher: tuple[str, ...], tmp_path: Path) -> None:
    """Run the same command to its end, and compare the records with an undisturbed sweep's."""
    bench.swept(runs, *SWEEP, *launcher)
    assert_whole(runs, prompts=4, count=2)
    bench.swept(tmp_path / "undisturbed", *SWEEP)
    assert_same(runs, tmp_path / "undisturbed")


def kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(psutil.pid_exists, pids)), "the end of what was killed")


@everywhere
def test_a_sweep_gives_a_killed_job_another_process(launched: Launched, tmp_path: Path) -> None:
    bench, launcher = launched
    first = bench.start(tmp_path / "runs", *SWEEP, *launcher)
    kill(bench.staying(2)[:1])
    bench.go()
    output = first.ended()
    if "hydra/launcher=ray_nodes" not in launcher:  # Ray begins a task again, of which the sweep does not learn
        assert "the process of 1 runs has died" in output, output
    same_again(bench, tmp_path / "runs", launcher, tmp_path)


@everywhere
def test_a_killed_sweep_goes_on_beside_a_job_that_was_not(launched: Launched, tmp_path: Path) -> None:
    bench, launcher = launched
    first = bench.start(tmp_path / "runs", *SWEEP, *launcher)
    kill(bench.staying(2)[:1])
    first.kill()
    bench.go()
    same_again(bench, tmp_path / "runs", launcher, tmp_path)


def test_a_killed_slurmd_costs_nothing(on_slurm: Launched, slurm: Slurm, tmp_path: Path) -> None:
    """Jobs' daemons go on without it, and a new one finds them."""
    bench, launcher = on_slurm
    first = bench.start(tmp_path / "runs", *SWEEP, *launcher)
    bench.staying(2)
    slurm.services.kill("slurmd")
    slurm.start_node()
    bench.go()
    first.ended()
    same_again(bench, tmp_path / "runs", launcher, tmp_path)


@pytest.mark.parametrize("launched", ["workers", "slurm"], indirect=True)
def test_kills_at_random_moments(launched: Launched, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Kill a run, the sweep or slurmd: records and index are those of an undisturbed sweep."""
    bench, launcher = launched
    runs, chance = tmp_path / "runs", random.Random(0)
    options = (f"experiment={EXPERIMENT}", "scale=mini", "limit=20", "decode.max_new_tokens=64")
    victims = ["run", "run", "sweep", *(["slurmd"] if "hydra/launcher=slurm" in launcher else [])]
    sweep = bench.start(runs, *options, *launcher)
    for _ in range(int(os.environ.get("SSD_BENCH_CLUSTER_KILLS", "4"))):
        if sweep.process.poll() is not None:
            sweep = bench.start(runs, *options, *launcher)
        until(partial(under_way, sweep, runs), "a run", seconds=120)
        time.sleep(chance.uniform(0, 3))
        match chance.choice(victims):
            case "run":
                kill([*owners(runs)][:1])
            case "sweep":
                sweep.kill()
            case "slurmd":
                slurm: Slurm = request.getfixturevalue("slurm")
                slurm.services.kill("slurmd")
                slurm.start_node()
    bench.swept(runs, *options, *launcher)
    sweep.ended(code=None)
    bench.swept(tmp_path / "undisturbed", *options)
    assert_same(runs, tmp_path / "undisturbed")
    assert cells(runs) == cells(tmp_path / "undisturbed")


def cells(runs: Path) -> list[tuple[str, str, list[tuple[dict[str, str], str | None, str | None]]]]:
    indices = [index.read(path) for path in index.find(runs)]
    return [(name, scale, [(line.labels, line.run, line.error) for line in lines]) for name, scale, lines in indices]


def under_way(sweep: Sweep, runs: Path) -> bool:
    return bool(owners(runs)) or sweep.process.poll() is not None


def owners(runs: Path) -> dict[int, None]:
    holders = (holder(path) for path in runs.glob(f"*/{NAME}"))
    return dict.fromkeys(owner.pid for owner in holders if owner is not None and not owner.dead)


def test_a_job_that_must_give_way_is_queued_again(on_slurm: Launched, slurm: Slurm, tmp_path: Path) -> None:
    """Send the signal that announces the end of its time, or another job in its place."""
    bench, launcher = on_slurm
    running = bench.start(tmp_path / "runs", "method=staying", "task=gsm8k", "limit=4", *launcher)
    before = bench.staying()
    slurm.run("scancel", "--signal=USR2", f"--name={JOB}")
    until(lambda: not any(map(psutil.pid_exists, before)), "the end of the job")
    bench.go()
    running.ended()
    assert_whole(tmp_path / "runs", prompts=4, count=1)
    assert len(bench.reports()) == 2, "it began once more"
