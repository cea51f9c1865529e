"""Repositories laid out as on the hub: cards with configurations, Parquet, JSON lines; see also `hub/test_tasks`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pytest

from ssd_bench.contract.task import DataSpec
from ssd_bench.data import HubSource
from ssd_bench.errors import ConfigError
from tests.hub.layouts import card, jsonl, parquet
from tests.sources import used

Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def repository(folder: Path, files: Mapping[str, Rows], readme: str = "") -> Path:
    """Write a repository: files by their suffix, and a card if any."""
    for name, rows in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(parquet(rows) if path.suffix == ".parquet" else jsonl(rows).encode())
    if readme:
        (folder / "README.md").write_text(readme, encoding="utf-8")
    return folder


@dataclass(frozen=True)
class Layout:
    """A repository and what a task reads from it."""

    files: Mapping[str, Rows]
    fields: tuple[str, ...]
    expected: Rows
    readme: str = ""
    name: str | Sequence[str] | None = "default"
    split: str = "test"
    rename: Mapping[str, str] = field(default_factory=dict)
    hub: Mapping[str, Any] = field(default_factory=dict)

    def spec(self, folder: Path, **hub: object) -> DataSpec:
        arguments = {"name": self.name, "split": self.split, "revision": "main", **self.hub, **hub}
        path = {"path": str(repository(folder / "repository", self.files, self.readme))}
        return DataSpec("toy", self.fields, path | arguments, self.rename)


def qa(*numbers: int) -> Rows:
    return [{"question": f"q{i}", "answer": f"#### {i}"} for i in numbers]


QA = ("question", "answer")
PAIRS = [{"de": "Es regnet.", "en": "It rains."}, {"de": "Es schneit.", "en": "It snows."}]
TRANSLATION = {
    "config_name": "de-en",
    "features": [{"name": "translation", "dtype": {"translation": {"languages": ["de", "en"]}}}],
    "splits": [{"name": "test", "num_bytes": 100, "num_examples": 2}],
}
NO_STRUCT = [{"translation": PAIRS[0]}, {"translation": None}]
YEARS = {"aime2025-I.jsonl": qa(0, 1), "aime2025-II.jsonl": qa(2)}
YEAR_FILES = {"AIME2025-I": {"test": "aime2025-I.jsonl"}, "AIME2025-II": {"test": "aime2025-II.jsonl"}}
LAYOUTS = {
    "gsm8k": Layout(
        {
            "main/train-00000-of-00001.parquet": qa(5, 6, 7),
            "main/test-00000-of-00001.parquet": qa(0, 1),
            "socratic/test-00000-of-00001.parquet": qa(9),
        },
        QA,
        qa(0, 1),
        card({"main": {"train": "main/train-*", "test": "main/test-*"}, "socratic": {"test": "socratic/test-*"}}),
        "main",
    ),
    "aime25": Layout(YEARS, QA, qa(0, 1, 2), card(YEAR_FILES), ["AIME2025-I", "AIME2025-II"]),
    "aime25 reversed": Layout(YEARS, QA, qa(2, 0, 1), card(YEAR_FILES), ["AIME2025-II", "AIME2025-I"]),
    "wmt": Layout(
        {"de-en/test-00000-of-00001.parquet": [{"translation": pair} for pair in PAIRS]},
        ("source_de", "target_en"),
        [{"source_de": pair["de"], "target_en": pair["en"]} for pair in PAIRS],
        card({"de-en": {"test": "de-en/test-*"}}, dataset_info=[TRANSLATION]),
        "de-en",
        rename={"translation.de": "source_de", "translation.en": "target_en"},
    ),
    "nested without features": Layout(
        {"test.jsonl": [{"item": {"text": {"body": "b"}, "n": 1}}, {"item": {"text": {"body": "c"}, "n": 2}}]},
        ("text", "n"),
        [{"text": "b", "n": "1"}, {"text": "c", "n": "2"}],
        rename={"item.text.body": "text", "item.n": "n"},
    ),
    "chosen files": Layout(
        {"easy.jsonl": qa(0), "hard.jsonl": qa(1, 2)}, QA, qa(1, 2), split="train", hub={"data_files": "hard.jsonl"}
    ),
    "one file a split": Layout(
        {"en/a.jsonl": qa(0), "en/b.jsonl": qa(1)},
        QA,
        qa(1),
        name=None,
        hub={"data_files": {"train": "en/a.jsonl", "test": "en/b.jsonl"}},
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_of_the_hub_is_read(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    spec = layout.spec(tmp_path, rows=len(layout.expected))
    rows = used(HubSource(), spec)
    assert rows == [{"id": f"toy-{layout.split}-{i}"} | row for i, row in enumerate(layout.expected)]
    assert HubSource().survey(spec) == (len(rows), None)


def test_the_fingerprint_is_of_all_configurations_in_order(tmp_path: Path) -> None:
    found = {name: HubSource().fingerprint(LAYOUTS[name].spec(tmp_path)) for name in ("aime25", "aime25 reversed")}
    first = HubSource().fingerprint(LAYOUTS["aime25"].spec(tmp_path, name="AIME2025-I"))
    assert len({*found.values(), first}) == 3


def test_the_fingerprint_tells_source_and_files(tmp_path: Path) -> None:
    spec = LAYOUTS["gsm8k"].spec(tmp_path)
    fingerprint = HubSource().fingerprint(spec)
    assert re.fullmatch(rf"{re.escape(str(tmp_path / 'repository'))} files:[0-9a-f]{{64}}", fingerprint)
    assert fingerprint == HubSource().fingerprint(replace(spec, fields=("question",)))
    repository(tmp_path / "repository", {"main/test-00000-of-00001.parquet": qa(0, 2)})
    assert fingerprint != HubSource().fingerprint(spec)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 5}, r"task\.hub\.rows of toy=5 .*main test has 2 rows; task\.hub\.rows=null accepts"),
        ({"rows": 0}, r"task\.hub\.rows of toy=0 .*null, or the number"),
        ({"rows": True}, r"task\.hub\.rows of toy=True .*null, or the number"),
        ({"split": "tests"}, r"task\.hub\.split='tests' .*main tests has no tests: the splits are train, test"),
        ({"name": "none"}, r"none test\).*'none' not found.*main.*socratic"),
        ({"name": ["main", "none"]}, r"main\+none test\).*'none' not found"),
        ({"name": []}, r"task\.hub\.name of toy=\[\] .*at least one"),
        ({"revision": 1234567}, r"revision=1234567 .*a number needs quotes: 'task\.hub\.revision=\"\.\.\.\"'"),
        ({"revision": 1e10}, r"revision=10000000000\.0 .*a text, or null; .* like a number needs quotes"),
        ({"revision": ["main"]}, r"task\.hub\.revision=\['main'\] .*a text, or null"),
        ({"revision": "0" * 40}, r"task\.hub\.revision='0{40}' .*null: the folder .* has no commits"),
        ({"name": 3.0}, r"task\.hub\.name=3\.0 .*a text, or a list"),
        ({"split": None}, r"task\.hub\.split=None .*a text"),
        ({"data_files": "none.parquet"}, r"could not be loaded .*none\.parquet"),
        ({"nonsense": 1}, r"could not be loaded .*nonsense"),
    ],
)
def test_what_the_repository_does_not_have_is_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    spec = LAYOUTS["gsm8k"].spec(tmp_path, **changes)
    for read in (HubSource().rows, HubSource().fingerprint):
        with pytest.raises(ConfigError, match=message):
            read(spec)


def test_the_rows_of_all_configurations_count(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rows of toy=2 .*AIME2025-I\+AIME2025-II test has 3 rows"):
        used(HubSource(), LAYOUTS["aime25"].spec(tmp_path, rows=2))


def test_a_missing_nested_column_names_those_that_exist_or_is_empty_if_optional(tmp_path: Path) -> None:
    hub = LAYOUTS["wmt"].spec(tmp_path).hub
    spec = DataSpec("toy", ("source_fr",), hub, {"translation.fr": "source_fr"})
    message = r"column='translation\.fr' .*one of the columns translation, translation\.de, translation\.en"
    with pytest.raises(ConfigError, match=message):
        used(HubSource(), spec)
    rename = {"translation.fr": "source_fr", "translation.de": "source_de"}
    rows = used(HubSource(), DataSpec("toy", ("source_de",), hub, rename, optional=("source_fr",)))
    assert [row["source_fr"] for row in rows] == ["", ""]


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout({"test.jsonl": [*qa(0), {"question": "q", "answer": None}]}, QA, []), r"test:1 answer=None "),
        (Layout({"test.jsonl": [*qa(0), {"question": "", "answer": "a"}]}, QA, []), r"test:1 question='' "),
        (Layout({"test.parquet": NO_STRUCT}, ("de",), [], rename={"translation.de": "de"}), r"test:1 de=None "),
    ],
)
def test_a_row_that_cannot_be_used_is_named_by_its_index(layout: Layout, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{message}.*non-empty string"):
        used(HubSource(), layout.spec(tmp_path))


def test_an_empty_split_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = LAYOUTS["gsm8k"].spec(tmp_path)
    empty = datasets.Dataset.from_dict({"question": [], "answer": []})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: empty)
    with pytest.raises(ConfigError, match=r"main test=0 .*at least one row"):
        used(HubSource(), spec)


@pytest.mark.parametrize("name", ["toy", "toy.fewshot"])
def test_a_task_that_the_hub_does_not_have_says_so(name: str) -> None:
    option = {"toy": r"task\.hub of toy", "toy.fewshot": r"task\.fewshot_hub of toy\.fewshot"}[name]
    for read in (HubSource().rows, HubSource().fingerprint):
        with pytest.raises(ConfigError, match=rf"{option}={{}} .*this task has no data on the hub: use data=local"):
            read(DataSpec(name, ("question",), {}))
