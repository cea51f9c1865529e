"""The paper's layout of a long table: our rows, headed by the model that ran, above the paper's rows for its models."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from ssd_bench.metrics.text import ABSENT, DECODE, END_TO_END
from ssd_bench.papers import verdict
from ssd_bench.papers.reported import METRICS
from ssd_bench.papers.rooms import folder_of

BOUNDS = {"": "", "low": "from ", "high": "to ", "max": "up to ", "about": "about "}
DIGITS = 2  # of ours at least, else those that the paper prints
PAPER_SPEEDUP, OWN_DECODE_SPEEDUP = f"{END_TO_END} (as the paper counts)", f"{DECODE} (ours alone)"
"""Heads of the two speedups: every paper counts prefills in."""
NONE, SAME_RUN, EXCLUDED = "ours: none", "same run", "excluded"

Column = tuple[str, str]  # task, metric


@dataclass(frozen=True)
class Entry:
    """A text in a cell.

    Attributes:
        number: the row of the long table.
        ours: whether it is of our runs.
        main: whether it is compared with the paper's number; False for what the paper does not report.
    """

    text: str
    number: Any
    ours: bool
    main: bool = True

    @property
    def identity(self) -> tuple[object, ...]:
        """Key that is equal for texts of one result, whatever their digits."""
        return self.number.result, self.number.runs, math.isnan(self.number.ours), self.main


Cells = Mapping[Column, Sequence[Entry]]


@dataclass
class RowGroup:
    """One method and setting: our rows, and the rows of the paper's models that these are compared with.

    Attributes:
        ours: label of the model that ran -> cells; `NONE` where nothing ran.
        paper: the paper's model -> cells.
    """

    method: str
    setting: str
    ours: dict[str, dict[Column, list[Entry]]] = field(default_factory=dict)
    paper: dict[str, dict[Column, list[Entry]]] = field(default_factory=dict)

    @property
    def rows(self) -> Iterator[tuple[str, Cells]]:
        """Label and cells of every row: ours first."""
        yield from self.ours.items()
        yield from ((paper_label(model), cells) for model, cells in self.paper.items())


def ours_label(number: Any, with_scale: bool = False) -> str:
    """Return the head of our number: the model that ran."""
    if not number.model_ran:
        return NONE
    return f"ours: {number.model_ran}" + (f", scale {number.scale}" if with_scale and number.scale else "")


def paper_label(model: str) -> str:
    """Return the head of a number of the paper."""
    return f"paper: {model}" if model else "paper"


def layout(frame: pd.DataFrame) -> tuple[list[Column], list[RowGroup]]:
    """Arrange a long table: columns by task, and a group of rows for every method, setting and set of our results.

    The paper's models that one set of our results stands behind share a group, so that no result is in two rows; a
    result that another group shows already reads `SAME_RUN`.
    """
    several = len({scale for scale in frame["scale"] if scale}) > 1
    rows: dict[tuple[str, str, str], RowGroup] = {}
    numbers: Iterable[Any] = frame.itertuples()
    for number in numbers:
        setting, column = _place(number)
        group = rows.setdefault((number.method, setting, number.model), RowGroup(number.method, setting))
        label = ours_label(number, several)
        group.paper.setdefault(number.model, {}).setdefault(column, []).append(_theirs(number))
        for at, entry in _ours(number, column):
            group.ours.setdefault(label, {}).setdefault(at, []).append(entry)
    groups = _merged([_without_none(group) for group in rows.values()])
    for group in groups:
        _mark_repeats(group)
    columns = list(dict.fromkeys(column for group in groups for _, cells in group.rows for column in cells))
    tasks = list(dict.fromkeys(task for task, _ in columns))
    return sorted(columns, key=lambda column: tasks.index(column[0])), groups


def wide_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a long table in the paper's layout as texts.

    Returns:
        Columns method, setting (where one tells rows apart), model, and one for each task and metric. In `model` each
        row says whose numbers it has: `ours: NAME, SIZE` of the model that ran, or `paper: NAME`. Ours have their
        interval, `ABSENT` where one is missing; a cell is "" where the paper has no number.
    """
    columns, groups = layout(frame)
    if all(set(group.ours) == {NONE} for group in groups):
        for group in groups:
            group.ours.clear()
    heads, body = [], []
    for group in groups:
        for label, cells in group.rows:
            heads.append([group.method, group.setting, label])
            body.append(["; ".join(entry.text for entry in cells.get(column, ())) for column in columns])
    names = [" ".join(filter(None, column)) for column in columns]
    index = pd.DataFrame(heads, columns=["method", "setting", "model"], dtype="str")
    kept = [name for name in index if name != "setting" or (index[name] != "").any()]
    return pd.concat([index[kept], pd.DataFrame(body, columns=names, dtype="str")], axis=1)


