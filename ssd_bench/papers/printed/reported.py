"""Every printed number, setting, exhibit and feature, loaded from the papers' folders and validated.

Values keep their printed digits; percentages of alpha and skip ratio are stored as fractions. Rows of text
(`text §5.2`, `abstract`, figure captions) may repeat results of tables. `speedup` is measured, `expected_speedup` comes
from a formula, `cited_speedup` is quoted from other papers; `tpt` has no printed unit.
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

from ssd_bench.conf import read_yaml
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.errors import ConfigError
from ssd_bench.papers.printed.catalogue import FOLDER, PaperFolder, paper_folders

BOUNDS = ("", "low", "high", "max", "about")
COLUMNS = {
    "results": ("paper", "exhibit", "model", "method", "task", "setting", "metric", "value", "unit", "note"),
    "settings": ("paper", "exhibit", "key", "value", "source_section"),
    "exhibits": (*("paper", "exhibit", "title", "content", "models", "tasks", "methods", "numbers_in_text", "note"),),
    "features": ("paper", "exhibit", "method", "feature", "value", "note"),
}
KEYS = {"settings": COLUMNS["settings"][:3], "exhibits": COLUMNS["exhibits"][:2], "features": COLUMNS["features"][:4]}
"""Columns that differ between any two rows of a file."""


@dataclass(frozen=True)
class Metric:
    """Metric of the papers, as explained in `metrics.yaml`; `within` is an absolute and a relative tolerance."""

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
    content = read_yaml(FOLDER / "metrics.yaml")
    for entry in content.values():
        if "within" in entry:  # "5 %" is a relative tolerance, "0.02" an absolute one
            text = str(entry["within"])
            relative = text.endswith("%")
            entry["within"] = (0.0, float(text[:-1]) / 100) if relative else (float(text), 0.0)
    return {name: Metric(**entry) for name, entry in content.items()}


METRICS = _metrics()


@dataclass(frozen=True)
class Number:
    """Reported number; `half` is half a unit of its last printed digit, `line` its line in results.csv."""

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

    def label(self, name: str) -> object:
        """Return a field, or the value of a key of `settings`."""
        return getattr(self, name) if name in self.__dataclass_fields__ else self.settings.get(name)


def settings(paper: str | None = None, exhibit: str | None = None) -> pd.DataFrame:
    """Return each exhibit's settings: paper, exhibit, key, value, source_section."""
    return _frame("settings", paper, exhibit)


def exhibits(paper: str | None = None, exhibit: str | None = None) -> pd.DataFrame:
    """Return all tables and figures; models, tasks and methods are texts, numbers_in_text is yes, partly or no."""
    return _frame("exhibits", paper, exhibit)


def features(paper: str | None = None, exhibit: str | None = None) -> pd.DataFrame:
    """Return the papers' tables of features: paper, exhibit, method, feature, value, note."""
    return _frame("features", paper, exhibit)


@cache
def numbers() -> tuple[Number, ...]:
    """Return all validated numbers, paper by paper.

    Raises:
        ConfigError: an invalid row; names file, line and column.
    """
    return tuple(number for folder in paper_folders() if folder.numbers for number in read_numbers(folder))


def find_numbers(paper: str, exhibit: str | None = None, **wanted: object) -> list[Number]:
    """Return a paper's or exhibit's numbers with all `wanted` values (fields of `Number`, or keys of `settings`)."""
    return [*_numbers_by(paper, exhibit, tuple(wanted)).get(tuple(wanted.values()), ())]


@cache
def _numbers_by(paper: str, exhibit: str | None, names: tuple[str, ...]) -> dict[tuple[object, ...], list[Number]]:
    """Return an exhibit's, or a whole paper's, numbers by their values of these names."""
    by_values: dict[tuple[object, ...], list[Number]] = {}
    for number in numbers():
        if number.paper == paper and exhibit in (None, number.exhibit):
            by_values.setdefault(tuple(number.label(name) for name in names), []).append(number)
    return by_values


def find_number(paper: str, exhibit: str, **wanted: object) -> Number:
    """Return the number with all `wanted` values; arguments as in `find_numbers`.

    Raises:
        LookupError: no number, or several.
    """
    matches = find_numbers(paper, exhibit, **wanted)
    if len(matches) != 1:
        raise LookupError(f"{len(matches)} numbers have {paper} {exhibit} {wanted}")
    return matches[0]


