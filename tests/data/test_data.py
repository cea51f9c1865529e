"""Data sources: their content, optional fields and lists, and every fault with its place."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from ssd_bench.contract.task import DataSpec
from ssd_bench.data import HubSource, LocalSource, SampleSource
from ssd_bench.data.rows import examine_row
from ssd_bench.errors import ConfigError
from tests.runs import ROOT, python
from tests.sources import used

HUB = {"path": "openai/gsm8k", "name": "main", "split": "test", "revision": "main"}
SPEC = DataSpec(name="toy", fields=("question", "answer"), hub=HUB)
GOOD = {"id": "a", "question": "1+1?", "answer": "#### 2"}


def write(folder: Path, *lines: str | Mapping[str, object]) -> Path:
    path = folder / "toy.jsonl"
    path.write_text(
        "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), encoding="utf-8"
    )
    return path


def test_local_rows_keep_file_order_and_only_the_fields_of_the_spec(tmp_path: Path) -> None:
    write(tmp_path, GOOD | {"level": 3}, "", {"id": "b", "question": "q\u2028r", "answer": "x"})
    rows = used(LocalSource(str(tmp_path)), SPEC)
    assert rows == [GOOD, {"id": "b", "question": "q\u2028r", "answer": "x"}]


def test_local_reads_a_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    (tmp_path / "toy.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n")
    assert used(LocalSource(tmp_path), SPEC) == [GOOD]


@pytest.mark.parametrize(
    ("line", "place", "value", "allowed"),
    [
        ('{"id": "b", ', ":2", '{"id": "b",', "JSON object"),
        ("[1, 2]", ":2", "[1, 2]", "JSON object"),
        ({"id": "b", "question": "q"}, ":2 answer", None, "missing"),
        ({"question": "q", "answer": "x"}, ":2 id", None, "missing"),
        ({"id": "b", "question": "  ", "answer": "x"}, ":2 question", "  ", "non-empty string"),
        ({"id": "b", "question": "q", "answer": 7}, ":2 answer", 7, "non-empty string"),
        ({"id": "b", "question": None, "answer": "x"}, ":2 question", None, "non-empty string"),
        ({"id": "a", "question": "q", "answer": "x"}, ":2 id", "a", "line 1 has the same id"),
    ],
)
def test_local_names_file_line_field_and_value(
    tmp_path: Path, line: str | dict[str, object], place: str, value: object, allowed: str
) -> None:
    path = write(tmp_path, GOOD, line)
    with pytest.raises(ConfigError) as caught:
        used(LocalSource(tmp_path), SPEC)
    assert caught.value.field == f"{path}{place}"
    assert caught.value.value == value
    assert allowed in str(caught.value)


def test_local_names_the_line_of_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    (tmp_path / "toy.jsonl").write_bytes(json.dumps(GOOD).encode() + b"\n\n{\xff")
    with pytest.raises(ConfigError, match=r"toy\.jsonl:3=b'\\xff'.*UTF-8"):
        used(LocalSource(tmp_path), SPEC)


def test_local_without_root_folder_file_or_rows(tmp_path: Path) -> None:
    for read in (LocalSource(None).rows, LocalSource(None).fingerprint):
        with pytest.raises(
            ConfigError, match=r"data\.root is missing.*data\.root=DIR, from which .*; or use data=sample"
        ):
            read(SPEC)
    with pytest.raises(ConfigError, match=r"data\.root='.*/none'.*existing folder that holds toy\.jsonl"):
        used(LocalSource(tmp_path / "none"), SPEC)
    (tmp_path / "other.jsonl").touch()
    with pytest.raises(ConfigError, match=r"a folder with toy\.jsonl, which this task reads; it holds: other\.jsonl"):
        used(LocalSource(tmp_path), SPEC)
    write(tmp_path, "")
    with pytest.raises(ConfigError, match=r"toy\.jsonl.*at least one row"):
        used(LocalSource(tmp_path), SPEC)


@pytest.mark.parametrize(("given", "read"), [(7, "7"), (-1, "-1"), (10**30, "1" + "0" * 30), ("x-1", "x-1")])
def test_a_local_id_may_be_an_integer(given: int | str, read: str, tmp_path: Path) -> None:
    write(tmp_path, GOOD | {"id": given})
    assert used(LocalSource(tmp_path), SPEC) == [GOOD | {"id": read}]


@pytest.mark.parametrize("given", [True, 1.0, None, "", [1]])
def test_other_local_ids_are_refused(given: object, tmp_path: Path) -> None:
    write(tmp_path, GOOD, GOOD | {"id": given})
    with pytest.raises(ConfigError, match=r"toy\.jsonl:2 id=.*non-empty string"):
        used(LocalSource(tmp_path), SPEC)


def test_an_integer_and_its_text_are_the_same_id(tmp_path: Path) -> None:
    write(tmp_path, GOOD | {"id": "7"}, GOOD | {"id": 7})
    with pytest.raises(ConfigError, match=r"toy\.jsonl:2 id='7' .*line 1 has the same id"):
        used(LocalSource(tmp_path), SPEC)


def test_a_checked_row_has_only_what_was_asked_for() -> None:
    row = {"a": "x", "b": ["y", "z"], "c": None, "d": 1}
    assert examine_row(row, ("a", "b"), "here", ("c",), ("b",)) == ({"a": "x", "b": ["y", "z"], "c": ""}, [])
    checked, (fault,) = examine_row(row, ("d",), "here")
    assert not checked and re.match(r"here d=1 .*non-empty string", str(fault))


def test_a_long_value_is_not_repeated_whole(tmp_path: Path) -> None:
    write(tmp_path, GOOD | {"answer": [0] * 100_000})
    with pytest.raises(ConfigError) as caught:
        used(LocalSource(tmp_path), SPEC)
    assert len(str(caught.value)) < 400 and "[0, 0," in str(caught.value)


def test_local_fingerprint_is_the_hash_of_the_bytes(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    assert LocalSource(tmp_path).fingerprint(SPEC) == "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
    before = LocalSource(tmp_path).fingerprint(SPEC)
    write(tmp_path, GOOD, "")
    assert LocalSource(tmp_path).fingerprint(SPEC) != before


@pytest.mark.parametrize("name", ["hub", "local", "sample"])
def test_each_config_makes_its_source(name: str) -> None:
    config = OmegaConf.load(ROOT / "conf" / "data" / f"{name}.yaml")
    assert ("root" in config) == (name == "local")
    assert type(instantiate(config)) is {"hub": HubSource, "local": LocalSource, "sample": SampleSource}[name]


@pytest.fixture
def hub_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository laid out like openai/gsm8k on the hub: a card that lists parquet files by configuration."""
    folder = tmp_path / "gsm8k"
    (folder / "main").mkdir(parents=True)
    table = {"question": ["q0", "q1"], "answer": ["#### 1", "#### 2"], "extra": ["x", "y"]}
    pyarrow.parquet.write_table(pyarrow.table(table), folder / "main" / "test-00000-of-00001.parquet")
    card = {"configs": [{"config_name": "main", "data_files": [{"split": "test", "path": "main/test-*"}]}]}
    (folder / "README.md").write_text(f"---\n{json.dumps(card)}\n---\n# Toy\n", encoding="utf-8")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return folder


