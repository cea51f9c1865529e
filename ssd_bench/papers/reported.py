"""Every number, setting, exhibit and feature that the papers print, loaded from the papers' rooms and validated.

Values keep their printed digits; percentages of alpha and skip ratio are stored as fractions. Rows of tables are the
papers' results; rows of prose (`text §5.2`, `abstract`, figure captions) may repeat them. `speedup` is measured,
`expected_speedup` comes from a formula, `cited_speedup` is quoted from other papers; `tpt` has no printed unit.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, NoReturn

import pandas as pd
import yaml

from ssd_bench.errors import ConfigError
from ssd_bench.papers.rooms import FOLDER, Room, rooms

BOUNDS = ("", "low", "high", "max", "about")
COLUMNS = {
    "results": ("paper", "exhibit", "model", "method", "task", "setting", "metric", "value", "unit", "note"),
    "settings": ("paper", "exhibit", "key", "value", "source_section"),
    "exhibits": (*("paper", "exhibit", "title", "content", "models", "tasks", "methods", "numbers_in_text", "note"),),
    "features": ("paper", "exhibit", "method", "feature", "value", "note"),
}


@dataclass(frozen=True)
class Metric:
    """One metric of the papers, as `metrics.yaml` describes it.

    Attributes:
        within: absolute and relative tolerance; None: there is nothing to compare.
    """

    unit: str
    range: tuple[float, float]
    kind: str = ""
    within: tuple[float, float] | None = None
    ranked: bool = False
    ours: str | None = None
    of_ar: str | None = None
    by_definition: bool = False
    why_not: str = ""


def _metrics() -> dict[str, Metric]:
    content = yaml.safe_load((FOLDER / "metrics.yaml").read_text(encoding="utf-8"))
    for described in content.values():
        if "within" in described:
            text = str(described["within"])
            share = text.endswith("%")
            described["within"] = (0.0, float(text[:-1]) / 100) if share else (float(text), 0.0)
    return {name: Metric(**described) for name, described in content.items()}


METRICS = _metrics()


@dataclass(frozen=True)
class Number:
    """One reported number; `half` is half a unit of its last printed digit, `line` its line in results.csv."""

    id: str
    paper: str
    exhibit: str
    model: str
    method: str
    task: str
    setting: str
    bound: str
    metric: str
    value: float
    printed: str
    half: float
    unit: str
    note: str
    line: int
    settings: Mapping[str, str] = field(repr=False)


def results(
    paper: str | None = None,
    exhibit: str | None = None,
    *,
    model: str | None = None,
    method: str | None = None,
    task: str | None = None,
    metric: str | None = None,
    setting: Mapping[str, str] | None = None,
    tables_only: bool = False,
) -> pd.DataFrame:
    """The reported numbers that have all given values, one row each, in the order of the file.

    Args:
        setting: key: value pairs that a row's setting must contain.
        tables_only: leave out prose, captions and figures.

    Raises:
        ConfigError: the data does not fit its schema.
    """
    where = {"paper": paper, "exhibit": exhibit, "model": model, "method": method, "task": task, "metric": metric}
    wanted = {key: value for key, value in where.items() if value is not None}
    columns = [name for name in Number.__dataclass_fields__ if name != "settings"]
    rows = [
        [getattr(number, name) for name in columns]
        for number in numbers()
        if all(getattr(number, key) == value for key, value in wanted.items())
        and (not setting or setting.items() <= number.settings.items())
        and (not tables_only or number.exhibit.startswith("Table"))
    ]
    return pd.DataFrame(rows, columns=columns).astype({"value": "float64", "half": "float64", "line": "int64"})


def settings(paper: str | None = None, exhibit: str | None = None) -> pd.DataFrame:
    """What each exhibit was run with: paper, exhibit, key, value, source_section."""
    return _frame("settings", ("paper", "exhibit", "key"), paper, exhibit)


def exhibits(paper: str | None = None, exhibit: str | None = None) -> pd.DataFrame:
    """Every table and figure; models, tasks and methods are texts, numbers_in_text is yes, partly or no."""
    return _frame("exhibits", ("paper", "exhibit"), paper, exhibit)


def features(paper: str | None = None, exhibit: str | None = None) -> pd.DataFrame:
    """The papers' tables of features: paper, exhibit, method, feature, value, note."""
    return _frame("features", ("paper", "exhibit", "method", "feature"), paper, exhibit)


