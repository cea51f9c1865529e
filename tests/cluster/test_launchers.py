"""The same sweep through every launcher: equal outputs, layer sets, steps; jobs at once have GPUs of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.ray_cluster import RayCluster
from tests.cluster.sweeps import Bench, asked_runs, assert_same, records
from tests.runs import ROOT

pytestmark = pytest.mark.cluster
METHODS = ("ar", "fixed_layers", "swift", "knapspec", "clasp", "conflayers", "jacobi", "lookahead", "del", "layerskip")
TASKS = ("gsm8k", "humaneval", "xsum", "alpaca")
OPTIONS = {
    "workers": ("hydra/launcher=workers",),
    "box": ("hydra/launcher=box",),
    "slurm": ("hydra/launcher=slurm", "hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=1"),
    "ray": ("hydra/launcher=ray_nodes", "hydra.launcher.ray.remote.num_cpus=1"),
}


def sweep() -> tuple[str, ...]:
    """Options of as many runs as were asked for, or a few more."""
    tasks = TASKS if asked_runs() > 2 * len(METHODS) else TASKS[:2]
    methods = METHODS[: -(-asked_runs() // len(tasks))]
    return f"method={','.join(methods)}", f"task={','.join(tasks)}"


@pytest.fixture(params=sorted(OPTIONS))
def launched(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Bench, tuple[str, ...]]:
    """A bench and the options of a launcher."""
    options, own = OPTIONS[request.param], tmp_path / "own"
    if request.param == "slurm":
        return Bench(own, request.getfixturevalue("slurm").environment()), options
    if request.param == "ray":
        cluster: RayCluster = request.getfixturevalue("ray")
        bench, init = Bench(own, cluster.environment()), "hydra.launcher.ray.init"
        told = {"STAY": bench.stay, "PYTHONPATH": f"{ROOT}:{own}"}
        variables = [f"+{init}.runtime_env.env_vars.{name}='{value}'" for name, value in told.items()]
        return bench, (*options, f"{init}.address={cluster.address}", *variables)
    return Bench(own, {"CUDA_VISIBLE_DEVICES": "5,7"}), options


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of the sweep in one process."""
    folder = tmp_path_factory.mktemp("alone")
    code, output = Bench(folder / "own", {}).swept(folder / "runs", *sweep(), seconds=1800)
    assert code == 0, output
    return folder / "runs"


def test_every_launcher_makes_the_same_records(
    launched: tuple[Bench, tuple[str, ...]], alone: Path, tmp_path: Path
) -> None:
    bench, options = launched
    code, output = bench.swept(tmp_path / "runs", *sweep(), *options, seconds=1800)
    assert code == 0, output
    assert len(records(alone)) >= asked_runs()
    assert_same(tmp_path / "runs", alone)


@pytest.mark.parametrize("launched", ["box", "slurm", "ray"], indirect=True)
def test_jobs_that_run_at_once_have_different_gpus(launched: tuple[Bench, tuple[str, ...]], tmp_path: Path) -> None:
    bench, options = launched
    running = bench.start(tmp_path / "runs", "method=staying", "task=gsm8k", "limit=4", "seed=0,1,2,3", *options)
    bench.staying(2)
    bench.go()
    code, output = running.ended()
    assert code == 0, output
    said = bench.said()
    together = [
        (one, other) for i, one in enumerate(said) for other in said[:i]
        if one["begun"] < other["seen"] and other["begun"] < one["seen"]
    ]  # fmt: skip
    assert len(said) == 4 and together
    assert len({one["gpus"] for one in said}) == 2
    assert all(one["gpus"] != other["gpus"] for one, other in together)