def hub_spec(folder: Path, **changes: object) -> DataSpec:
    values: dict[str, object] = {
        "name": "toy.fewshot",
        "fields": ("question", "answer"),
        "hub": HUB | {"path": str(folder)},
    }
    return DataSpec(**(values | changes))  # type: ignore[arg-type]


def test_hub_rows_have_ids_that_trace_back(hub_folder: Path) -> None:
    rows = used(HubSource(), hub_spec(hub_folder))
    assert rows == [
        {"question": "q0", "answer": "#### 1", "id": "toy-test-0"},
        {"question": "q1", "answer": "#### 2", "id": "toy-test-1"},
    ]


def test_hub_renames_columns(hub_folder: Path) -> None:
    spec = hub_spec(hub_folder, fields=("question", "note"), rename={"extra": "note"})
    assert used(HubSource(), spec)[1] == {"question": "q1", "note": "y", "id": "toy-test-1"}


def test_hub_names_the_columns_that_exist(hub_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"column='problem'.*one of the columns question, answer, extra"):
        used(HubSource(), hub_spec(hub_folder, fields=("problem",)))


def test_hub_fingerprint_tells_source_and_files(hub_folder: Path) -> None:
    fingerprint = HubSource().fingerprint(hub_spec(hub_folder))
    assert re.fullmatch(rf"{re.escape(str(hub_folder))} files:[0-9a-f]{{64}}", fingerprint)
    assert fingerprint == HubSource().fingerprint(hub_spec(hub_folder, fields=("question", "extra")))
    table = pyarrow.table({"question": ["q0", "q2"], "answer": ["#### 1", "#### 2"]})
    pyarrow.parquet.write_table(table, hub_folder / "main" / "test-00000-of-00001.parquet")
    assert fingerprint != HubSource().fingerprint(hub_spec(hub_folder))