def column_head(metric: str, paper: str) -> str:
    """Return a metric as the head of a column: of a speedup which one, of a skip ratio of what, of others the unit."""
    if metric == "speedup":
        return PAPER_SPEEDUP
    if metric == "skip_ratio":
        inner = folder_of(paper).skip_ratio == "inner"
        return f"skip_ratio (of the sublayers {'of the inner blocks' if inner else 'of all blocks'})"
    unit = METRICS[metric].unit
    return metric if unit in ("x", "fraction", "correlation", "") else f"{metric} ({unit})"


def _place(number: Any) -> tuple[str, Column]:
    """Return setting and column of a number; the setting has what tells it from another number."""
    parts = [
        part
        for part in number.setting.split(";")
        if part.partition("=")[0] in folder_of(number.paper).telling or "pass@" in part
    ]
    return "; ".join(parts), (number.task, column_head(number.metric, number.paper))


def _theirs(number: Any) -> Entry:
    return Entry(f"{BOUNDS[number.bound]}{number.printed}", number, ours=False)


def _ours(number: Any, column: Column) -> Iterator[tuple[Column, Entry]]:
    """Yield our texts for a number with their columns: the compared one, then what the paper does not report."""
    digits = max(DIGITS, len(number.printed.partition(".")[2]))
    text = EXCLUDED if number.verdict == verdict.VOID else ABSENT
    if not math.isnan(number.ours):
        text = format_interval(number.ours, number.low, number.high, digits)
    yield column, Entry(text, number, ours=True)
    task = column[0]
    if not math.isnan(number.estimate):
        estimate = f"{number.estimate:.{DIGITS}f}"
        yield (task, f"{number.metric} (the method's own estimate)"), Entry(estimate, number, ours=True, main=False)
    if not math.isnan(number.decode):
        decode = format_interval(number.decode, number.decode_low, number.decode_high, DIGITS)
        yield (task, OWN_DECODE_SPEEDUP), Entry(decode, number, ours=True, main=False)


def format_interval(value: float, low: float, high: float, digits: int) -> str:
    """Return a number with its interval, if it has one."""
    found = f"{value:.{digits}f}"
    return found if math.isnan(low) or math.isnan(high) else f"{found} [{low:.{digits}f}, {high:.{digits}f}]"


def _without_none(group: RowGroup) -> RowGroup:
    """Move the gaps of a row that has some of our numbers into its first row of ours."""
    if NONE in group.ours and len(group.ours) > 1:
        gaps = group.ours.pop(NONE)
        first = next(iter(group.ours.values()))
        for column, entries in gaps.items():
            first.setdefault(column, []).extend(entries)
    return group


def _merged(rows: Sequence[RowGroup]) -> list[RowGroup]:
    """Put the paper's models together that the same results of ours stand behind, in the order of the methods."""
    groups: dict[tuple[str, str], list[RowGroup]] = {}
    for row in rows:
        own = groups.setdefault((row.method, row.setting), [])
        same = next((group for group in own if _agree(group, row)), None)
        if same is None:
            own.append(row)
            continue
        for label, cells in row.ours.items():
            for column, entries in cells.items():
                known = same.ours[label].setdefault(column, entries)
                # of the digits that the paper prints for its models, the most
                known[:] = [
                    replace(first, text=max(first.text, entry.text, key=len))
                    for first, entry in zip(known, entries, strict=True)
                ]
        same.paper |= row.paper
    return [group for own in groups.values() for group in own]


def _agree(group: RowGroup, row: RowGroup) -> bool:
    """Check whether our rows of both are of the same models, with the same results wherever both have some."""
    if set(group.ours) != set(row.ours):
        return False
    return all(
        [entry.identity for entry in entries] == [entry.identity for entry in group.ours[label][column]]
        for label, cells in row.ours.items()
        for column, entries in cells.items()
        if column in group.ours[label]
    )


def _mark_repeats(group: RowGroup) -> None:
    """Replace results that another group has shown already."""
    for cells in group.ours.values():
        for entries in cells.values():
            entries[:] = [replace(entry, text=SAME_RUN) if entry.number.repeats else entry for entry in entries]