@cache
def numbers() -> tuple[Number, ...]:
    """All reported numbers, validated, paper by paper.

    Raises:
        ConfigError: a row that does not fit; names the file, the line and the column.
    """
    return tuple(number for room in _with_numbers() for number in read(room))


def _with_numbers() -> list[Room]:
    return [room for room in rooms() if room.numbers]


def read(room: Room) -> list[Number]:
    """The reported numbers of one paper; as `numbers`."""
    if unknown := room.counts.keys() - METRICS:
        raise ConfigError(f"{room.name}/paper.yaml counts", sorted(unknown), "a metric of metrics.yaml each")
    listed = {(row["paper"], row["exhibit"]) for _, row in _rows("exhibits", room)}
    found: dict[str, Number] = {}
    for line, row in _rows("results", room):
        number = _number(row, line, room, listed)
        if number.id in found:
            _refuse(room, "results", line, "id", number.id, f"another name than line {found[number.id].line} has")
        found[number.id] = number
    return list(found.values())


@cache
def layer_sets() -> Mapping[str, Mapping[str, Any]]:
    """The layer sets that authors released, by `paper/model/task`: n_layers, skip_attn, skip_mlp, source."""
    known = json.loads((files("methods") / "published_layer_sets.json").read_text(encoding="utf-8"))
    return {name: entry for name, entry in known.items() if not name.startswith("ssd-bench/")}


def share_skipped(paper: str, model: str, task: str, inner: bool = False) -> float:
    """The share of sublayers that a published set skips, of all 2L or of those between first and last block."""
    entry = layer_sets()[layer_set_name(paper, model, task)]
    blocks = entry["n_layers"] - (2 if inner else 0)
    return float(len(entry["skip_attn"]) + len(entry["skip_mlp"])) / (2 * blocks)


def layer_set_name(paper: str, model: str, task: str) -> str:
    """The name of a released set: names of models and tasks as the papers write them, or already in that form."""
    return f"{paper}/{model.lower()}/{task.lower().replace('/', '').replace(' ', '-')}"


def parse_setting(text: str) -> dict[str, str]:
    """`k=v;k=v` as a mapping; `pass@1`, which stands alone in the files, is `pass@k` = 1.

    Raises:
        ValueError: a part that is neither, or a key given twice.
    """
    found: dict[str, str] = {}
    for part in filter(None, text.split(";")):
        key, equals, value = part.partition("=")
        if re.fullmatch(r"pass@\d+", part):
            key, value = "pass@k", part.removeprefix("pass@")
        elif not equals or not key or not value:
            raise ValueError(f"{part!r} is not key=value")
        if key in found:
            raise ValueError(f"{key} is given twice")
        found[key] = value
    return found


def slug(text: str) -> str:
    """A name as a part of an id: lower case, dots only within numbers, hyphens for the rest."""
    name = re.sub(r"^(table|figure) (?=\d)", r"\1", text.lower())
    name = re.sub(r"(?<!\d)\.|\.(?!\d)", "", name)
    return re.sub(r"[^a-z0-9_.=@]+", "-", name).strip("-")


