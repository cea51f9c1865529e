"""Layout of a long table as in the paper: our rows, labelled with the model that ran, above the paper's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from ssd_bench.papers.ours import agreement
from ssd_bench.papers.printed.catalogue import folder_of
from ssd_bench.papers.printed.reported import METRICS
from ssd_bench.results.quantity import Measured
from ssd_bench.results.text import ABSENT, DECODE, END_TO_END, format_measured

BOUNDS = {"": "", "low": "from ", "high": "to ", "max": "up to ", "about": "about "}
DIGITS = 2  # fewest digits of our numbers; a number of the paper with more digits sets the number of digits
PAPER_SPEEDUP, OWN_DECODE_SPEEDUP = f"{END_TO_END} (as in the paper)", f"{DECODE} (ours only)"
"""Column heads of the two speedups: every paper includes the prefill."""
NONE, SAME_RUN, EXCLUDED = "ours: no run", "same run", "excluded"

Column = tuple[str, str]  # task, metric


@dataclass(frozen=True)
class Entry:
    """Text in a cell of the laid-out table.

    Attributes:
        is_own: whether a number is ours, not the paper's.
        main: whether the paper reports it.
    """

    text: str
    number: Any
    is_own: bool
    main: bool = True

    @property
    def identity(self) -> tuple[object, ...]:
        """Key equal for texts of one result, whatever their digits."""
        return self.number.result, self.number.runs, math.isnan(self.number.ours), self.main


Cells = Mapping[Column, Sequence[Entry]]


@dataclass
class RowGroup:
    """Rows of one method and setting: ours, and those of the paper's models compared with them.

    Attributes:
        own_rows: model that ran (`NONE` if nothing ran) -> cells.
        paper_rows: model of the paper -> cells.
    """

    method: str
    setting: str
    own_rows: dict[str, dict[Column, list[Entry]]] = field(default_factory=dict)
    paper_rows: dict[str, dict[Column, list[Entry]]] = field(default_factory=dict)

    @property
    def rows(self) -> Iterator[tuple[str, Cells]]:
        """Label and cells of every row, ours first."""
        yield from self.own_rows.items()
        yield from ((paper_label(model), cells) for model, cells in self.paper_rows.items())


def ours_label(number: Any, with_scale: bool = False) -> str:
    if not number.model_ran:
        return NONE
    return f"ours: {number.model_ran}" + (f", scale {number.scale}" if with_scale and number.scale else "")


def paper_label(model: str) -> str:
    return f"paper: {model}" if model else "paper"


def layout(frame: pd.DataFrame) -> tuple[list[Column], list[RowGroup]]:
    """Arrange a long table: columns by task, a group of rows for every method, setting and set of our results.

    Models of the paper compared with the same results of ours share a group, so that no result is in two rows.
    `SAME_RUN` replaces a result shown in an earlier group.
    """
    several = len({scale for scale in frame["scale"] if scale}) > 1
    rows: dict[tuple[str, str, str], RowGroup] = {}
    numbers: Iterable[Any] = frame.itertuples()
    for number in numbers:
        setting, column = _setting_and_column(number)
        group = rows.setdefault((number.method, setting, number.model), RowGroup(number.method, setting))
        label = ours_label(number, several)
        printed = Entry(f"{BOUNDS[number.bound]}{number.printed}", number, is_own=False)
        group.paper_rows.setdefault(number.model, {}).setdefault(column, []).append(printed)
        for own_column, entry in _our_entries(number, column):
            group.own_rows.setdefault(label, {}).setdefault(own_column, []).append(entry)
    groups = _merge_equal_results([_fold_gaps(group) for group in rows.values()])
    for group in groups:
        _mark_repeats(group)
    columns = list(dict.fromkeys(column for group in groups for _, cells in group.rows for column in cells))
    tasks = list(dict.fromkeys(task for task, _ in columns))
    return sorted(columns, key=lambda column: tasks.index(column[0])), groups


def wide_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a long table in the paper's layout, as texts.

    Returns:
        Columns method, setting (if rows differ in it), model (`ours: NAME, SIZE` or `paper: NAME`), and one per task
        and metric. Our numbers have an interval, or are `ABSENT`. A cell is "" where the paper has no number.
    """
    columns, groups = layout(frame)
    if all(set(group.own_rows) == {NONE} for group in groups):
        for group in groups:
            group.own_rows.clear()
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
    """Return the column head of a metric with its unit; speedup and skip ratio get a longer definition."""
    if metric == "speedup":
        return PAPER_SPEEDUP
    if metric == "skip_ratio":
        inner = folder_of(paper).skip_ratio == "inner"
        return f"skip_ratio (share of the sublayers {'of the inner blocks' if inner else 'of all blocks'})"
    unit = METRICS[metric].unit
    return metric if unit in ("x", "fraction", "correlation", "") else f"{metric} ({unit})"