def test_hub_in_offline_mode_is_refused_at_once(tmp_path: Path) -> None:
    code = (
        "from ssd_bench.data import HubSource; from ssd_bench.contract.task import DataSpec; "
        f"HubSource().rows(DataSpec('toy', ('question',), {HUB}))"
    )
    done = python("-c", code, HF_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "ConfigError: task.hub.revision='main' is invalid" in done.stderr
    assert "HF_HUB_OFFLINE is set" in done.stderr


def test_hub_needs_every_argument_pinned() -> None:
    spec = DataSpec(name="toy", fields=("question",), hub={"path": "openai/gsm8k", "split": "test"})
    with pytest.raises(ConfigError, match="also values for name, revision"):
        used(HubSource(), spec)


# ---- optional fields and lists, from a folder and from the hub


NOTED = DataSpec(name="toy", fields=("question",), hub=HUB, optional=("note",))


def source(folder: Path, **row: object) -> LocalSource:
    (folder / "toy.jsonl").write_text(json.dumps({"id": "a", "question": "1+1?"} | row) + "\n", encoding="utf-8")
    return LocalSource(folder)


@pytest.mark.parametrize(
    ("row", "note"),
    [({}, ""), ({"note": ""}, ""), ({"note": None}, ""), ({"note": "  "}, "  "), ({"note": "as given"}, "as given")],
)
def test_an_optional_field_may_be_missing_or_empty(row: dict[str, object], note: str, tmp_path: Path) -> None:
    assert used(source(tmp_path, more=1, **row), NOTED) == [{"id": "a", "question": "1+1?", "note": note}]


@pytest.mark.parametrize("note", [0, False, [], {"text": "n"}])
def test_an_optional_field_that_is_no_text_is_refused(note: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"toy\.jsonl:1 note=.*string, null or nothing"):
        used(source(tmp_path, note=note), NOTED)


def test_other_fields_stay_required(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"toy\.jsonl:1 question='' .*non-empty string"):
        used(source(tmp_path, question="", note="n"), NOTED)


@pytest.mark.parametrize(
    ("row", "question"),
    [
        ({"asked": {"text": "q"}}, "q"),
        ({"question": "own", "asked": {"text": "q"}}, "own"),
        ({"question": "own", "asked": ["q"]}, "own"),
    ],
)
def test_a_local_row_may_have_the_names_of_its_source(row: dict[str, object], question: str, tmp_path: Path) -> None:
    elsewhere = DataSpec("toy", ("question",), HUB, rename={"asked.text": "question", "number": "id"})
    write(tmp_path, row | {"number": 7})
    assert used(LocalSource(tmp_path), elsewhere) == [{"id": "7", "question": question}]
    write(tmp_path, {"number": 7, "asked": "q"})
    with pytest.raises(ConfigError, match=r"toy\.jsonl:1 question=None .*the row has: number, asked, id"):
        used(LocalSource(tmp_path), elsewhere)


def test_the_hub_reads_an_optional_column_where_there_is_one(hub_folder: Path) -> None:
    noted = hub_spec(hub_folder, fields=("question",), optional=("note",))
    renamed = replace(noted, rename={"extra": "note"})
    notes = [[row["note"] for row in used(HubSource(), spec)] for spec in (noted, renamed)]
    assert notes == [["", ""], ["x", "y"]]


LISTS = DataSpec("toy", ("question", "answer"), HUB, lists=("answer",))


@pytest.mark.parametrize("answer", [["a"], ["a", "b", "a"], [" x "]])
def test_a_list_field_holds_texts(answer: list[str], tmp_path: Path, hub_folder: Path) -> None:
    assert used(source(tmp_path, question="q", answer=answer), LISTS) == [
        {"id": "a", "question": "q", "answer": answer}
    ]
    table = pyarrow.table({"question": ["q"], "answer": [answer]})
    pyarrow.parquet.write_table(table, hub_folder / "main" / "test-00000-of-00001.parquet")
    listed = hub_spec(hub_folder, lists=("answer",))
    assert used(HubSource(), listed) == [{"id": "toy-test-0", "question": "q", "answer": answer}]


@pytest.mark.parametrize("answer", ["a", [], [""], ["a", " "], ["a", None], [1], [["a"]], {"a": "b"}, None, 3])
def test_a_list_field_of_anything_else_is_refused(answer: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"toy\.jsonl:1 answer=.*non-empty list of non-empty strings"):
        used(source(tmp_path, answer=answer), LISTS)


def test_a_field_that_is_no_list_takes_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"toy\.jsonl:1 question=\['q'\] .*non-empty string"):
        used(source(tmp_path, question=["q"], answer=["a"]), LISTS)


