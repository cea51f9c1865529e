"""Whole runs, from options as on the command line: in this process, or in their own."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache, lru_cache
from pathlib import Path
from unittest.mock import patch

import pandas as pd
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from ssd_bench.cli import dispatch
from ssd_bench.conf import CONF
from ssd_bench.records.reader import Run, load_run
from ssd_bench.run.plan import Plan, plan
from ssd_bench.run.run import execute
from tests.composing import compose_once

compose_once()

GIVEN_LATENCY = "hardware.latency={t_mlp_ms: 0.5, t_attn_slope_ms: 0.001, t_attn_intercept_ms: 0.5}"
CPU = ("hardware=cpu", "hardware.dtype=float32", "hardware.threads=1", "hardware.warmup=0", GIVEN_LATENCY)
TIMES = ("prefill_ms", "decode_ms", "draft_ms", "verify_ms", "policy_ms", "peak_bytes")
"""Columns in which two runs of the same command differ."""
ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "runs" / "reference"


def environment(extra_path: Path | None = None) -> dict[str, str]:
    """Environment of a process that runs the project from here."""
    path = os.pathsep.join(str(p) for p in (ROOT, extra_path) if p)
    return os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def python(
    *line: str, cwd: Path = ROOT, extra_path: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A process that runs the project from here, with its output."""
    env = environment(extra_path) | variables
    return subprocess.run([sys.executable, *line], cwd=cwd, env=env, capture_output=True, encoding="utf-8", timeout=300)


def exit_code(words: Sequence[str]) -> int:
    """Run the program in this process, and return its exit code."""
    GlobalHydra.instance().clear()
    with patch.dict(os.environ):
        try:
            return dispatch(words)
        except SystemExit as end:  # Hydra's, after its help
            return int(end.code or 0)


def program(*words: str, by: Callable[[Sequence[str]], int] = exit_code) -> subprocess.CompletedProcess[str]:
    """Run the program in this process, which has imported torch: `python` takes four seconds longer."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = by(words)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def composed(*options: str) -> DictConfig:
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        return compose("config", overrides=list(options))


@cache
def config(preset: str, *options: str) -> DictConfig:
    """The settings of `conf/method/<preset>.yaml`."""
    return composed(f"method={preset}", *options).method


@cache
def chosen(group: str, name: str) -> DictConfig:
    """The settings of `conf/GROUP/NAME.yaml` and its base files, by themselves.

    For all files at the collection of tests: composing a config takes 0.2 s.
    """
    own = OmegaConf.load(CONF / group / f"{name}.yaml")
    assert isinstance(own, DictConfig)
    names = [base for base in own.pop("defaults", ()) if base != "_self_" and "@" not in base]
    merged = OmegaConf.merge(*(chosen(group, base) for base in names), own)
    assert isinstance(merged, DictConfig)
    return merged


@lru_cache(maxsize=32)  # of many more, Python would look through the objects again and again
def _composed_on_cpu(*options: str) -> bytes:
    return pickle.dumps(composed(*CPU, *options))


def planned(runs_dir: Path, *options: str) -> Plan:
    """A checked plan on one CPU thread in float32."""
    cfg = pickle.loads(_composed_on_cpu(*options))
    cfg.runs_dir = str(runs_dir)
    return plan(cfg)


def executed(runs_dir: Path, *options: str) -> Run:
    return load_run(execute(planned(runs_dir, *options)))


def equal(one: Run, other: Run) -> None:
    """Assert that all but `TIMES` are equal."""
    for name in ("prompts", "steps", "layer_sets"):
        tables = (getattr(run, name).drop(columns=[*TIMES], errors="ignore") for run in (one, other))
        pd.testing.assert_frame_equal(*tables)


def local_model(folder: Path) -> tuple[str, ...]:
    return ("model=local", f"model.path={folder}", "model.template=chat")
