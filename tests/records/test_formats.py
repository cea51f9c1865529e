"""The record format for other programs: its description, faults by name, a record written from the description."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jsonschema import Draft202012Validator

from ssd_bench import load_runs
from ssd_bench.records.consistency import faults
from ssd_bench.records.description import header_schema, tables_description
from ssd_bench.records.pack import unpacked_folder
from ssd_bench.records.reader import find_runs, load_run
from ssd_bench.records.schema import SCHEMAS
from ssd_bench.records.validation import record_faults
from tests.records.test_consistency import edits
from tests.records.test_foreign_records import REMOVED, changed
from tests.runs import REFERENCE, ROOT, program

SCHEMA = json.loads((ROOT / "docs/schema/run.schema.json").read_text(encoding="utf-8"))
TABLES = (ROOT / "docs/schema/tables.md").read_text(encoding="utf-8")
TYPES = {
    "int32": pa.int32(),
    "int64": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "bool": pa.bool_(),
    "list<int32>": pa.list_(pa.int32()),
}

HEADER = {
    "schema_version": 1,
    "run_id": "other-engine-1",
    "status": "complete",
    "finished_at": "2026-12-01T10:00:00+00:00",
    "config": {"baseline": "paired", "repeats": 1},
    "model": {"name": "other-7b", "n_layers": 4, "dtype": "float16", "device": "cuda"},
    "method": "other",
    "task": {"name": "quiz", "metric": "exact_match"},
    "decode": {"mode": "greedy"},
    "domains": ["quiz", "quiz"],
    "x_engine": {"build": 7},
}
"""Header of another program's record."""
OUTPUTS = ([5, 6, 7, 8], [1, 2, 3])
METHOD_STEPS = ([(2, 2, 3)], [(3, 0, 1), (1, 0, 1)])
"""Drafted, accepted and emitted tokens of the method's steps, by prompt."""


def described_columns(name: str) -> dict[str, tuple[str, str]]:
    """Return type and need of a table's columns, by the document."""
    section = TABLES.split(f"## Columns of `{name}.parquet`")[1].split("\n## ")[0]
    return {column: (kind, need) for column, kind, need in re.findall(r"\| `(\w+)` *\| `(\S+)` *\| (\w+)", section)}


def step_rows() -> list[dict[str, Any]]:
    rows = []
    for prompt, (output, drafted) in enumerate(zip(OUTPUTS, METHOD_STEPS)):
        for arm, steps in (("ar", [(0, 0, 1)] * (len(output) - 1)), ("method", drafted)):
            context = 10
            for number, (draft, accepted, emitted) in enumerate(steps, 1):
                row = {"prompt_index": prompt, "repeat": 0, "turn": 0, "arm": arm, "step": number}
                row |= {"context_len": context}
                row |= {"layer_set_id": 0 if draft else None, "draft_len": draft, "tree_nodes": draft + 1}
                row |= {"accepted_len": accepted, "emitted": emitted, "stop_reason": "length" if draft else "none"}
                rows.append(row | {"draft_ms": 1.0 * draft, "verify_ms": 4.0, "policy_ms": 0.0})
                context += emitted
    return rows


def prompt_rows() -> list[dict[str, Any]]:
    rows = []
    for prompt, output in enumerate(OUTPUTS):
        for order, arm in enumerate(("ar", "method")):
            steps = [step for step in step_rows() if (step["prompt_index"], step["arm"]) == (prompt, arm)]
            times = {name: sum(step[name] for step in steps) for name in ("draft_ms", "verify_ms", "policy_ms")}
            row = {"prompt_index": prompt, "prompt_id": f"q{prompt}", "domain": "quiz", "repeat": 0, "turn": 0}
            row |= {"arm": arm, "order": order, "prompt_sha256": hashlib.sha256(bytes([prompt])).hexdigest()}
            row |= {"prompt_len": 10, "clipped_tokens": 0, "new_tokens": len(output), "prefill_ms": 6.0, **times}
            row |= {"decode_ms": sum(times.values()), "peak_bytes": 10**9, "output_ids": output, "text": "a b"}
            row |= {"finish_reason": "eos", "score": float(prompt)}
            rows.append(row | {"lossless": "identical" if arm == "method" else None})
    return rows