NUMBERED = DataSpec("toy", ("question",), {}, lists=("question",), singles=("question",), numbered=True)


@pytest.mark.parametrize(
    ("line", "value", "allowed"),
    [
        ({"question": ""}, "", "a non-empty string, or a non-empty list of non-empty strings"),
        ({"question": 5}, 5, "a non-empty string, or a non-empty list of non-empty strings"),
        ({"question": ["a", ""]}, ["a", ""], "a non-empty string, or a non-empty list of non-empty strings"),
        ({"question": ["\ud800"]}, ["\ud800"], "Unicode text without half of a surrogate pair"),
        ({"question": "a", "id": 1.5}, 1.5, "an integer or a non-empty string"),
        ({"question": "a", "id": ""}, "", "an integer or a non-empty string"),
    ],
)
def test_the_fault_of_a_row_says_all_that_is_allowed(
    line: dict[str, object], value: object, allowed: str, tmp_path: Path
) -> None:
    write(tmp_path, line)
    with pytest.raises(ConfigError) as caught:
        used(LocalSource(tmp_path), NUMBERED)
    assert (caught.value.value, caught.value.expected) == (value, allowed)


def test_a_numbered_row_whose_id_is_null_has_none(tmp_path: Path) -> None:
    write(tmp_path, {"question": "a", "id": None}, {"question": "b"}, {"question": "c", "id": "x"})
    assert [row["id"] for row in used(LocalSource(tmp_path), NUMBERED)] == ["1", "2", "x"]


@pytest.mark.parametrize(
    ("ids", "fault"),
    [
        (["2", None], "a unique id: a row without an id gets its line number, 2, which is also the id of line 1"),
        ([None, 1], "a unique id; line 1 has no id, and gets its line number"),
        (["x", "x"], "a unique id; line 1 has the same id"),
    ],
)
def test_an_id_that_nobody_wrote_is_not_said_to_be_repeated(ids: list[object], fault: str, tmp_path: Path) -> None:
    write(tmp_path, *({"question": "a"} | ({} if name is None else {"id": name}) for name in ids))
    with pytest.raises(ConfigError) as caught:
        used(LocalSource(tmp_path), NUMBERED)
    assert caught.value.field.endswith(":2 id") and caught.value.expected == fault
    assert caught.value.value == (None if ids[1] is None else str(ids[1]))
