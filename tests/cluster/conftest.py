"""Clusters that are started for a module of tests and ended after it."""

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
def local(tmp_path: Path) -> Bench:
    """This machine, with two made-up GPUs."""
    return Bench(tmp_path / "own", {"CUDA_VISIBLE_DEVICES": "5,7"})


@pytest.fixture
def on_slurm(tmp_path: Path, slurm: Slurm) -> Bench:
    return Bench(tmp_path / "own", slurm.environment())
