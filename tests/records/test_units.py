"""Changed units of an unfinished run that are still JSON: named, set aside, and measured again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ssd_bench.errors import ConfigError
from ssd_bench.records.reader import Run, load_run
from ssd_bench.records.schema import PromptRecord
from ssd_bench.records.units import SEAL
from ssd_bench.records.writer import RunWriter
from tests.synthetic import header, unit, with_work, write_run

Part = dict[str, Any]
HEADER = header(config={"baseline": "paired", "repeats": 1}, decode={"mode": "greedy"}, domains=["toy"] * 3)


def records(number: int) -> list[PromptRecord]:
    return with_work(unit(number, tokens=12))


def without_rows(part: Part, table: str, drop: Callable[[int], bool] = lambda row: True) -> None:
    for name, values in part[table].items():
        part[table][name] = [value for row, value in enumerate(values) if not drop(row)]


def changed(table: str, column: str, edit: Callable[[Any], Any], row: int = 0) -> Callable[[Part], None]:
    def damage(part: Part) -> None:
        part[table][column][row] = edit(part[table][column][row])

    return damage


def other_arm(part: Part) -> None:
    for table in ("prompts", "steps", "work"):
        arms = list(part[table]["arm"])
        without_rows(part, table, lambda row, arms=arms: arms[row] == "ar")  # type: ignore[misc]


CONTRADICTIONS: dict[str, Callable[[Part], object]] = {
    "an id more": changed("prompts", "output_ids", lambda ids: [*ids, 7]),
    "the first row less": lambda part: without_rows(part, "prompts", lambda row: row == 0),
    "an arm less": other_arm,
    "a step less": lambda part: without_rows(part, "steps", lambda row: row == 3),
    "no call of a step": lambda part: without_rows(part, "work", lambda row: row == 5),
}
"""Changes that make a unit contradict itself, even without its SHA-256; test_consistency has more."""
UNSEEN: dict[str, Callable[[Part], object]] = {
    "a text": changed("prompts", "text", lambda text: f"{text}!"),
    "no work": lambda part: without_rows(part, "work"),
    "another state": lambda part: part.update(state="AAAA"),
}
"""Changes that only a unit's SHA-256 shows."""


def begun(folder: Path) -> Path:
    with RunWriter(folder, HEADER) as writer:
        for number in range(3):
            writer.add(number, 0, records(number), None)
    return folder / "parts" / "00001-000.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_run(tmp_path_factory.mktemp("whole") / "run", [records(number) for number in range(3)])


@pytest.mark.parametrize("name", CONTRADICTIONS | UNSEEN)
def test_a_changed_unit_is_measured_again(
    name: str, whole: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = begun(tmp_path / "run")
    part = json.loads(file.read_bytes())
    (CONTRADICTIONS | UNSEEN)[name](part)
    if name in CONTRADICTIONS:
        del part[SEAL]
    file.write_text(json.dumps(part, ensure_ascii=False), encoding="utf-8")
    with RunWriter(tmp_path / "run", HEADER) as again:
        assert again.done == {(0, 0), (2, 0)}
        again.add(1, 0, records(1), None)
        again.finish({})
    assert "00001-000.json is damaged (" in (said := capsys.readouterr().err) and "measured again" in said
    run = load_run(tmp_path / "run")
    for table in ("prompts", "steps", "work"):  # sets are numbered by first use, and this unit came last
        frames = (read.tables[table].drop(columns="layer_set_id", errors="ignore") for read in (run, whole))
        pd.testing.assert_frame_equal(*frames)


def test_a_unit_that_changes_during_the_run_is_not_joined(tmp_path: Path) -> None:
    file = begun(tmp_path / "run")
    with RunWriter(tmp_path / "run", HEADER) as writer:
        part = json.loads(file.read_bytes())
        UNSEEN["a text"](part)
        file.write_text(json.dumps(part), encoding="utf-8")
        with pytest.raises(ConfigError, match=r"00001-000\.json.*the same command"):
            writer.finish({})
    with RunWriter(tmp_path / "run", HEADER) as again:
        assert again.done == {(0, 0), (2, 0)}


def test_a_changed_unit_of_a_shard_is_not_joined(tmp_path: Path) -> None:
    file = begun(tmp_path / "shard")
    part = json.loads(file.read_bytes())
    CONTRADICTIONS["an id more"](part)
    file.write_text(json.dumps(part), encoding="utf-8")
    with RunWriter(tmp_path / "run", HEADER) as writer, pytest.raises(ConfigError, match=r"00001-000\.json"):
        writer.adopt([tmp_path / "shard"], [(number, 0) for number in range(3)])
