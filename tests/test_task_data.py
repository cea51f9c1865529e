"""Optional fields and lists of a data file, from a folder and from the hub."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest

from ssd_bench.data import HubSource, LocalSource
from ssd_bench.errors import ConfigError
from ssd_bench.task import DataSpec

HUB = {"path": "toy/toy", "name": "default", "split": "test", "revision": "main"}
SPEC = DataSpec(name="toy", fields=("question",), hub=HUB, optional=("note",))


def source(folder: Path, **row: object) -> LocalSource:
    """A folder whose data is one row."""
    (folder / "toy.jsonl").write_text(json.dumps({"id": "a", "question": "1+1?"} | row) + "\n", encoding="utf-8")
    return LocalSource(folder)


@pytest.mark.parametrize(
    ("row", "note"),
    [({}, ""), ({"note": ""}, ""), ({"note": None}, ""), ({"note": "  "}, "  "), ({"note": "as given"}, "as given")],
)
def test_an_optional_field_may_be_missing_or_empty(row: dict[str, object], note: str, tmp_path: Path) -> None:
    assert source(tmp_path, more=1, **row).rows(SPEC) == [{"id": "a", "question": "1+1?", "note": note}]


@pytest.mark.parametrize("note", [0, False, [], {"text": "n"}])
def test_an_optional_field_that_is_no_text_is_refused(note: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"toy\.jsonl:1 note=.*string, null or missing"):
        source(tmp_path, note=note).rows(SPEC)


def test_other_fields_stay_required(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"toy\.jsonl:1 question='' .*non-empty string"):
        source(tmp_path, question="", note="n").rows(SPEC)


def test_the_hub_reads_an_optional_column_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    columns: dict[str, list[str | None]] = {"question": ["q0", "q1"], "remark": ["r0", None]}
    monkeypatch.setattr(datasets, "load_dataset", lambda **_: datasets.Dataset.from_dict(columns))
    renamed = DataSpec("toy", ("question",), HUB, rename={"remark": "note"}, optional=("note",))
    notes = {spec.rename.get("remark"): [row["note"] for row in HubSource().rows(spec)] for spec in (SPEC, renamed)}
    assert notes == {None: ["", ""], "note": ["r0", ""]}
    assert HubSource().fingerprint(SPEC) != HubSource().fingerprint(renamed)


LISTS = DataSpec("toy", ("question", "answer"), HUB, lists=("answer",))


@pytest.mark.parametrize("answer", [["a"], ["a", "b", "a"], [" x "]])
def test_a_list_field_holds_texts(answer: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert source(tmp_path, question="q", answer=answer).rows(LISTS) == [{"id": "a", "question": "q", "answer": answer}]
    made = datasets.Dataset.from_dict({"question": ["q"], "answer": [answer]})
    monkeypatch.setattr(datasets, "load_dataset", lambda **_: made)
    assert HubSource().rows(LISTS) == [{"id": "toy-test-0", "question": "q", "answer": answer}]


@pytest.mark.parametrize("answer", ["a", [], [""], ["a", " "], ["a", None], [1], [["a"]], {"a": "b"}, None, 3])
def test_a_list_field_of_anything_else_is_refused(answer: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"toy\.jsonl:1 answer=.*non-empty list of non-empty strings"):
        source(tmp_path, answer=answer).rows(LISTS)


def test_a_field_that_is_no_list_takes_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"toy\.jsonl:1 question=\['q'\] .*non-empty string"):
        source(tmp_path, question=["q"], answer=["a"]).rows(LISTS)