def _number(row: Mapping[str, str], line: int, room: Room, listed: Collection[tuple[str, str]]) -> Number:
    """A validated row; its id is paper/exhibit/model/method/task/settings/metric/bound without the empty parts."""

    def need(fine: bool, column: str, allowed: str) -> None:
        if not fine:
            _refuse(room, "results", line, column, row[column], allowed)

    metric, printed = row["metric"], row["value"]
    named = (row["paper"], row["exhibit"])
    need(metric in METRICS, "metric", f"one of {', '.join(METRICS)}")
    unit, (low, high) = METRICS[metric].unit, METRICS[metric].range
    need(row["unit"] == unit, "unit", f"{unit}, the unit of {metric}")
    need(bool(re.fullmatch(r"\d+(\.\d+)?", printed)), "value", "a plain decimal number")
    value = float(printed)
    need(low <= value <= high, "value", f"{metric} within {low:g} to {high:g}")
    prose = re.fullmatch(r"abstract|text (§|App\. )\S+", row["exhibit"])
    need(bool(prose) or named in listed, "exhibit", "a table or figure of exhibits.csv, abstract, or text §…")
    try:
        given = parse_setting(row["setting"])
    except ValueError as error:
        _refuse(room, "results", line, "setting", row["setting"], f"k=v;k=v ({error})")
    known = {"bound", *room.telling, *room.conditions}
    need(given.keys() <= known, "setting", "known keys only, those that paper.yaml lists")
    bound = given.get("bound", "")
    need(bound in BOUNDS, "setting", f"a bound of {', '.join(BOUNDS[1:])}")
    telling = [f"{key}={text}" if key != "pass@k" else f"pass@{text}" for key, text in given.items()]
    telling = [text for key, text in zip(given, telling) if key in room.telling]
    several = printed if metric == "layer_index" else ""  # the one metric of which a figure names several values
    parts = (*named, row["model"], row["method"], row["task"], *telling)
    name = "/".join([*map(slug, filter(None, parts)), *filter(None, (metric, bound, several))])
    fields = {key: row[key] for key in ("paper", "exhibit", "model", "method", "task", "setting", "unit", "note")}
    half = 0.5 * 10.0 ** -len(printed.partition(".")[2])
    return Number(
        id=name,
        bound=bound,
        metric=metric,
        value=value,
        printed=printed,
        half=half,
        line=line,
        settings=given,
        **fields,
    )


def _frame(name: str, key: tuple[str, ...], paper: str | None, exhibit: str | None) -> pd.DataFrame:
    frame = _checked(name, key)
    for column, value in (("paper", paper), ("exhibit", exhibit)):
        if value is not None:
            frame = frame[frame[column] == value]
    return frame.reset_index(drop=True)


@cache
def _checked(name: str, key: tuple[str, ...]) -> pd.DataFrame:
    rows = [row for room in _with_numbers() for row in _unique(name, key, room)]
    return pd.DataFrame(rows, columns=list(COLUMNS[name]), dtype="str")


def _unique(name: str, key: tuple[str, ...], room: Room) -> Iterator[dict[str, str]]:
    seen = dict[tuple[str, ...], int]()
    listed = {(row["paper"], row["exhibit"]) for _, row in _rows("exhibits", room)}
    for line, row in _rows(name, room):
        named = tuple(row[column] for column in key)
        if named in seen:
            unique = f"unique, but line {seen[named]} has it too"
            _refuse(room, name, line, "/".join(key), " / ".join(named), unique)
        seen[named] = line
        if row["exhibit"].startswith(("Table", "Figure")) and (row["paper"], row["exhibit"]) not in listed:
            _refuse(room, name, line, "exhibit", row["exhibit"], "a table or figure of exhibits.csv")
        if row.get("numbers_in_text", "no") not in ("yes", "partly", "no"):
            _refuse(room, name, line, "numbers_in_text", row["numbers_in_text"], "yes, partly or no")
        yield row


def _rows(name: str, room: Room) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of one of a paper's files with their line numbers, if it has that, version by version.

    A row that several versions have names them all; columns and versions are checked.
    """
    path, found = room.folder / f"{name}.csv", list[tuple[int, dict[str, str]]]()
    if not path.is_file():
        return
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        if tuple(header) != COLUMNS[name]:
            _refuse(room, name, 1, "header", ",".join(header), ",".join(COLUMNS[name]))
        for cells in reader:
            if len(cells) != len(header):
                _refuse(room, name, reader.line_num, "row", ",".join(cells), f"{len(header)} cells")
            row = dict(zip(header, cells))
            if not {*row["paper"].split()} <= room.versions.keys() or not row["paper"]:
                _refuse(room, name, reader.line_num, "paper", row["paper"], f"one of {', '.join(room.versions)}")
            found.append((reader.line_num, row))
    for version in room.versions:
        yield from ((line, row | {"paper": version}) for line, row in found if version in row["paper"].split())


def _refuse(room: Room, name: str, line: int, column: str, value: object, allowed: str) -> NoReturn:
    raise ConfigError(f"{room.name}/{name}.csv:{line} {column}", value, allowed)