def work_rows() -> list[dict[str, Any]]:
    rows = []
    whole, head = {"attentions": 4, "mlps": 4}, {"attentions": 0, "mlps": 0, "heads": 1.0}
    full, drafted = whole | {"heads": 1.0, "launches": 2}, {"attentions": 3, "mlps": 3, "heads": 1.0, "launches": 2}
    answers = ("prompt_index", "repeat", "turn", "arm")
    for prompt in prompt_rows():
        keys = {name: prompt[name] for name in answers} | {"step": 0, "part": "prefill", "calls": 1, "context": 0.0}
        rows += [keys | whole | {"rows": 10, "heads": 0.0, "launches": 1}, keys | head | {"rows": 1, "launches": 1}]
    for step in step_rows():
        keys = {name: step[name] for name in (*answers, "step")} | {"context": float(step["context_len"])}
        if step["draft_len"]:
            rows.append(keys | drafted | {"part": "draft", "calls": step["draft_len"], "rows": 1})
        rows.append(keys | full | {"part": "verify", "calls": 1, "rows": step["tree_nodes"]})
    unrounded = {f"int{bits}_{part}": 0 for bits in (8, 4) for part in ("attentions", "mlps")}
    return [row | unrounded | {"int8_heads": 0.0, "int4_heads": 0.0} for row in rows]


def other_record(folder: Path) -> Path:
    """Write a record by the documents alone: JSON and Parquet, without this project's writer."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(HEADER), encoding="utf-8")
    rows = {"prompts": prompt_rows(), "steps": step_rows(), "work": work_rows()}
    rows["layer_sets"] = [{"layer_set_id": 0, "n_layers": 4, "skip_attn": [1], "skip_mlp": [2]}]
    for name, content in rows.items():
        columns = described_columns(name)
        assert {column for column, (_, need) in columns.items() if need == "required"} <= {*content[0]}
        schema = pa.schema([(column, TYPES[columns[column][0]]) for column in content[0]])
        pq.write_table(pa.Table.from_pylist(content, schema), folder / f"{name}.parquet")
    return folder


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return other_record(tmp_path / "record")


def test_the_documents_are_made_from_the_code(tmp_path: Path) -> None:
    assert header_schema() == SCHEMA and tables_description() == TABLES
    assert program("schema", f"out={tmp_path / 'schema.json'}").returncode == 0
    documents = (ROOT / "docs/schema/run.schema.json", tmp_path / "schema.json")
    assert len({file.read_text(encoding="utf-8") for file in documents}) == 1
    assert program("schema", "of=tables").stdout.endswith(TABLES)
    assert program("schema", "of=nothing").returncode == 2


def described(schema: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every key of a JSON Schema with its schema."""
    if isinstance(schema, dict):
        for name, part in schema.get("properties", {}).items():
            yield f"{place}.{name}", part
        for name, part in schema.items():
            yield from described(part, f"{place}.{name}")


def test_every_key_is_described_and_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert len([*described(SCHEMA)]) > 60
    assert not [place for place, part in described(SCHEMA) if not part.get("description")]


def test_committed_records_are_valid_and_are_read() -> None:
    paths = find_runs(unpacked_folder(REFERENCE))
    assert len(paths) > 100
    for path in paths[::20]:
        assert record_faults(path) == []
        run = load_run(path)
        assert set(run.header.digests) == set(SCHEMAS) and len(run.work)


def test_a_record_written_from_the_documents_is_valid_and_is_read(record: Path) -> None:
    assert record_faults(record) == []
    (row,) = load_runs(record).to_dict("records")
    assert row["M"] == pytest.approx(5 / 3) and row["alpha"] == pytest.approx(2 / 6)
    assert row["speedup"] == pytest.approx((5 * 4.0) / (3 * 4.0 + 6 * 1.0))
    assert (row["model"], row["method"], row["task"], row["n_prompts"]) == ("other-7b", "other", "quiz", 2)


Edit = Callable[[Path], object]


def file(name: str, content: str | None = None) -> Edit:
    """Another content of a file, or none."""
    return lambda record: (
        (record / name).unlink() if content is None else (record / name).write_text(content, encoding="utf-8")
    )


def key(place: str, value: object = REMOVED) -> Edit:
    """Another value of a key in run.json, or none."""

    def edit(record: Path) -> None:
        content = changed(json.loads((record / "run.json").read_bytes()), tuple(place.split(".")), value)
        (record / "run.json").write_text(json.dumps(content), encoding="utf-8")

    return edit


def edit_table(name: str, change: Callable[[pa.Table], pa.Table]) -> Edit:
    def edit(record: Path) -> None:
        path = record / f"{name}.parquet"
        pq.write_table(change(pq.read_table(path)), path)

    return edit


def column(name: str, at: str, change: Callable[[pa.ChunkedArray], pa.Array | pa.ChunkedArray]) -> Edit:
    return edit_table(name, lambda table: table.set_column(table.column_names.index(at), at, change(table[at])))


def cell(name: str, at: str, row: int, value: object) -> Edit:
    def change(values: pa.ChunkedArray) -> pa.Array:
        content = values.to_pylist()
        return pa.array([*content[:row], value, *content[row + 1 :]], values.type)

    return column(name, at, change)


