"""Records with values of other types in run.json are named and left out; all else is shown."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import DictConfig

from ssd_bench import load_runs
from ssd_bench.commands import explain as explaining
from ssd_bench.errors import ConfigError
from ssd_bench.records.header import RunHeader
from ssd_bench.records.reader import load_run
from ssd_bench.records.typed import field_types
from ssd_bench.records.validation import record_faults
from ssd_bench.report import figures
from ssd_bench.reproduce import again
from ssd_bench.reproduce.report import report_text, reproduce
from tests.runs import program
from tests.synthetic import unit, with_work, write_record

WORK = {"part": "prepare", "calls": 1, "rows": 1, "attentions": 1, "mlps": 1, "heads": 1.0, "launches": 2}
TIMES = {"nodes": 1, "attn_slope_ms": 0.1, "attn_intercept_ms": 0.1, "mlp_ms": 0.1, "rest_ms": 0.1}
FULL: dict[str, Any] = {
    "caveat": None,
    "finished_at": "2026-12-01T10:00:00+00:00",
    "config": {
        **{name: {"_target_": f"methods.{name}.Own", "name": name} for name in ("method", "model", "task", "data")},
        "hardware": {"device": "cpu", "threads": 1},
        "decode": {"mode": "greedy"},
        "wandb": {"mode": "disabled"},
        "baseline": "paired",
        "repeats": 1,
        "seed": 0,
        "runs_dir": "runs",
    },
    "data": {"toy": "toy@1"},
    "domains": ["toy"],
    "decode": {"mode": "greedy"},
    "tie_tolerance": 0.5,
    "scores": {"ar": {"exact_match": 0.0}, "method": {"exact_match": 0.0}},
    "searches": [{"name": "bayes", "evaluations": 2, "new": 2, "seconds": 1.0}],
    "latency": {"passes": [TIMES], "points": [[1, 0.5]]},
    "prepare_work": [{**WORK, "context": 0.0, "ms": 1.0}],
    "concurrent_runs": [{"run": "other", "shares": True}],
    "others_share": 0.0,
    "base_bytes": 1,
    "warnings": ["a warning"],
    "hf": {"class": "Toy"},
    "shards": [{"latency": None}],
    "resumed": ["2026-12-01T10:00:00+00:00"],
    "provenance": {"packages": {"torch": "2"}, "code": {"sha256": "0"}, "plug_ins": [{"module": "own"}]},
}
"""Keys of a header in addition to `tests.synthetic`'s."""
REMOVED = object()
VALUES = (REMOVED, None, 5, -1, True, "x", "\ud800", [], [5], [None], {}, {"a": {"b": [1]}}, 10**30, 0.5, float("nan"))
"""Values of any type, and the mark of a removed key."""
WHOLE = {
    "nested": "[" * 100_000,
    "number": "5",
    "empty": "{}",
    "text": '"x"',
    "bare": '{"schema_version": 1, "status": "complete"}',
    "digits": '{"schema_version": ' + "9" * 5000 + "}",
}
"""Contents of a run.json that is no header."""


def places(content: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[str, ...]]:
    """Yield a header's keys, including nested ones."""
    for name, value in content.items():
        yield (name,)
        if isinstance(value, Mapping) and depth < 2:
            yield from ((name, *inner) for inner in places(value, depth + 1))


def changed(content: Mapping[str, Any], place: tuple[Any, ...], value: object) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(content))
    part = copy
    for name in place[:-1]:
        part = part[name]
    if value is REMOVED:
        del part[place[-1]]
    else:
        part[place[-1]] = value
    return copy


def mutants(content: Mapping[str, Any], first: int, step: int) -> Iterator[tuple[str, str]]:
    """Yield name and text of run.json for values of every key: of the first key from `first` on every `step`-th."""
    for number, place in enumerate(places(content)):
        for at in range((first + number) % step, len(VALUES), step):
            yield f"{'.'.join(place)}.{at}", json.dumps(changed(content, place, VALUES[at]))
    yield from WHOLE.items()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records") / "good"
    write_record(folder, [with_work(unit(0, tokens=12))], **FULL)
    content = json.loads((folder / "run.json").read_bytes())
    assert {*field_types(RunHeader)} - {*content} == {"sample", "load_ms", "profile_ms", "warmup_ms", "error"}
    return folder


