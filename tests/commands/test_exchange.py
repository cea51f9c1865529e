"""Runs as a pandas frame; exported layer sets, which draft again."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from ssd_bench import load_runs
from ssd_bench.cli import dispatch
from ssd_bench.commands import export
from ssd_bench.records.reader import Run
from ssd_bench.results.definitions import main_set
from ssd_bench.results.digest import summarise
from tests.runs import executed, local_model, program
from tests.synthetic import unit, write_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    units = [unit(i, repeat) for repeat in range(2) for i in range(3)]
    return write_run(tmp_path / "run", units, finished_at="2026-12-01T10:00:00+00:00")


def test_a_found_set_drafts_in_another_run(small_checkpoint: Path, tmp_path: Path) -> None:
    """End to end: a run exports its set, whose options draft with it, and say so in their record."""
    short = (*local_model(small_checkpoint), "task=gsm8k", "decode.max_new_tokens=16")
    first = executed(tmp_path / "a", *short, "limit=2", "method=layerskip", "method.exit_layer=2")
    file = tmp_path / "set.json"
    assert dispatch(["export", f"run={first.path}", f"to={file}"]) == 0
    kept = json.loads(file.read_text(encoding="utf-8"))
    assert kept["method"] == "layerskip" and kept["settings"]["exit_layer"] == 2
    assert kept["model"]["weights"] == first.header.model.weights and kept["draft_share"] == 1.0
    second = executed(tmp_path / "b", *short, "limit=1", *kept["overrides"])
    assert main_set(second) == main_set(first)
    assert second.header.config["method"]["skip_attn"] == kept["skip_attn"]


def test_the_set_that_drafted_most_is_the_default(run: Run) -> None:
    assert run.layer_set(export.find_set_id(run, None)) == main_set(run)
    shares = [export.set_with_origin(run, int(one))["draft_share"] for one in run.layer_sets["layer_set_id"]]
    assert sum(shares) == pytest.approx(1) and max(shares) == shares[export.find_set_id(run, None)]


@pytest.mark.parametrize("bad", ["run=nowhere", "set=9", "force=maybe", "to=nowhere/file", "nonsense=1"])
def test_bad_options_write_nothing(bad: str, run: Run, tmp_path: Path) -> None:
    name, file = bad.partition("=")[0], tmp_path / "out"
    end = program("export", *{"run": f"run={run.path}", "to": f"to={file}", name: bad}.values())
    assert end.returncode == 2 and name in end.stderr and not file.exists()


def test_export_replaces_a_file_only_if_told(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "kept"
    file.write_text("mine", encoding="utf-8")
    end = program("export", f"run={run.path}", f"to={file}")
    assert end.returncode == 2 and "force=true" in end.stderr and file.read_text(encoding="utf-8") == "mine"
    assert dispatch(["export", f"run={run.path}"]) == 2
    end = program("export", f"run={run.path}", f"to={file}", "force=true", "set=1")
    assert end.returncode == 0 and f"python -m ssd_bench {shlex.join(export.overrides(run.layer_set(1)))}" in end.stdout
    assert json.loads(file.read_text(encoding="utf-8"))["layer_set_id"] == 1


def test_a_run_without_layer_drafts_has_no_set(run: Run) -> None:
    none = replace(run, steps=run.steps.assign(layer_set_id=pd.array([None] * len(run.steps), dtype="Int32")))
    with pytest.raises(ValueError, match="drafted with layer sets; this one did not"):
        export.find_set_id(none, None)


def test_runs_as_a_frame(tmp_path: Path) -> None:
    method = {"_target_": "methods.swift.Swift", "name": "swift", "draft_len": 4}
    made = [
        write_run(tmp_path / "runs" / "one", [unit(0), unit(1)], method="swift", config={"method": method}),
        write_run(tmp_path / "runs" / "two", [unit(0)]),
    ]
    (tmp_path / "runs" / "two" / "steps.parquet").write_bytes(b"torn")
    with pytest.warns(UserWarning, match="left out .*two") as told:
        frame = load_runs(tmp_path / "runs")
    assert told[0].filename == __file__  # of the caller
    assert len(frame) == 1 and frame["run_dir"].tolist() == [str(made[0].path)]
    summary = summarise(made[0]).row
    assert frame["M"].item() == summary["M"] and set(summary) | {"settings"} == set(frame.columns)
    assert frame["settings"].str["draft_len"].tolist() == [4]
    pd.testing.assert_frame_equal(load_runs(made[0].path), frame)
    with pytest.raises(ValueError, match="path"):
        load_runs(tmp_path / "nowhere")
