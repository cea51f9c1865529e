"""Evidence of runs on a figure's subject: settings that mattered, searches, models; else a sentence."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd
from matplotlib.axes import Axes

from ssd_bench.papers.figures import shared as common
from ssd_bench.papers.figures import style
from ssd_bench.papers.figures.shared import NotDrawable, PlotValue
from ssd_bench.papers.ours import values
from ssd_bench.papers.ours.cells import DUPLICATE, ShownCell
from ssd_bench.records.reader import Run
from ssd_bench.results.modelled import reference_run
from ssd_bench.results.models import model_names
from ssd_bench.results.text import costs_text

MIN_SETS = 2
"""Fewest scored sets that give a search a course."""
MEASURED, MODELLED = "measured", "modelled"
TIME_MARKS = {MEASURED: style.MARKS[0], MODELLED: style.MARKS[1]}
"""Marks of measured and modelled times in one panel."""


@dataclass(frozen=True)
class SettingPoint:
    """Point of a figure over a setting, shared by settings with equal work.

    Attributes:
        cell: the drawn one, of the first of the settings.
        factor: ratio of the highest to the lowest measured speedup; None for a single run.
    """

    cell: ShownCell
    settings: tuple[str, ...]
    factor: float | None = None

    @property
    def label(self) -> str:
        """All values, for a tick."""
        return ", ".join(value.split(" ")[0] for value in self.settings).replace("-", "−")


# --- settings ---------------------------------------------------------------------------------------------------------


def setting_points(cells: Iterable[ShownCell], key: str = "") -> list[SettingPoint]:
    """Return one point per group of cells with equal steps and counted work.

    Such runs differ in timing alone: separate points would show run-to-run variation as an effect of the setting. `key`
    is the setting's, "" for all.
    """
    groups: dict[tuple[str, int], list[ShownCell]] = {}
    for cell in cells:
        work = cell.run.work.drop(columns="ms")  # without times and, in the sum, order
        digest = int(pd.util.hash_pandas_object(work, index=False).sum())
        groups.setdefault((cell.timing.trace, digest), []).append(cell)
    return [_setting_point(group, key) for group in groups.values()]


def _setting_point(group: Sequence[ShownCell], key: str) -> SettingPoint:
    speedups = [speedup for cell in group if (speedup := cell.timing.speedup)]
    factor = max(speedups) / min(speedups) if len(speedups) > 1 else None
    first = replace(group[0], exclusion="") if group[0].exclusion.startswith(DUPLICATE) else group[0]
    settings = (cell.setting(key) if key else common.pretty(cell["setting"]) for cell in group)
    return SettingPoint(first, tuple(settings), factor)


def no_difference(points: Sequence[SettingPoint], symbol: str) -> NotDrawable | None:
    """Return why runs show nothing about a setting: no value made a difference."""
    if len(points) > 1:
        return None
    shown = [value for point in points for value in point.settings]
    named = "; ".join(shown) if any(", " in value for value in shown) else ", ".join(shown)
    if len(shown) < 2:
        return NotDrawable(f"This figure compares settings of {symbol}; the available runs have one ({named}).")
    return NotDrawable(
        f"All {len(shown)} settings of {symbol} ({named}) made the same steps, so the runs show nothing about {symbol}."
    )


def same_work_note(points: Iterable[SettingPoint], symbol: str) -> str:
    """Return sentences on points shared by several settings; "" without any."""
    sentences = []
    for point in points:
        if len(point.settings) > 1:
            text = f"{symbol} = {_listed([v.split(' ')[0] for v in point.settings])}: the same steps, so one point."
            if point.factor is not None:
                text += f" Repeated timing alone changed their speedup by a factor of {point.factor:.2f}."
            sentences.append(text)
    return " ".join(sentences)


def _listed(texts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def trace_labels(lines: Mapping[str, ShownCell]) -> dict[str, str]:
    """Return label -> legend text of each trace's first curve; other curves of a trace are not drawn."""
    by_trace: dict[str, list[str]] = {}
    for label, cell in lines.items():
        by_trace.setdefault(cell.timing.trace, []).append(label)
    texts = {}
    for first, *duplicates in by_trace.values():
        count = f"{len(duplicates)} other{'s' if len(duplicates) > 1 else ''}"
        texts[first] = f"{first} (and {count} with the same trace)" if duplicates else first
    return texts


def set_slots(axes: Axes, points: Sequence[SettingPoint], name: str) -> None:
    """Put a tick at each point of the setting `name`, at 0, 1, ...; distances mean nothing."""
    axes.set_xticks(range(len(points)), [textwrap.fill(point.label, 10) for point in points])
    axes.set_xlim(-0.5, len(points) - 0.5)
    axes.set_xlabel(name)


# --- times ------------------------------------------------------------------------------------------------------------


def timed_runs(points: Sequence[SettingPoint]) -> dict[str, list[Run]]:
    runs = [point.cell.run for point in points]
    return {MEASURED: runs, MODELLED: [reference_run(run) for run in runs]}


def draw_speedups(axes: Axes, points: Sequence[SettingPoint]) -> None:
    for kind, name in ((MEASURED, "speedup"), (MODELLED, "speedup_modelled")):
        draw_times(axes, kind, [common.plot_value(point.cell, name) for point in points])
    common.draw_level(axes)


def draw_times(axes: Axes, kind: str, numbers: Sequence[PlotValue]) -> None:
    common.draw_line(axes, range(len(numbers)), numbers, TIME_MARKS[kind], kind)


def modelled_note(points: Sequence[SettingPoint]) -> str:
    costs = common.unique(costs_text(point.cell.summary.modelled_on) for point in points)
    return f"Modelled: the counted work at {', '.join(costs)}."


# --- searches and models ----------------------------------------------------------------------------------------------


def no_course(cells: Sequence[ShownCell]) -> NotDrawable | None:
    """Return why searches have no course: none scored `MIN_SETS` sets."""
    counts = [values.scored_sets(cell.run) for cell in cells]
    if max(counts, default=0) >= MIN_SETS:
        return None
    methods, models = common.unique(cell["method"] for cell in cells), model_names(cell.model_ran for cell in cells)
    scored = "one layer set" if any(counts) else "no layer set"
    return NotDrawable(
        f"This figure shows the course of a search, but the search of {', '.join(methods)} on {models} scored {scored}."
    )


def one_model(cells: Sequence[ShownCell], by_size: bool = False) -> NotDrawable | None:
    """Return why runs show nothing about models, or their sizes: there is only one."""
    models = {cell.model_ran.params if by_size else cell.model_ran.name for cell in cells} - {None}
    if len(models) > 1:
        return None
    names = model_names(cell.model_ran for cell in cells)
    subject, only = ("sizes of models", "one size") if by_size else ("models", "one model")
    return NotDrawable(f"This figure compares {subject}; the available runs are of {only} ({names}).")
