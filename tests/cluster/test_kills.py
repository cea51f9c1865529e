"""Jobs, sweeps and a node's daemon killed in the middle: the same command ends the sweep, no prompt lost or doubled."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.cluster.conftest import Launched
from tests.cluster.services import until
from tests.cluster.slurm import Slurm
from tests.cluster.sweeps import Bench, assert_same, assert_whole

pytestmark = pytest.mark.cluster
SWEEP = ("method=staying", "task=gsm8k", "limit=4", "seed=0,1")
JOB = "ssd-bench"
everywhere = pytest.mark.parametrize("launched", ["box", "slurm", "ray"], indirect=True)


def same_again(bench: Bench, runs: Path, launcher: tuple[str, ...], tmp_path: Path) -> None:
    """The same command ends well, and the records are those of a sweep that nobody disturbed."""
    code, output = bench.swept(runs, *SWEEP, *launcher)
    assert code == 0, output
    assert_whole(runs, prompts=4, count=2)
    code, output = bench.swept(tmp_path / "undisturbed", *SWEEP)
    assert code == 0, output
    assert_same(runs, tmp_path / "undisturbed")


def kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(psutil.pid_exists, pids)), "the end of what was killed")


@everywhere
def test_a_sweep_gives_a_killed_job_another_process(launched: Launched, tmp_path: Path) -> None:
    bench, launcher = launched
    first = bench.start(tmp_path / "runs", *SWEEP, *launcher)
    kill(bench.staying(2)[:1])
    bench.go()
    code, output = first.ended()
    assert code == 0, output
    if "hydra/launcher=ray_nodes" not in launcher:  # Ray begins a task again, of which the sweep does not learn
        assert "1 runs ended with their process" in output, output
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
    """The jobs' own daemons go on without it, and a new one finds them."""
    bench, launcher = on_slurm
    first = bench.start(tmp_path / "runs", *SWEEP, *launcher)
    bench.staying(2)
    slurm.services.kill("slurmd")
    slurm.start_node()
    bench.go()
    code, output = first.ended()
    assert code == 0, output
    same_again(bench, tmp_path / "runs", launcher, tmp_path)


def test_a_job_that_must_give_way_is_queued_again(on_slurm: Launched, slurm: Slurm, tmp_path: Path) -> None:
    """By the signal that announces the end of its time, or that another job takes its place."""
    bench, launcher = on_slurm
    running = bench.start(tmp_path / "runs", "method=staying", "task=gsm8k", "limit=4", *launcher)
    before = bench.staying()
    slurm.run("scancel", "--signal=USR2", f"--name={JOB}")
    until(lambda: not any(map(psutil.pid_exists, before)), "the end of the job")
    bench.go()
    code, output = running.ended()
    assert code == 0, output
    assert_whole(tmp_path / "runs", prompts=4, count=1)
    assert len(bench.said()) == 2, "it began once more"
