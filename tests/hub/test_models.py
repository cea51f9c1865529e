"""Whole runs of the models of `conf/model` through a hub, from an empty cache, as a user types them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ssd_bench import metrics
from ssd_bench.records.reader import Run, load_run
from tests.hub.models import HUB_MODELS, KINDS, UNWANTED, add_model, kind_of, source_of, wanted_files, write_checkpoint
from tests.hub.server import RATE_LIMITED, Fault, Hub
from tests.runs import CPU, python

OPTIONS = (
    "method=knapspec", "task=gsm8k", "data=sample", "limit=1", "decode.max_new_tokens=6", "model.shape=null",
    "hardware.kernels=torch", *CPU,
)  # fmt: skip
MODEL = "llama3_1_8b"


def run_of(runs: Path, name: str) -> Run:
    """Return the record of a model."""
    (folder,) = runs.glob(f"{name}-knapspec-*")
    return load_run(folder)


def assert_whole(run: Run, name: str, commit: str) -> None:
    """The record is complete and lossless, and names the commit."""
    assert run.header["model"]["commit"] == commit
    assert run.header["model"]["name"] == name
    assert set(metrics.of_arm(run.prompts, "method")["lossless"]) == {"identical"}


def test_every_model_runs_through_the_hub(hub: Hub, tmp_path: Path) -> None:
    """One sweep over all of them, then the same sweep without a network, which finds every record."""
    repositories = {name: add_model(hub, name, tmp_path / "files" / name) for name in HUB_MODELS}
    assert {kind_of(name) for name in HUB_MODELS} == set(KINDS)
    runs = tmp_path / "runs"
    line = ("-m", "ssd_bench", "-m", f"model={','.join(HUB_MODELS)}", f"runs_dir={runs}", *OPTIONS)
    done = python(*line, cwd=tmp_path, **hub.variables(tmp_path / "home"))
    assert done.returncode == 0, done.stderr[-3000:]
    for name, repository in repositories.items():
        assert_whole(run_of(runs, name), name, repository.branches["main"])
    asked = [path for line, status in hub.requests if line.startswith("GET") and status == 200 for path in [line]]
    assert not [line for line in asked for path in UNWANTED if line.endswith(f"/{path}")]
    assert {*hub.downloads()} == set.union(*(wanted_files(repository) for repository in repositories.values()))
    before, requests = sorted(runs.glob("*/run.json")), len(hub.requests)
    again = python(*line, cwd=tmp_path, **hub.variables(tmp_path / "home", HF_HUB_OFFLINE="1"))
    assert again.returncode == 0, again.stderr[-3000:]
    assert sorted(runs.glob("*/run.json")) == before and len(hub.requests) == requests