def copied(good: Path, folder: Path, text: str) -> Path:
    folder.mkdir(parents=True)
    for file in good.glob("*.parquet"):
        os.link(file, folder / file.name)
    (folder / "run.json").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan no second run, and draw no figure."""

    def refuse(cfg: DictConfig, arguments: list[str]) -> object:
        raise ConfigError("method", "toy", "a method")

    monkeypatch.setattr(again, "plan", refuse)
    monkeypatch.setattr(figures, "save", lambda made, stem: [])


def table_mutants(table: pa.Table, first: int) -> Iterator[tuple[str, pa.Table]]:
    """Yield name and content of a table: its rows twice, none, and one of five changes per column."""
    frame = table.to_pandas()
    yield "twice", pa.Table.from_pandas(pd.concat([frame, frame]), table.schema, preserve_index=False)
    yield "empty", table.slice(0, 0)
    for number, name in enumerate(frame.columns, start=first):
        change = ("dropped", "null", "text", "lists", "negative")[number % 5]
        if change == "dropped":
            mutant = table.drop_columns([name])
        elif change == "negative" and frame[name].dtype.kind in "iuf":
            mutant = pa.Table.from_pandas(frame.assign(**{name: -frame[name]}), table.schema, preserve_index=False)
        else:
            value = {"text": "x", "lists": [[-1]] * len(frame)}.get(change)
            mutant = pa.Table.from_pandas(frame.assign(**{name: value}), preserve_index=False)
        yield f"{name} {change}", mutant


@pytest.mark.parametrize("name", ["prompts", "steps", "layer_sets", "work"])
def test_every_mutant_of_a_table_is_read_or_refused(name: str, good: Path, tmp_path: Path) -> None:
    text, failed = (good / "run.json").read_text(encoding="utf-8"), list[str]()
    for at, (what, mutant) in enumerate(table_mutants(pq.read_table(good / f"{name}.parquet"), STEP)):
        folder = copied(good, tmp_path / str(at), text)
        (folder / f"{name}.parquet").unlink()
        pq.write_table(mutant, folder / f"{name}.parquet")
        try:
            if not record_faults(folder) or reproduce(folder, 0, {}, tmp_path / "again").is_reproduced:
                failed.append(f"{what}: no fault")
            load_run(folder)
        except ConfigError:
            pass
        except Exception as error:
            failed.append(f"{what}: {error!r}")
        shutil.rmtree(folder)
    assert not failed, "\n".join(failed)


STEP = int(os.environ.get("MUTANTS_STEP", str(len(VALUES))))


def test_every_mutant_is_read_or_refused_by_name(good: Path, tmp_path: Path) -> None:
    """The reader, `explain`, `validate`, `reproduce` and an export read them one by one."""
    content, refused, failed = json.loads((good / "run.json").read_bytes()), 0, list[str]()
    for name, text in mutants(content, 0, STEP):
        folder = copied(good, tmp_path / name, text)
        try:
            [str(fault) for fault in record_faults(folder)]
            report_text(reproduce(folder, 0, {}, tmp_path / "again"))
            run = load_run(folder)
            explaining.render(run, explaining.explain(run))
        except ConfigError as error:
            refused += 1
            failed += [] if str(folder) in str(error) else [f"{name}: no path in {error}"]
        except Exception as error:
            failed.append(f"{name}: {error!r}")
        shutil.rmtree(folder)
    assert not failed, "\n".join(failed)
    assert refused


def test_a_folder_shows_its_sound_records(good: Path, no_page: None, tmp_path: Path) -> None:
    """Each command that reads a folder leaves out unreadable mutants, and names them."""
    content, runs = json.loads((good / "run.json").read_bytes()), tmp_path / "runs"
    copied(good, runs / "good", (good / "run.json").read_text(encoding="utf-8"))
    names = []
    for name, text in mutants(content, 1, 2 * STEP):
        names.append(name)
        copied(good, runs / name, text)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frame = load_runs(runs)
    assert str(runs / "good") in [*frame["run_dir"]] and len(frame) < len(names)
    left_out = {Path(str(warning.message).split()[2].rstrip(":")).name for warning in caught}
    unnamed = {*names} - left_out - {Path(folder).name for folder in frame["run_dir"]}
    assert all(name.startswith("status.") or name in WHOLE for name in unnamed), "only unfinished runs are unnamed"
    commands = {
        "report": ("report", f"runs_dir={runs}", f"out={tmp_path / 'report'}"),
        "claims": ("claims", f"runs_dir={runs}"),
        "compare": ("compare", str(runs / "good"), str(runs / "good")),
        "status": ("status", f"runs_dir={runs}"),
    }
    for name, words in commands.items():
        process = program(*words)
        assert process.returncode == 0, (name, process.stderr)
    for words in (("validate", f"record={runs}"), ("reproduce", f"record={runs}", "sample=0")):
        process = program(*words)
        assert process.returncode == 1 and "nested" in process.stdout, process.stderr


def test_a_comparison_goes_on_without_a_mutant(good: Path, tmp_path: Path) -> None:
    content = json.loads((good / "run.json").read_bytes())
    for side in "ab":
        copied(good, tmp_path / side / "good", json.dumps(content))
        copied(good, tmp_path / side / "mutant", json.dumps({**content, "warnings": 5}))
        copied(good, tmp_path / side / "torn", json.dumps({**content, "finished_at": "2026-12-02"}))
        (tmp_path / side / "torn" / "steps.parquet").unlink()
        (tmp_path / side / "torn" / "steps.parquet").write_bytes(b"no table")
    process = program("compare", f"{tmp_path / 'a'}", f"{tmp_path / 'b'}")
    assert process.returncode == 0, process.stderr
    assert "mutant" in process.stderr and "torn" in process.stderr
