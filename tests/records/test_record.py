"""The record: a kill loses or tears nothing, a resumed run is the same run, what was written is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from ssd_bench.errors import ConfigError
from ssd_bench.records.description import description
from ssd_bench.records.files import read_header
from ssd_bench.records.reader import Run, find_runs, is_complete, load_run
from ssd_bench.records.schema import SCHEMA_VERSION, SCHEMAS
from ssd_bench.records.writer import RunWriter, clear_leftovers
from tests.synthetic import UNITS, header, stateful_run, unit, with_work, write_record, write_run


def assert_same(run: Run, reference: Run) -> None:
    for name in SCHEMAS:
        pd.testing.assert_frame_equal(getattr(run, name), getattr(reference, name))
    stored = read_header(run.path)
    assert {key: stored[key] for key in stored if key != "resumed"} == read_header(reference.path)
    assert not (run.path / "parts").exists()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run_dir = tmp_path_factory.mktemp("reference") / "run"
    stateful_run(run_dir)
    return load_run(run_dir)


KILL_AT_EVERY_CALL = """
import os, sys
from pathlib import Path
from tests.kills import kill_at_every_call
from tests.synthetic import stateful_run

os.fsync = lambda descriptor: None  # a kill, unlike a power cut, does not need the disk
kill_at_every_call(Path(sys.argv[1]), ("replace", "fsync", "unlink", "rmdir", "mkdir"), stateful_run)
"""


def test_a_kill_at_any_write_loses_at_most_the_unit_in_flight(tmp_path: Path, reference: Run) -> None:
    subprocess.run([sys.executable, "-c", KILL_AT_EVERY_CALL, str(tmp_path)], check=True, timeout=60)
    attempts = sorted(tmp_path.iterdir(), key=lambda path: int(path.name))
    assert len(attempts) > 3 * (len(UNITS) + 5)
    kept = []
    for run_dir in attempts:
        complete = is_complete(run_dir, "key")
        if complete:  # of what was killed in its last clean-up nothing stays
            clear_leftovers(run_dir)
            assert {path.name for path in run_dir.iterdir()} == {"run.json", *(f"{name}.parquet" for name in SCHEMAS)}
        assert complete or not find_runs(run_dir)
        with RunWriter(run_dir, header()) as writer:
            assert writer.done == set(UNITS[: len(writer.done)])
            assert complete == writer.complete
            kept.append(len(UNITS) if complete else len(writer.done))
        stateful_run(run_dir)
        assert_same(load_run(run_dir), reference)
        assert not list(run_dir.glob("**/*.tmp"))
    assert kept == sorted(kept)
    assert set(kept) == set(range(len(UNITS) + 1))


def test_the_tables_hold_what_was_added(tmp_path: Path) -> None:
    units = [unit(2), unit(0, divergence_index=3, divergence_gap=0.25, lossless="tie", score=None)]
    run = write_run(tmp_path / "run", units)
    assert list(run.prompts[["prompt_index", "arm"]].itertuples(index=False, name=None)) == [
        *((0, "ar"), (0, "method"), (2, "ar"), (2, "method"))
    ]
    row = run.prompts.iloc[1]
    assert (row["divergence_index"], row["divergence_gap"], row["lossless"]) == (3, 0.25, "tie")
    assert pd.isna(row["score"])
    assert row["output_ids"].tolist() == list(units[1][1].prompt.output_ids)
    assert row["peak_bytes"] == 2**33
    assert row["text"] == "é"
    assert pd.isna(run.prompts.iloc[0]["divergence_index"])
    assert str(run.steps["layer_set_id"].dtype) == "Int32"
    stored = run.steps[(run.steps["arm"] == "method") & (run.steps["prompt_index"] == 2)]
    for set_id, added in zip(stored["layer_set_id"], units[0][1].steps, strict=True):
        assert (None if pd.isna(set_id) else run.layer_set(set_id)) == added.layer_set
    assert stored["verify_ms"].tolist() == [step.verify_ms for step in units[0][1].steps]


def test_layer_set_ids_go_by_first_appearance_in_stream_order(tmp_path: Path) -> None:
    units = [unit(1), unit(0)]
    run = write_run(tmp_path / "run", units)
    seen = [s.layer_set for records in units for s in records[1].steps if s.layer_set]
    expected = [s.skip_attn for s in dict.fromkeys(seen)]
    assert [tuple(skip) for skip in run.layer_sets["skip_attn"]] == expected


def test_every_column_is_described_and_typed_on_disk(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [unit(0)])
    for name, schema in SCHEMAS.items():
        stored = pq.read_schema(run.path / f"{name}.parquet")
        assert stored.equals(schema) and [*map(description, stored)] == [*map(description, schema)]
    assert run.header.status == "complete"
    assert run.header.schema_version == SCHEMA_VERSION


def test_numpy_scalars_are_written(tmp_path: Path) -> None:
    records = unit(0)
    records[1].prompt.decode_ms = np.float32(1.5)  # type: ignore[assignment]
    records[1].steps[0].accepted_len = np.int64(1)  # type: ignore[assignment]
    run = write_run(tmp_path / "run", [records])
    assert run.prompts.iloc[1]["decode_ms"] == 1.5


def test_a_value_that_does_not_fit_fails_when_it_is_added(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", header()) as writer:
        for wrong in (unit(0, new_tokens="many"), unit(0, domain=None)):
            with pytest.raises((ValueError, TypeError)):
                writer.add(0, 0, wrong, None)
        with pytest.raises(ValueError, match="a row belongs to"):
            writer.add(1, 0, with_work(unit(0)), None)
        with pytest.raises(ValueError, match="arms"):
            writer.add(0, 0, [unit(0)[0], unit(0)[0]], None)
        assert writer.done == set()
        writer.add(0, 0, with_work(unit(0)), None)
        with pytest.raises(ValueError, match="done already"):
            writer.add(0, 0, with_work(unit(0)), None)


def test_two_writers_of_one_run_are_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    with (
        RunWriter(tmp_path / "run", header()),
        pytest.raises(ConfigError, match="one that nobody else works on: process"),
    ):
        RunWriter(tmp_path / "run", header())
    RunWriter(tmp_path / "run", header()).close()


def test_a_complete_run_is_left_as_it_is_unless_fresh(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [unit(0), unit(1)])
    assert is_complete(run.path, "key")
    assert not is_complete(run.path, "other")
    assert not is_complete(tmp_path / "none", "key")
    before = (run.path / "run.json").read_bytes()
    with RunWriter(run.path, header()) as writer:
        writer.finish({"wall_s": 99.0})
    assert (run.path / "run.json").read_bytes() == before
    with RunWriter(run.path, header(), fresh=True) as writer:
        assert writer.done == set()
        assert not is_complete(run.path, "key")


def test_fresh_discards_the_units_of_a_killed_run(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", header()) as writer:
        writer.add(0, 0, with_work(unit(0)), b"state")
    with RunWriter(tmp_path / "run", header(), fresh=True) as writer:
        assert writer.done == set()
        assert writer.last_state() is None


def test_another_key_or_machine_cannot_resume(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", header()) as writer:
        writer.add(0, 0, with_work(unit(0)), None)
    with pytest.raises(ConfigError, match="another configuration"):
        RunWriter(tmp_path / "run", header(content_key="other"))
    with pytest.raises(ConfigError, match="Imaginary 9000"):
        RunWriter(tmp_path / "run", header(provenance={"device": {"cpu": "Other", "cores": 2, "gpus": []}}))
    with RunWriter(tmp_path / "run", header(command="again")) as writer:
        assert writer.header["command"] == header()["command"]
        assert len(writer.header["resumed"]) == 1


def test_another_commit_of_the_model_cannot_resume(tmp_path: Path) -> None:
    def at(commit: str) -> dict[str, Any]:
        return header(model=header()["model"] | {"commit": commit})

    with RunWriter(tmp_path / "run", at("a" * 40)) as writer:
        writer.add(0, 0, with_work(unit(0)), None)
    with pytest.raises(ConfigError, match=f"model.revision='{'b' * 40}'.*model.revision={'a' * 40}; or use force=true"):
        RunWriter(tmp_path / "run", at("b" * 40))
    with RunWriter(tmp_path / "run", at("a" * 40)) as writer:
        assert writer.done == {(0, 0)}


def test_another_commit_of_the_data_cannot_resume(tmp_path: Path) -> None:
    files = {file: f"org/it@{'a' * 40} files:{file}" for file in ("toy", "toy.fewshot")}
    local = {"own": "sha256:1"}
    RunWriter(tmp_path / "run", header() | {"data": files | local}).close()
    moved = files | {"toy": f"org/it@{'b' * 40} files:toy"}
    with pytest.raises(ConfigError, match=f"data set of toy='{'b' * 40}' .*begun with: {'a' * 40}.*or use force=true"):
        RunWriter(tmp_path / "run", header() | {"data": moved | local})
    RunWriter(tmp_path / "run", header() | {"data": files | {"own": "sha256:2"}}).close()


def test_newer_schemas_and_unfinished_runs_are_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [unit(0)])
    content = json.loads((run.path / "run.json").read_text(encoding="utf-8"))
    (run.path / "run.json").write_text(json.dumps(content | {"schema_version": SCHEMA_VERSION + 1}), encoding="utf-8")
    with pytest.raises(ConfigError, match="newer ssd-bench"):
        load_run(run.path)
    (run.path / "run.json").write_text('{"status": "comp', encoding="utf-8")
    assert find_runs(tmp_path) == [run.path]  # listed, so that whoever loads it hears of the damage
    with RunWriter(tmp_path / "running", header()), pytest.raises(ConfigError, match="not complete"):
        load_run(tmp_path / "running")


def test_a_folder_that_is_no_run_is_no_damaged_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_record(tmp_path / "runs" / "one", [unit(0)])
    for path, allowed in (
        ("nope", "the folder of a run; there is no such folder"),
        ("one", "the folder of a run; there is no such folder, but runs/one: run=runs/one"),
        ("runs/one/run.json", "the folder of a run, and it is a file"),
        ("runs", "the folder of a run, and it has no run.json"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_run(Path(path))
        assert (caught.value.field, caught.value.value, caught.value.expected) == ("run", path, allowed)


def test_find_runs_lists_complete_runs_oldest_first(tmp_path: Path) -> None:
    for name, finished in {"deep/b": "2026-01-02", "reference/d": "2026-01-04", "c": "2026-01-03", "a": "2026"}.items():
        with RunWriter(tmp_path / name, header()) as writer:
            writer.add(0, 0, with_work(unit(0)), None)
            writer.finish({"finished_at": finished})
    RunWriter(tmp_path / "running", header()).close()
    assert [str(path.relative_to(tmp_path)) for path in find_runs(tmp_path)] == ["a", "deep/b", "c"]
    assert [path.name for path in find_runs(tmp_path / "reference")] == ["d"]  # the project's, if they are named
    assert find_runs(tmp_path / "nowhere") == []
    assert not os.path.exists(tmp_path / "a" / ".lease")


def test_a_record_written_at_once_is_that_of_its_units(tmp_path: Path) -> None:
    """The tests' own writer, for most of their records."""
    units = [unit(index, repeat) for index, repeat in UNITS]
    write_record(tmp_path / "at_once", units)
    with RunWriter(tmp_path / "by_unit", header()) as writer:
        for (index, repeat), records in zip(UNITS, units, strict=True):
            writer.add(index, repeat, records, None)
        writer.finish({"wall_s": 1.0})
    at_once, by_unit = (load_run(tmp_path / name) for name in ("at_once", "by_unit"))
    for name, table in at_once.tables.items():
        pd.testing.assert_frame_equal(table, by_unit.tables[name])
