"""Clusters for one module of tests."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.ray_cluster import RayCluster
from tests.cluster.slurm import Slurm, missing
from tests.cluster.sweeps import Bench
from tests.runs import ROOT

Launched = tuple[Bench, tuple[str, ...]]
SMALL = ("hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=1")
OPTIONS = {
    "workers": ("hydra/launcher=workers",),
    "box": ("hydra/launcher=box",),
    "slurm": ("hydra/launcher=slurm", *SMALL),
    "ray": ("hydra/launcher=ray_nodes", "hydra.launcher.ray.remote.num_cpus=1"),
}


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons are started as root")
    if absent := missing():
        pytest.skip(f"not installed: {', '.join(absent)}; make test-cluster installs them")
    with tempfile.TemporaryDirectory(prefix="slurm", dir="/tmp", ignore_cleanup_errors=True) as folder:
        cluster = Slurm(Path(folder))
        try:
            cluster.start()
            yield cluster
        except Exception as error:
            error.add_note(cluster.services.log())
            raise
        finally:
            cluster.stop()


@pytest.fixture(scope="module")
def ray() -> Iterator[RayCluster]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("not installed: ray; make test-cluster installs it")
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        cluster = RayCluster(Path(folder))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture
def on_slurm(tmp_path: Path, slurm: Slurm) -> Launched:
    return Bench(tmp_path / "own", slurm.environment()), OPTIONS["slurm"]


@pytest.fixture(params=sorted(OPTIONS))
def launched(request: pytest.FixtureRequest, tmp_path: Path) -> Launched:
    """Return a bench and a launcher's options; the machine has two made-up GPUs."""
    options, folder = OPTIONS[request.param], tmp_path / "own"
    if request.param == "slurm":
        on_slurm: Launched = request.getfixturevalue("on_slurm")
        return on_slurm
    if request.param == "ray":
        cluster: RayCluster = request.getfixturevalue("ray")
        bench, init = Bench(folder, cluster.environment()), "hydra.launcher.ray.init"
        told = {"STAY": bench.stay, "PYTHONPATH": f"{ROOT}:{folder}"}
        variables = [f"+{init}.runtime_env.env_vars.{name}='{value}'" for name, value in told.items()]
        return bench, (*options, f"{init}.address={cluster.address}", *variables)
    return Bench(folder, {"CUDA_VISIBLE_DEVICES": "5,7"}), options