def read_numbers(folder: PaperFolder) -> list[Number]:
    """Return one paper's reported numbers.

    Raises:
        ConfigError: as `numbers`.
    """
    if unknown := folder.counts.keys() - METRICS:
        raise ConfigError(f"{folder.name}/paper.yaml counts", sorted(unknown), "a metric of metrics.yaml each")
    known_exhibits = {(row["paper"], row["exhibit"]) for _, row in _rows("exhibits", folder)}
    numbers_by_id: dict[str, Number] = {}
    for line, row in _rows("results", folder):
        number = _number(row, line, folder, known_exhibits)
        if number.id in numbers_by_id:
            expected = f"a unique id; line {numbers_by_id[number.id].line} has it too"
            _refuse(folder, "results", line, "id", number.id, expected)
        numbers_by_id[number.id] = number
    return list(numbers_by_id.values())


@cache
def layer_sets() -> Mapping[str, Mapping[str, Any]]:
    """Return the authors' released layer sets by `paper/model/task`: n_layers, skip_attn, skip_mlp, source."""
    published = json.loads((files("methods") / "published_layer_sets.json").read_text(encoding="utf-8"))
    return {name: entry for name, entry in published.items() if not name.startswith("ssd-bench/")}


def share_skipped(paper: str, model: str, task: str, inner: bool = False) -> float:
    """Return the share of sublayers skipped in a released set; `inner`: of those between the first and last block."""
    layers = released_set(paper, model, task)
    assert layers is not None, f"{paper} has no set for {model} on {task}"
    return len(layers.skipped) / (2 * (layers.n_layers - (2 if inner else 0)))


def released_set(paper: str, model: str, task: str) -> LayerSet | None:
    """Return a set released by the authors, or None; model and task may be as in the paper, or as in the set's name."""
    entry = layer_sets().get(f"{paper}/{model.lower()}/{task.lower().replace('/', '').replace(' ', '-')}")
    return None if entry is None else LayerSet.skipping(entry["n_layers"], entry["skip_attn"], entry["skip_mlp"])


def parse_setting(text: str) -> dict[str, str]:
    """Parse `k=v;k=v` as a mapping; `pass@1` becomes `pass@k` = 1.

    Raises:
        ValueError: another form, or a repeated key.
    """
    setting: dict[str, str] = {}
    for part in filter(None, text.split(";")):
        key, equals, value = part.partition("=")
        if re.fullmatch(r"pass@\d+", part):
            key, value = "pass@k", part.removeprefix("pass@")
        elif not equals or not key or not value:
            raise ValueError(f"{part!r} is not key=value")
        if key in setting:
            raise ValueError(f"{key} is given twice")
        setting[key] = value
    return setting


def slug(text: str) -> str:
    """Return a name as part of an id: lower case, dots only within numbers, hyphens for other characters."""
    name = re.sub(r"^(table|figure) (?=\d)", r"\1", text.lower())
    name = re.sub(r"(?<!\d)\.|\.(?!\d)", "", name)
    return re.sub(r"[^a-z0-9_.=@]+", "-", name).strip("-")