def _setting_and_column(number: Any) -> tuple[str, Column]:
    """Return setting and column of a number; the setting keeps only distinguishing parts."""
    parts = [
        part
        for part in number.setting.split(";")
        if part.partition("=")[0] in folder_of(number.paper).telling or "pass@" in part
    ]
    return "; ".join(parts), (number.task, column_head(number.metric, number.paper))


def _our_entries(number: Any, column: Column) -> Iterator[tuple[Column, Entry]]:
    """Yield our columns and entries for a number: the compared one, then quantities not in the paper."""
    digits = max(DIGITS, len(number.printed.partition(".")[2]))
    text = EXCLUDED if number.verdict == agreement.EXCLUDED else ABSENT
    if not math.isnan(number.ours):
        text = format_measured(Measured(number.ours, number.low, number.high), digits)
    yield column, Entry(text, number, is_own=True)
    task = column[0]
    if not math.isnan(number.estimate):
        estimate = f"{number.estimate:.{DIGITS}f}"
        yield (task, f"{number.metric} (the method's own estimate)"), Entry(estimate, number, is_own=True, main=False)
    if not math.isnan(number.decode):
        decode = format_measured(Measured(number.decode, number.decode_low, number.decode_high), DIGITS)
        yield (task, OWN_DECODE_SPEEDUP), Entry(decode, number, is_own=True, main=False)


def _fold_gaps(group: RowGroup) -> RowGroup:
    """Move entries without a number into our first row, if another row has numbers."""
    if NONE in group.own_rows and len(group.own_rows) > 1:
        gaps = group.own_rows.pop(NONE)
        first = next(iter(group.own_rows.values()))
        for column, entries in gaps.items():
            first.setdefault(column, []).extend(entries)
    return group


def _merge_equal_results(rows: Sequence[RowGroup]) -> list[RowGroup]:
    """Merge groups of paper models compared with the same results of ours; keep the methods' order."""
    groups: dict[tuple[str, str], list[RowGroup]] = {}
    for row in rows:
        same_key = groups.setdefault((row.method, row.setting), [])
        match = next((group for group in same_key if _have_same_results(group, row)), None)
        if match is None:
            same_key.append(row)
            continue
        for label, cells in row.own_rows.items():
            for column, entries in cells.items():
                merged = match.own_rows[label].setdefault(column, entries)
                # keep the text with the most digits: the paper may print its models with different numbers of digits
                merged[:] = [
                    replace(first, text=max(first.text, entry.text, key=len))
                    for first, entry in zip(merged, entries, strict=True)
                ]
        match.paper_rows |= row.paper_rows
    return [group for same_key in groups.values() for group in same_key]


def _have_same_results(group: RowGroup, row: RowGroup) -> bool:
    """Check whether our rows of two groups have equal models, and equal results in common columns."""
    if set(group.own_rows) != set(row.own_rows):
        return False
    return all(
        [entry.identity for entry in entries] == [entry.identity for entry in group.own_rows[label][column]]
        for label, cells in row.own_rows.items()
        for column, entries in cells.items()
        if column in group.own_rows[label]
    )


def _mark_repeats(group: RowGroup) -> None:
    for cells in group.own_rows.values():
        for entries in cells.values():
            entries[:] = [replace(entry, text=SAME_RUN) if entry.number.repeats else entry for entry in entries]
