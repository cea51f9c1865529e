"""Every number, setting, exhibit and feature that the papers print, loaded from `data/` and validated.

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
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd

from ssd_bench.errors import ConfigError

DATA = Path(__file__).with_name("data")
PAPERS = ("knapspec", "knn-ssd", "swift", "swift-v1", "conflayers")
BOUNDS = ("", "low", "high", "max", "about")
COLUMNS = {
    "results": ("paper", "exhibit", "model", "method", "task", "setting", "metric", "value", "unit", "note"),
    "settings": ("paper", "exhibit", "key", "value", "source_section"),
    "exhibits": (*("paper", "exhibit", "title", "content", "models", "tasks", "methods", "numbers_in_text", "note"),),
    "features": ("paper", "exhibit", "method", "feature", "value", "note"),
    "statistics": ("paper", "metric", "statistic", "baseline", "meaning", "source"),
}
# metric: its unit and the range of a value that can be one
METRICS = {
    "M": ("tokens", 1, 100),
    "accuracy": ("fraction", 0, 1),
    "alpha": ("fraction", 0, 1),
    "alpha_improvement_pct": ("%", 0, 100),
    "cited_speedup": ("x", 0.5, 5),
    "expected_speedup": ("x", 0.5, 3),
    "gpu_count": ("count", 1, 1e4),
    "iterations": ("count", 1, 1e5),
    "layer_index": ("index", 1, 200),
    "matchness": ("fraction", 0, 1),
    "memory_reduction_pct": ("%", 0, 100),
    "n_accepted": ("tokens", 0, 100),
    "n_layers": ("count", 1, 200),
    "optimization_latency_ratio": ("x", 0, 1e4),
    "optimization_latency_s": ("s", 0, 1e6),
    "optimization_time_reduction": ("x", 1, 1e4),
    "output_token_share_pct": ("%", 0, 100),
    "overhead_pct": ("%", 0, 100),
    "pearson": ("correlation", -1, 1),
    "rouge2": ("fraction", 0, 1),
    "skip_ratio": ("fraction", 0, 1),
    "speedup": ("x", 0.5, 3),
    "speedup_improvement_pct": ("%", 0, 100),
    "step_latency_ms": ("ms", 0, 1e4),
    "tokens_per_s": ("tokens/s", 0, 1e4),
    "tpt": ("tokens/time", 0, 1e4),
    "training_days": ("days", 0, 1e3),
    "training_samples": ("count", 1, 1e9),
    "training_steps": ("count", 1, 1e9),
}
SETTING_KEYS = {  # settings that tell one number of an exhibit from another, and are part of its id
    *("mix_ratio", "pass@k", "gamma", "skip_set", "observation", "ablation", "optimizer", "iterations", "point"),
    *("aggregate", "clusters", "vs", "tau", "opt_interval", "component", "pair", "when", "window", "panel"),
}
CONDITIONS = {  # settings under which a number was measured, the same for all numbers it could be mistaken for
    *("decoding", "temperature", "skip_ratio", "out_of_domain", "samples", "hardware", "stream", "n_per_task", "k"),
    *("drafts", "phase", "part", "n_samples", "source", "context", "purpose", "gpu", "gpus", "dataset", "aspect"),
    *("layers", "search_round", "bound"),
}


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


@dataclass(frozen=True)
class Statistic:
    """What a paper's metric is, where papers that use its name differ.

    Attributes:
        statistic: ours that is counted alike, over our AR, by its name in `metrics.summarise`.
        baseline: what the paper divides by: ar, plain decoding in the method's own loop, as ours; hf, Hugging Face
            `generate`; "" for a metric that is over nothing.
        meaning: in words.
    """

    statistic: str
    baseline: str
    meaning: str


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
def statistics() -> Mapping[tuple[str, str], Statistic]:
    """By (paper, metric), of those metrics that papers count in ways of their own.

    Raises:
        ConfigError: the data does not fit its schema.
    """
    path, found = DATA / "statistics.csv", dict[tuple[str, str], Statistic]()
    for line, row in _rows("statistics", path):
        key = row["paper"], row["metric"]
        if row["metric"] not in METRICS or key in found:
            _refuse(path, line, "metric", row["metric"], "a metric, once a paper")
        if row["baseline"] not in ("", "ar", "hf"):
            _refuse(path, line, "baseline", row["baseline"], "ar, hf or nothing")
        found[key] = Statistic(row["statistic"], row["baseline"], row["meaning"])
    return found


@cache
def numbers(path: Path = DATA / "results.csv") -> tuple[Number, ...]:
    """All reported numbers, validated.

    Raises:
        ConfigError: a row that does not fit; names the file, the line and the column.
    """
    listed = {(row["paper"], row["exhibit"]) for _, row in _rows("exhibits", DATA / "exhibits.csv")}
    found: dict[str, Number] = {}
    for line, row in _rows("results", path):
        number = _number(row, line, path, listed)
        if number.id in found:
            _refuse(path, line, "id", number.id, f"another name than line {found[number.id].line} has")
        found[number.id] = number
    return tuple(found.values())


@cache
def layer_sets() -> Mapping[str, Mapping[str, Any]]:
    """The layer sets that authors released, by `paper/model/task`: n_layers, skip_attn, skip_mlp, source."""
    known = json.loads((files("methods") / "published_layer_sets.json").read_text(encoding="utf-8"))
    return {name: entry for name, entry in known.items() if not name.startswith("ssd-bench/")}


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


def _number(row: Mapping[str, str], line: int, path: Path, listed: Collection[tuple[str, str]]) -> Number:
    """A validated row; its id is paper/exhibit/model/method/task/settings/metric/bound without the empty parts."""

    def need(fine: bool, column: str, allowed: str) -> None:
        if not fine:
            _refuse(path, line, column, row[column], allowed)

    metric, printed = row["metric"], row["value"]
    named = (row["paper"], row["exhibit"])
    need(metric in METRICS, "metric", f"one of {', '.join(METRICS)}")
    unit, low, high = METRICS[metric]
    need(row["unit"] == unit, "unit", f"{unit}, the unit of {metric}")
    need(bool(re.fullmatch(r"\d+(\.\d+)?", printed)), "value", "a plain decimal number")
    value = float(printed)
    need(low <= value <= high, "value", f"{metric} within {low:g} to {high:g}")
    prose = re.fullmatch(r"abstract|text (§|App\. )\S+", row["exhibit"])
    need(bool(prose) or named in listed, "exhibit", "a table or figure of exhibits.csv, abstract, or text §…")
    try:
        given = parse_setting(row["setting"])
    except ValueError as error:
        _refuse(path, line, "setting", row["setting"], f"k=v;k=v ({error})")
    need(given.keys() <= SETTING_KEYS | CONDITIONS, "setting", "known keys only")
    bound = given.get("bound", "")
    need(bound in BOUNDS, "setting", f"a bound of {', '.join(BOUNDS[1:])}")
    telling = [f"{key}={text}" if key != "pass@k" else f"pass@{text}" for key, text in given.items()]
    telling = [text for key, text in zip(given, telling) if key in SETTING_KEYS]
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
    path, seen = DATA / f"{name}.csv", dict[tuple[str, ...], int]()
    listed = {(row["paper"], row["exhibit"]) for _, row in _rows("exhibits", DATA / "exhibits.csv")}
    rows = []
    for line, row in _rows(name, path):
        named = tuple(row[column] for column in key)
        if named in seen:
            _refuse(path, line, "/".join(key), " / ".join(named), f"unique, but line {seen[named]} has it too")
        seen[named] = line
        if row["exhibit"].startswith(("Table", "Figure")) and (row["paper"], row["exhibit"]) not in listed:
            _refuse(path, line, "exhibit", row["exhibit"], "a table or figure of exhibits.csv")
        if row.get("numbers_in_text", "no") not in ("yes", "partly", "no"):
            _refuse(path, line, "numbers_in_text", row["numbers_in_text"], "yes, partly or no")
        rows.append(row)
    return pd.DataFrame(rows, columns=list(COLUMNS[name]), dtype="str")


def _rows(name: str, path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a file with their line numbers; columns and papers are checked."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        if tuple(header) != COLUMNS[name]:
            _refuse(path, 1, "header", ",".join(header), ",".join(COLUMNS[name]))
        for cells in reader:
            if len(cells) != len(header):
                _refuse(path, reader.line_num, "row", ",".join(cells), f"{len(header)} cells")
            row = dict(zip(header, cells))
            if row["paper"] not in PAPERS:
                _refuse(path, reader.line_num, "paper", row["paper"], f"one of {', '.join(PAPERS)}")
            yield reader.line_num, row


def _refuse(path: Path, line: int, column: str, value: object, allowed: str) -> NoReturn:
    raise ConfigError(f"{path.name}:{line} {column}", value, allowed)