def cast(name: str, at: str, kind: pa.DataType) -> Edit:
    return column(name, at, lambda values: values.cast(kind))


MUTATIONS: dict[str, tuple[Edit, list[str]]] = {
    "no header": (file("run.json"), ["run.json: the file is missing; expected the header"]),
    "no JSON": (file("run.json", "{"), ["run.json: it cannot be read (Expecting property name"]),
    "a list": (file("run.json", "[1]"), ["run.json: it is [1]; expected an object"]),
    "NaN": (key("wall_s", float("nan")), ["run.json: it contains NaN; expected numbers"]),
    "a key less": (key("method"), ["run.json: method: it is missing; expected name of the"]),
    "an inner key less": (key("model.n_layers"), ["run.json: model.n_layers: it is missing"]),
    "a wrong type": (key("model.n_layers", "4"), ['run.json: model.n_layers: it is "4"; expected an integer']),
    "a truth value": (key("seed", True), ["seed: it is true; expected an integer or null"]),
    "a null": (key("domains", None), ["run.json: domains: it is null; expected a list"]),
    "a bad choice": (key("decode.mode", "beam"), ['decode.mode: it is "beam"; expected one of greedy, sample']),
    "bad arms": (key("config.baseline", "two"), ["config.baseline: it is", "none, paired"]),
    "unfinished": (key("status", "running"), ['status: it is "running"; expected complete']),
    "a newer version": (key("schema_version", 2), ["schema_version: it is 2", "number <= 1"]),
    "an unknown key": (key("metod", "x"), ["metod: it is unknown", "begins with x_"]),
    "an unknown inner key": (key("model.layers", 4), ["model.layers: it is unknown; expected one of name, n_layers"]),
    "a search without form": (key("searches", [{"new": "1"}]), ["searches[0].new: it is"]),
    "half a profile": (
        key("latency", {"t_mlp_ms": 1.0}),
        ["latency.t_attn_slope_ms: it is missing", "latency.t_attn_intercept_ms: it is missing"],
    ),
    "another digest": (key("tables", {"steps": "0" * 64}), ["steps.parquet: its SHA-256 is not that under tables"]),
    "a digest of no table": (key("tables", {"rows": "0" * 64}), ["run.json: tables: "]),
    "a missing table": (file("work.parquet"), ["work.parquet: the file is missing; expected a table with"]),
    "no Parquet": (file("steps.parquet", "step\n1\n"), ["steps.parquet: it cannot be read", "expected a Parquet file"]),
    "a column less": (
        edit_table("steps", lambda table: table.drop_columns("tree_nodes")),
        ["steps.parquet: column tree_nodes: the column is missing; expected int32: nodes verified"],
    ),
    "a wider integer": (cast("steps", "draft_len", pa.int64()), ["draft_len: its type is int64; expected int32: k"]),
    "texts for numbers": (cast("prompts", "decode_ms", pa.string()), ["decode_ms: its type is string"]),
    "null in a required column": (
        cell("prompts", "prompt_len", 3, None),
        ["prompts.parquet: column prompt_len, prompt 1, repeat 0, arm method: it is null; expected int32"],
    ),
    "null in a list": (
        cell("prompts", "output_ids", 0, [5, None, 7, 8]),
        ["output_ids, prompt 0, repeat 0, arm ar: its list contains"],
    ),
    "null in a step": (
        cell("steps", "verify_ms", 1, None),
        ["steps.parquet: column verify_ms, prompt 0, repeat 0, arm ar, step 2: it is null; expected double"],
    ),
    "an unknown column": (
        edit_table("layer_sets", lambda table: table.append_column("note", pa.array(["a"]))),
        ["layer_sets.parquet: column note: it is unknown", "a name that begins with x_"],
    ),
    "a bad reason": (
        cell("prompts", "finish_reason", 2, "done"),
        ["prompt 1, repeat 0, arm ar: finish_reason is done"],
    ),
    "a bad arm": (cell("prompts", "arm", 3, "fast"), ["arm is fast, not one of ar, hf, method"]),
    "a bad verdict": (cell("prompts", "lossless", 1, "yes"), ["lossless is yes, expected one of identical"]),
    "a bad stop": (cell("steps", "stop_reason", 3, "tired"), ["step 1: stop_reason is not one of confidence"]),
    "another output": (cell("prompts", "output_ids", 1, [5, 6, 9, 8]), ["the output differs from AR's at 2"]),
    "a prompt outside": (cell("prompts", "prompt_index", 3, 7), ["prompt 7", "its row is missing"]),
    "another sum": (cell("prompts", "draft_ms", 1, 9.0), ["draft_ms of its steps add up to 2, and in"]),
    "tokens that add up to more": (
        cell("steps", "emitted", 3, 2),
        ["prompt 0, repeat 0, arm method: its steps emitted 2 tokens after the first, and new_tokens is 4"],
    ),
    "an impossible set": (cell("layer_sets", "skip_mlp", 0, [4]), ["layer set 0 skips [4] of 4 blocks"]),
    "another model": (key("model.n_layers", 5), ["has 4 blocks, and the model 5"]),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_every_fault_is_named(mutation: str, record: Path) -> None:
    change, texts = MUTATIONS[mutation]
    change(record)
    named = "\n".join(map(str, record_faults(record)))
    assert named and not [text for text in texts if text not in named], named


def test_all_faults_are_listed_together(record: Path) -> None:
    """Rows are compared even if a header or table has another, irrelevant fault."""
    names = ("a wrong type", "an unknown key", "an unknown column", "a bad stop", "another sum", "a bad reason")
    for name in names:
        MUTATIONS[name][0](record)
    end = program("validate", f"record={record}")
    assert end.returncode == 1 and not [name for name in names if MUTATIONS[name][1][0] not in end.stdout]
    assert "record: 7 faults" in end.stdout and "0 of 1 records are valid" in end.stdout


def test_the_documented_faults_are_those_of_the_command(record: Path) -> None:
    for change in (key("metod", "other"), key("method"), MUTATIONS["a wrong type"][0], MUTATIONS["a wider integer"][0]):
        change(record)
    record.rename(record.parent / "other-engine-1")
    end = program("validate", f"record={record.parent}/other-engine-1")
    printed = end.stdout.splitlines()
    document = (ROOT / "docs/exchange.md").read_text(encoding="utf-8")
    shown = document.split("```\nother-engine-1: ")[1].split("```")[0].splitlines()
    assert end.returncode == 1 and len(printed) == len(shown) == 6 and f"other-engine-1: {shown[0]}" == printed[0]
    assert not [line for line in shown[1:] if line not in (*printed, "  …")]


def test_what_other_programs_may_do(record: Path) -> None:
    """Own keys and columns, types that Parquet stores in the same way, another order, no optional column."""
    cast("prompts", "text", pa.large_string())(record)
    cast("steps", "arm", pa.large_string())(record)
    edit_table("prompts", lambda table: table.select(table.column_names[::-1]).drop_columns("score"))(record)
    edit_table("steps", lambda table: table.append_column("x_entropy", pa.array([0.5] * len(table))))(record)
    assert record_faults(record) == [] and len(load_run(record).steps) == 8


def leaves(content: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every value in JSON, inner ones first."""
    for key in content if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ():
        yield from leaves(content[key], (*place, key))
        yield (*place, key)


@pytest.mark.parametrize("value", [None, "text", {"a": 1}], ids=str)
def test_no_header_breaks_the_check(value: object, record: Path) -> None:
    """The check ends for any value in a header, and what the schema refuses is a fault."""
    for place in leaves(HEADER):
        content = changed(HEADER, place, value)
        (record / "run.json").write_text(json.dumps(content), encoding="utf-8")
        listed = record_faults(record)
        assert bool([f for f in listed if f.file == "run.json"]) != Draft202012Validator(SCHEMA).is_valid(content)


@pytest.mark.parametrize("name", ["prompts", "steps", "layer_sets"])
def test_no_row_breaks_the_check(name: str, record: Path) -> None:
    """The list of all faults ends for any value in any column, unlike a reader that stops at the first."""
    tables = load_run(record).tables
    rows = range(len(tables[name])) if name == "layer_sets" else [1]
    for *_, frame in edits(tables[name], rows):
        listed = [*faults(HEADER, tables | {name: frame})]
        assert len(listed) < 40 and "np." not in str([text for _, _, text in listed])


def test_folders_and_packs_are_checked_whole(record: Path) -> None:
    folder, sent = record.parent / "runs", record.parent / "sent.zip"
    for name in ("a", "b", "unfinished"):
        shutil.copytree(record, folder / name)
    MUTATIONS["unfinished"][0](folder / "unfinished")
    end = program("validate", f"record={folder}")
    assert end.returncode == 0 and "2 of 2" in end.stdout
    assert program("pack", f"runs_dir={folder}", f"out={sent}").returncode == 0
    MUTATIONS["another sum"][0](folder / "b")
    end = program("validate", f"record={folder}")
    assert end.returncode == 1 and "\nb: " in f"\n{end.stdout}" and "1 of 2 records" in end.stdout
    for sound in (sent, folder / "a" / "run.json"):
        assert program("validate", f"record={sound}").returncode == 0
    (record.parent / "empty").mkdir()
    for options in ([f"record={record.parent}/empty"], [f"record={record.parent}/nowhere"], ["folder=a"], []):
        assert program("validate", *options).returncode == 2
