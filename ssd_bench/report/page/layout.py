"""One exhibit's numbers as an HTML table in the paper's layout, each number a cell's part with its id and verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

import pandas as pd

from ssd_bench.papers import verdict
from ssd_bench.report.exhibits import tables
from ssd_bench.report.page.markup import grid, joined, tag

MARKS = {  # signs that differ in form, not by colour alone
    verdict.AGREES: ("✓", "agrees"),
    verdict.DIFFERS: ("✗", "differs"),
    verdict.BY_DEFINITION: ("≡", "definition"),
    verdict.OTHER_MODEL: ("○", "model"),
    verdict.OTHER_SCALE: ("◇", "scale"),
    verdict.OTHER_HARDWARE: ("△", "hardware"),
}
MEANING = {
    verdict.AGREES: "the paper's own model and prompts (for speed: its hardware too), and its value lies in our 95 % "
    "interval, widened by rounding and a tolerance",
    verdict.DIFFERS: "the same, and it does not",
    verdict.BY_DEFINITION: "1 for plain decoding, here as there",
    verdict.OTHER_MODEL: "ours is of another model, so the values say nothing about each other; the order may",
    verdict.OTHER_SCALE: "the paper's model, but fewer or other prompts",
    verdict.OTHER_HARDWARE: "a speed on a machine that the paper does not name: no verdict",
    "no run yet": "the command that is named makes it",
    "not run": "the experiment leaves it out and says why",
    "undefined": "the runs are there, but they do not define it",
    "not measurable": "no run of ours can give it: a claim, a cited number, or a quantity that is not recorded",
}
Place = tuple[tuple[str, str, str], tuple[str, str]]


@dataclass
class _Grid:
    """Rows by model, columns by task; a cell holds HTML of one or more numbers."""

    rows: dict[str, dict[tuple[str, str], dict[tuple[str, str], list[str]]]] = field(default_factory=dict)
    columns: dict[str, list[str]] = field(default_factory=dict)

    def add(self, place: Place, content: str) -> None:
        (model, *head), (task, metric) = place
        metrics = self.columns.setdefault(task, [])
        if metric not in metrics:
            metrics.append(metric)
        row = self.rows.setdefault(model, {}).setdefault((head[0], head[1]), {})
        row.setdefault((task, metric), []).append(content)


def table(frame: pd.DataFrame, name: str) -> str:
    """The table of an exhibit with a box to scroll in; every reported number has `data-id` once.

    Args:
        frame: as `tables.table` makes it.
        name: of the exhibit, for those who hear the page.
    """
    cells, several = _Grid(), len({scale for scale in frame["scale"] if scale}) > 1
    numbers: Iterable[Any] = frame.itertuples()
    for number in numbers:
        row, (task, metric) = tables.place(number)
        cells.add((row, (task, metric)), _number(number, several))
        if not math.isnan(number.estimate):
            own = f"{number.metric} (the method's own estimate)"
            cells.add((row, (task, own)), tag("span", f"{number.estimate:.{tables.DIGITS}f}", class_="n"))
    caption = tag("caption", escape(f"{name}: ours / the paper's"), class_="hidden")
    return grid(tag("table", caption, _head(cells.columns), *_bodies(cells), class_="wide"), f"Numbers of {name}")


def _number(number: Any, several: bool) -> str:
    ours, _, theirs = tables.cell(number, with_scale=several).rpartition(" / ")
    value, _, rest = ours.partition(" ")
    sign, style = MARKS.get(number.verdict, ("", "none"))
    mark = tag("i", sign, role="img", aria_label=number.verdict) if sign else ""
    shown = tag("b", escape(value)) + (tag("small", escape(f" {rest}")) if rest else "")
    title = f"{number.kind or 'not compared'}: {number.verdict}" + (f"; {number.reason}" if number.reason else "")
    return tag(
        "span", shown, f" / {escape(theirs)}", mark, class_=f"n v-{style}", data_id=number.id, title=title
    )  # fmt: skip


def _head(columns: Mapping[str, list[str]]) -> str:
    """Two rows: tasks over metrics; the first is left out where no task is named."""
    rows = []
    corner = tag("th", "method", scope="col", rowspan="2" if any(columns) else None)
    if any(columns):
        tasks = [
            tag("th", escape(task), scope="colgroup", colspan=str(len(metrics)), data_task=joined([task]))
            for task, metrics in columns.items()
        ]
        rows.append(tag("tr", corner, *tasks))
        corner = ""
    names = [
        tag("th", escape(_label(metric)), scope="col", data_task=joined([task]))
        for task, metrics in columns.items()
        for metric in metrics
    ]
    return tag("thead", *rows, tag("tr", corner, *names))


def _label(metric: str) -> str:
    for written, shown in (("alpha", "α"), ("tpt", "TPT"), ("_pct", ""), ("rouge2", "ROUGE-2"), ("_", " ")):
        metric = metric.replace(written, shown)
    return metric


def _bodies(cells: _Grid) -> Iterable[str]:
    """One a model, headed by its name."""
    places = [(task, metric) for task, metrics in cells.columns.items() for metric in metrics]
    for model, rows in cells.rows.items():
        head = tag("th", tag("span", escape(model)), scope="rowgroup", colspan=str(len(places) + 1))
        lines = [tag("tr", head, class_="model")] if model else []
        for (method, setting), row in rows.items():
            name = escape(method or "–") + (tag("small", escape(setting)) if setting else "")
            parts = [
                tag("td", *row.get(place, ()), data_task=joined([place[0]]), class_=None if place in row else "none")
                for place in places
            ]
            lines.append(tag("tr", tag("th", name, scope="row"), *parts, data_model=model, data_method=method))
        yield tag("tbody", *lines)


def legend() -> str:
    """What the marks and words of verdicts mean."""
    rows = []
    for word in verdict.VERDICTS:
        sign, style = MARKS.get(word, ("–", "none"))
        mark = tag("span", tag("i", sign, aria_hidden="true"), class_=f"n v-{style}")
        rows.append(tag("div", tag("dt", mark, " ", escape(word)), tag("dd", escape(MEANING[word]))))
    return tag("dl", *rows, class_="legend")
