"""Jobs, sweeps and a node's daemon killed in the middle: the same command ends the sweep, no prompt lost or doubled."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.cluster.services import until
from tests.cluster.slurm import Slurm
from tests.cluster.sweeps import Bench, assert_same, assert_whole

pytestmark = pytest.mark.cluster
SMALL = ("hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=1")
SWEEP = ("method=staying", "task=gsm8k", "limit=4", "seed=0,1")
JOB = "ssd-bench"
WITH = {"box": ("hydra/launcher=box",), "slurm": ("hydra/launcher=slurm", *SMALL)}


@pytest.fixture(params=sorted(WITH))
def bench(request: pytest.FixtureRequest) -> tuple[Bench, tuple[str, ...]]:
    fixture = {"box": "local", "slurm": "on_slurm"}[request.param]
    return request.getfixturevalue(fixture), WITH[request.param]


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


def test_a_sweep_gives_a_killed_job_another_process(bench: tuple[Bench, tuple[str, ...]], tmp_path: Path) -> None:
    cluster, launcher = bench
    first = cluster.start(tmp_path / "runs", *SWEEP, *launcher)
    kill(cluster.staying(2)[:1])
    cluster.go()
    code, output = first.ended()
    assert code == 0 and "ended with their process" in output, output
    same_again(cluster, tmp_path / "runs", launcher, tmp_path)


def test_a_killed_sweep_goes_on_beside_a_job_that_was_not(bench: tuple[Bench, tuple[str, ...]], tmp_path: Path) -> None:
    cluster, launcher = bench
    first = cluster.start(tmp_path / "runs", *SWEEP, *launcher)
    kill(cluster.staying(2)[:1])
    first.kill()
    cluster.go()
    same_again(cluster, tmp_path / "runs", launcher, tmp_path)


def test_a_killed_slurmd_costs_nothing(on_slurm: Bench, slurm: Slurm, tmp_path: Path) -> None:
    """The jobs' own daemons go on without it, and a new one finds them."""
    first = on_slurm.start(tmp_path / "runs", *SWEEP, *WITH["slurm"])
    on_slurm.staying(2)
    slurm.services.kill("slurmd")
    slurm.start_node()
    on_slurm.go()
    code, output = first.ended()
    assert code == 0, output
    same_again(on_slurm, tmp_path / "runs", WITH["slurm"], tmp_path)


def test_a_job_that_must_give_way_is_queued_again(on_slurm: Bench, slurm: Slurm, tmp_path: Path) -> None:
    """By the signal that announces the end of its time, or that another job takes its place."""
    one = ("method=staying", "task=gsm8k", "limit=4", *WITH["slurm"])
    running = on_slurm.start(tmp_path / "runs", *one)
    before = on_slurm.staying()
    slurm.run("scancel", "--signal=USR2", f"--name={JOB}")
    until(lambda: not any(map(psutil.pid_exists, before)), "the end of the job")
    on_slurm.go()
    code, output = running.ended()
    assert code == 0, output
    assert_whole(tmp_path / "runs", prompts=4, count=1)
    assert len(on_slurm.said()) == 2, "it began once more"