def _number(
    row: Mapping[str, str], line: int, folder: PaperFolder, known_exhibits: Collection[tuple[str, str]]
) -> Number:
    """Return a validated row; its id is paper/exhibit/model/method/task/settings/metric/bound without empty parts."""

    def require(fits: bool, column: str, expected: str) -> None:
        if not fits:
            _refuse(folder, "results", line, column, row[column], expected)

    metric, printed = row["metric"], row["value"]
    exhibit = (row["paper"], row["exhibit"])
    require(metric in METRICS, "metric", f"one of {', '.join(METRICS)}")
    unit, (low, high) = METRICS[metric].unit, METRICS[metric].range
    require(row["unit"] == unit, "unit", f"{unit}, the unit of {metric}")
    require(bool(re.fullmatch(r"\d+(\.\d+)?", printed)), "value", "a plain decimal number")
    value = float(printed)
    require(low <= value <= high, "value", f"{metric} within {low:g} to {high:g}")
    prose = re.fullmatch(r"abstract|text (§|App\. )\S+", row["exhibit"])
    require(
        bool(prose) or exhibit in known_exhibits, "exhibit", "a table or figure of exhibits.csv, abstract, or text §…"
    )
    try:
        setting = parse_setting(row["setting"])
    except ValueError as error:
        _refuse(folder, "results", line, "setting", row["setting"], f"k=v;k=v ({error})")
    known_keys = {"bound", *folder.telling, *folder.conditions}
    require(setting.keys() <= known_keys, "setting", "keys of paper.yaml")
    bound = setting.get("bound", "")
    require(bound in BOUNDS, "setting", f"a bound of {', '.join(BOUNDS[1:])}")
    telling = [f"{key}={text}" if key != "pass@k" else f"pass@{text}" for key, text in setting.items()]
    telling = [text for key, text in zip(setting, telling) if key in folder.telling]
    value_part = printed if metric == "layer_index" else ""  # the only metric with several values in one figure
    parts = (*exhibit, row["model"], row["method"], row["task"], *telling)
    name = "/".join([*map(slug, filter(None, parts)), *filter(None, (metric, bound, value_part))])
    half = 0.5 * 10.0 ** -len(printed.partition(".")[2])
    labels = {key: row[key] for key in ("paper", "exhibit", "model", "method", "task", "setting", "unit", "note")}
    labels |= {"id": name, "bound": bound, "metric": metric, "printed": printed}
    return Number(**labels, value=value, half=half, line=line, settings=setting)


@cache
def _frame(name: str, paper: str | None, exhibit: str | None) -> pd.DataFrame:
    """Return a file of all papers as texts, or its rows for a paper or exhibit."""
    if paper is None:
        rows = [row for folder in paper_folders() if folder.numbers for row in _unique_rows(name, folder)]
        return pd.DataFrame(rows, columns=list(COLUMNS[name]), dtype="str")
    frame = _frame(name, None, None)
    of_exhibit = (frame["paper"] == paper) & ((exhibit is None) | (frame["exhibit"] == exhibit))
    return frame[of_exhibit].reset_index(drop=True)


def _unique_rows(name: str, folder: PaperFolder) -> Iterator[dict[str, str]]:
    """Yield the rows of one file of a paper.

    Raises:
        ConfigError: a repeated key, or an unknown exhibit.
    """
    lines_by_key = dict[tuple[str, ...], int]()
    known_exhibits = {(row["paper"], row["exhibit"]) for _, row in _rows("exhibits", folder)}
    for line, row in _rows(name, folder):
        row_key = tuple(row[column] for column in KEYS[name])
        if row_key in lines_by_key:
            expected = f"unique, but line {lines_by_key[row_key]} has it too"
            _refuse(folder, name, line, "/".join(KEYS[name]), " / ".join(row_key), expected)
        lines_by_key[row_key] = line
        if row["exhibit"].startswith(("Table", "Figure")) and (row["paper"], row["exhibit"]) not in known_exhibits:
            _refuse(folder, name, line, "exhibit", row["exhibit"], "a table or figure of exhibits.csv")
        if row.get("numbers_in_text", "no") not in ("yes", "partly", "no"):
            _refuse(folder, name, line, "numbers_in_text", row["numbers_in_text"], "yes, partly or no")
        yield row


def _rows(name: str, folder: PaperFolder) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line number and row of a paper's file, if it exists, by version; check columns and versions.

    A row of several versions names all.
    """
    path, rows = folder.path / f"{name}.csv", list[tuple[int, dict[str, str]]]()
    if not path.is_file():
        return
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        if tuple(header) != COLUMNS[name]:
            _refuse(folder, name, 1, "header", ",".join(header), ",".join(COLUMNS[name]))
        for cells in reader:
            if len(cells) != len(header):
                _refuse(folder, name, reader.line_num, "row", ",".join(cells), f"{len(header)} cells")
            row = dict(zip(header, cells))
            if not {*row["paper"].split()} <= folder.versions.keys() or not row["paper"]:
                _refuse(folder, name, reader.line_num, "paper", row["paper"], f"one of {', '.join(folder.versions)}")
            rows.append((reader.line_num, row))
    for version in folder.versions:
        yield from ((line, row | {"paper": version}) for line, row in rows if version in row["paper"].split())


def _refuse(folder: PaperFolder, name: str, line: int, column: str, value: object, expected: str) -> NoReturn:
    raise ConfigError(f"{folder.name}/{name}.csv:{line} {column}", value, expected)
