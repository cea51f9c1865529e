"""Data sources: rows of a folder, optional fields, lists, ids, and faults with their place."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from ssd_bench.contract.task import DataSpec
from ssd_bench.data import HubSource, LocalSource
from ssd_bench.errors import ConfigError
from tests.sources import local_source, used, write_rows

HUB = {"path": "openai/gsm8k", "name": "main", "split": "test", "revision": "main"}
SPEC = DataSpec(name="toy", fields=("question", "answer"), hub=HUB)
NOTED = DataSpec("toy", ("question",), HUB, optional=("note",))
LISTS = DataSpec("toy", ("question", "answer"), HUB, lists=("answer",))
NUMBERED = DataSpec("toy", ("question",), {}, lists=("question",), singles=("question",), numbered=True)
GOOD: dict[str, object] = {"id": "a", "question": "1+1?", "answer": "#### 2"}
OTHER = GOOD | {"id": "b"}
TEXT, TEXTS = "non-empty string", "non-empty list of non-empty strings"
# spec, line, field, value, what is allowed
REFUSED: list[tuple[DataSpec, str | dict[str, object], str, object, str]] = [
    (SPEC, "[1, 2]", "", "[1, 2]", "JSON object"),
    (SPEC, {"question": "q", "answer": "x"}, " id", None, "missing"),
    (SPEC, GOOD, " id", "a", "line 1 has the same id"),
    *((SPEC, OTHER | {"question": value}, " question", value, TEXT) for value in ("  ", None)),
    *((SPEC, GOOD | {"id": value}, " id", value, TEXT) for value in (True, 1.0, None, "", [1])),
    (NOTED, OTHER | {"question": "", "note": "n"}, " question", "", TEXT),
    *(
        (NOTED, OTHER | {"note": note}, " note", note, "string, null or nothing")
        for note in (0, False, [], {"text": "n"})
    ),
    *((LISTS, OTHER | {"answer": value}, " answer", value, TEXTS) for value in ("a", [], ["a", " "], ["a", None], [1])),
    *((LISTS, OTHER | {"answer": value}, " answer", value, TEXTS) for value in ({"a": "b"}, None)),
    (LISTS, OTHER | {"question": ["q"], "answer": ["a"]}, " question", ["q"], TEXT),
    *((NUMBERED, {"question": value}, " question", value, f"a {TEXT}, or a {TEXTS}") for value in ("", 5, ["a", ""])),
    (NUMBERED, {"question": ["\ud800"]}, " question", ["\ud800"], "Unicode text without half of a surrogate pair"),
    *((NUMBERED, {"question": "a", "id": value}, " id", value, f"an integer or a {TEXT}") for value in (1.5, "")),
]


def test_local_rows_have_the_order_of_the_file_and_the_fields_of_the_spec(tmp_path: Path) -> None:
    write_rows(tmp_path / "toy.jsonl", GOOD | {"level": 3}, "", {"id": "b", "question": "q\u2028r", "answer": "x"})
    rows = used(LocalSource(str(tmp_path)), SPEC)
    assert rows == [GOOD, {"id": "b", "question": "q\u2028r", "answer": "x"}]
    (tmp_path / "toy.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n")
    assert used(LocalSource(tmp_path), SPEC) == [GOOD]
    write_rows(tmp_path / "toy.jsonl", GOOD | {"answer": [" x ", "b", "b"]})
    assert used(LocalSource(tmp_path), LISTS) == [GOOD | {"answer": [" x ", "b", "b"]}]
    write_rows(tmp_path / "toy.jsonl", {"question": "a", "id": None}, {"question": "b"}, {"question": "c", "id": "x"})
    assert [row["id"] for row in used(LocalSource(tmp_path), NUMBERED)] == ["1", "2", "x"]


@pytest.mark.parametrize(("spec", "line", "field", "value", "allowed"), REFUSED)
def test_a_row_that_cannot_be_used_has_its_place(
    spec: DataSpec, line: str | dict[str, object], field: str, value: object, allowed: str, tmp_path: Path
) -> None:
    path = write_rows(tmp_path / "toy.jsonl", GOOD | ({"answer": ["x"]} if spec is LISTS else {}), line)
    with pytest.raises(ConfigError) as caught:
        used(LocalSource(tmp_path), spec)
    assert (caught.value.field, caught.value.value) == (f"{path}:2{field}", value)
    assert allowed in str(caught.value)


def test_local_without_root_folder_or_file(tmp_path: Path) -> None:
    for read in (LocalSource(None).rows, LocalSource(None).fingerprint):
        with pytest.raises(ConfigError, match=r"data\.root is missing.*data\.root=DIR, .*; or use data=sample"):
            read(SPEC)
    with pytest.raises(ConfigError, match=r"data\.root='.*/none'.*existing folder that holds toy\.jsonl"):
        used(LocalSource(tmp_path / "none"), SPEC)
    (tmp_path / "other.jsonl").touch()
    with pytest.raises(ConfigError, match=r"a folder with toy\.jsonl, which this task reads; it holds: other\.jsonl"):
        used(LocalSource(tmp_path), SPEC)


@pytest.mark.parametrize(("given", "read"), [(7, "7"), (-1, "-1"), (10**30, "1" + "0" * 30), ("x-1", "x-1")])
def test_a_local_id_may_be_an_integer(given: int | str, read: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "toy.jsonl", GOOD | {"id": given})
    assert used(LocalSource(tmp_path), SPEC) == [GOOD | {"id": read}]


def test_a_long_value_is_not_repeated_whole(tmp_path: Path) -> None:
    write_rows(tmp_path / "toy.jsonl", GOOD | {"answer": [0] * 100_000})
    with pytest.raises(ConfigError) as caught:
        used(LocalSource(tmp_path), SPEC)
    assert len(str(caught.value)) < 400 and "[0, 0," in str(caught.value)


def test_local_fingerprint_is_the_hash_of_the_bytes(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "toy.jsonl", GOOD)
    assert LocalSource(tmp_path).fingerprint(SPEC) == "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
    before = LocalSource(tmp_path).fingerprint(SPEC)
    write_rows(tmp_path / "toy.jsonl", GOOD, "")
    assert LocalSource(tmp_path).fingerprint(SPEC) != before


def test_hub_needs_every_argument_pinned() -> None:
    spec = DataSpec(name="toy", fields=("question",), hub={"path": "openai/gsm8k", "split": "test"})
    with pytest.raises(ConfigError, match="also values for name, revision"):
        used(HubSource(), spec)


def source(folder: Path, **row: object) -> LocalSource:
    return local_source(folder, {"toy": [{"id": "a", "question": "1+1?"} | row]})


@pytest.mark.parametrize(
    ("row", "note"),
    [({}, ""), ({"note": ""}, ""), ({"note": None}, ""), ({"note": "  "}, "  "), ({"note": "as given"}, "as given")],
)
def test_an_optional_field_may_be_missing_or_empty(row: dict[str, object], note: str, tmp_path: Path) -> None:
    assert used(source(tmp_path, more=1, **row), NOTED) == [{"id": "a", "question": "1+1?", "note": note}]


NAMED = [({}, {"text": "q"}, "q"), ({"question": "own"}, {"text": "q"}, "own"), ({"question": "own"}, ["q"], "own")]


@pytest.mark.parametrize(("row", "asked", "question"), NAMED)
def test_a_row_may_have_its_sources_names(row: dict[str, str], asked: object, question: str, tmp_path: Path) -> None:
    elsewhere = DataSpec("toy", ("question",), HUB, rename={"asked.text": "question", "number": "id"})
    write_rows(tmp_path / "toy.jsonl", row | {"asked": asked, "number": 7})
    assert used(LocalSource(tmp_path), elsewhere) == [{"id": "7", "question": question}]
    write_rows(tmp_path / "toy.jsonl", {"number": 7, "asked": "q"})
    with pytest.raises(ConfigError, match=r"toy\.jsonl:1 question=None .*the row has: number, asked, id"):
        used(LocalSource(tmp_path), elsewhere)


@pytest.mark.parametrize(
    ("ids", "fault"),
    [
        (["2", None], "a unique id: a row without an id gets its line number, 2, which is also the id of line 1"),
        ([None, 1], "a unique id; line 1 has no id, and gets its line number"),
        (["x", "x"], "a unique id; line 1 has the same id"),
    ],
)
def test_an_id_that_nobody_wrote_is_not_said_to_be_repeated(ids: list[object], fault: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "toy.jsonl", *({"question": "a"} | ({} if name is None else {"id": name}) for name in ids))
    with pytest.raises(ConfigError) as caught:
        used(LocalSource(tmp_path), NUMBERED)
    assert caught.value.field.endswith(":2 id") and caught.value.expected == fault
    assert caught.value.value == (None if ids[1] is None else str(ids[1]))
