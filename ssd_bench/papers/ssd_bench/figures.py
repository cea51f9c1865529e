"""All methods on one model: a figure of layer sets by draft cost and acceptance rate, and a table of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ssd_bench.papers.figures import shared as common
from ssd_bench.papers.figures import style
from ssd_bench.papers.figures.shared import NotDrawable
from ssd_bench.papers.ours.cells import Replication, ShownCell
from ssd_bench.papers.ssd_bench.drafts import drafts
from ssd_bench.papers.ssd_bench.plane import Plane, Point, Use, plane_path, read
from ssd_bench.papers.ssd_bench.real import real
from ssd_bench.papers.ssd_bench.windows import windows
from ssd_bench.paths import display_path
from ssd_bench.results.text import ABSENT, DECODE, END_TO_END, format_lossless, format_measured, format_percent

__all__ = ["COMPARISON", "NOTE", "comparison", "drafts", "planes", "real", "table", "windows"]

COMPARISON = "ssd_bench_comparison"
"""Name of the experiment."""
LEVELS = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0)  # predicted speedups whose contours are drawn
GRID = 120
MAX_COST = 1.15  # draft cost c in AR steps: with all layers it may exceed 1
MIN_MARKER, MAX_MARKER = 2.5, 7.0
"""Marker sizes in points of sets that drafted almost nothing, and everything."""
RATES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999)
"""Values of α with a tick, if the axis reaches them."""
NAME_SPACING = 0.068  # distance of names right of a panel, as a share of its height
NAME_X = 1.05  # position of the names, in widths of the panel
HEADROOM = 1.3  # space above the best set, as a factor on 1 − α
LABEL_SPACING = 0.08  # distance of the labels of contours, as a share of the panel's width

NOTE = (
    "Main set: the layer set that drafted most of a run; best set: the best of all evaluated sets; the numbers are "
    "predicted speedups over AR (KnapSpec's Eq. 4 at the best draft length, with measured verification times). "
    "Overhead: method overhead, as a share of the decode time. Intervals: 95 % over prompts."
)

Look = tuple[style.Mark, str]
"""Mark of a method, and its inner colour."""


def planes(replication: Replication) -> dict[str, Plane | NotDrawable]:
    """Return task -> its layer sets by cost and acceptance, or why they are missing."""
    by_task: dict[str, Plane | NotDrawable] = {}
    for cell in replication.shown_cells():
        model, task = cell.header.model.name, cell.header.task.name
        path = plane_path(replication.runs_dir, model, task)
        command = f"python -m studies.frontier model={model} task={task} runs_dir={display_path(replication.runs_dir)}"
        if cell["task"] not in by_task:
            by_task[cell["task"]] = read(path) if path.is_file() else NotDrawable(f"No data yet; run `{command}`.")
    return by_task


def comparison(replication: Replication) -> Figure | NotDrawable:
    """Draw every set that drafted by draft cost and α, with lines of equal TPT and the best sets found."""
    drawn = replication.shown_cells()
    drawable = {task: plane for task, plane in planes(replication).items() if isinstance(plane, Plane)}
    if not drawable:
        return next(plane for plane in planes(replication).values() if isinstance(plane, NotDrawable))
    # not those whose most used set only narrows the cache
    mains = [(cell, _main_set(plane, cell)) for cell in drawn for plane in drawable.values()]
    skipping = list(dict.fromkeys(cell for cell, main in mains if main is not None and main.skipped))
    if not skipping:
        return NotDrawable("No run drafted most of its tokens with skipped layers.")
    marks = _method_looks(common.unique(cell["method"] for cell in skipping))
    figure, body = common.new_figure(style.PAGE, 4.0)
    panels = body.subplots(1, len(drawable), squeeze=False, sharey=True)[0]
    points = [point for plane in drawable.values() for point, _ in _uses(plane, skipping)]
    lowest = min(1.0, max((1 - point.alpha for point in points), default=0.8) * HEADROOM)
    # a log scale cannot show a set without errors: it is drawn at half a token
    highest = min(0.5 / plane.tokens for plane in drawable.values())
    _set_scale(panels[0], highest, lowest)
    for axes, (task, plane) in zip(panels, drawable.items()):
        _draw_points(axes, plane, skipping, marks, highest)
        _draw_contours(axes, plane, highest, lowest)
        costs = [point.cost for point in plane.frontier]
        misses = [max(1 - point.alpha, highest) for point in plane.frontier]
        axes.plot(costs, misses, color="black", linewidth=1, drawstyle="steps-post", label="best sets found")
        _draw_names(axes, plane, skipping, marks, (highest, lowest))
        axes.set_title(f"{task}: {plane.tried} sets evaluated ({plane.search})", loc="left", pad=14)
        axes.set_xlabel("draft cost c (AR steps)")
    panels[0].set_ylabel("acceptance rate α (log scale of 1 − α)")
    tokens = ", ".join(f"{plane.tokens:,} ({task})" for task, plane in drawable.items())
    note = (
        "Each point is a layer set; larger points drafted a larger share of their run's tokens. Lines connect each "
        "method to its main set, which drafted most. c: time of a drafted token relative to an AR step, by the latency "
        f"profile. α: share of AR's tokens that the set predicts, drafting 8 at a time, of {tokens}; a set without an "
        "error is drawn at half an error. Grey: TPT by KnapSpec's Eq. 4 at the best draft length, with measured "
        "verification times."
    )
    without = common.unique(cell["method"] for cell in drawn if cell["method"] not in marks)
    if without:
        note += f" Not drawn, since they drafted most tokens without skipping layers: {', '.join(without)}."
    return common.finish(figure, replication, drawn, note)


def _uses(plane: Plane, cells: Sequence[ShownCell]) -> list[tuple[Point, Use]]:
    """Return the layer-skipping sets that drafted in these cells' runs, most used first."""
    runs = {cell.path.name for cell in cells}
    uses = [(point, use) for point in plane.chosen if point.skipped for use in point.uses if use.run in runs]
    return sorted(uses, key=lambda pair: -pair[1].share)


def _set_scale(axes: Axes, highest: float, lowest: float) -> None:
    """Set a log scale of 1 − α, best on top, with ticks that show α."""
    rates = [rate for rate in RATES if highest * HEADROOM < 1 - rate < lowest]
    axes.set_yscale("log")
    axes.set_yticks([*(1 - rate for rate in rates), highest], [*(f"{rate:g}" for rate in rates), "1"])
    axes.minorticks_off()
    axes.set_ylim(lowest, highest / HEADROOM)


def _method_looks(methods: Sequence[str]) -> dict[str, Look]:
    """Return each method's look: its mark in `style` if free; hollow marks once all filled are used."""
    free = [(mark, face or mark.colour) for face in ("", "white") for mark in style.MARKS]
    looks: dict[str, Look] = {}
    for method in (method for method in methods if method in style.METHODS):
        preferred = style.mark(method, 0)
        if (preferred, preferred.colour) in free:
            looks[method] = (preferred, preferred.colour)
            free.remove(looks[method])
    for method in (method for method in methods if method not in looks):
        looks[method] = free.pop(0) if free else (style.MARKS[0], "white")
    return looks


def _draw_contours(axes: Axes, plane: Plane, highest: float, lowest: float) -> None:
    """Draw lines of equal TPT relative to AR, labelled above the panel, where no set hides the labels."""
    costs, misses = np.linspace(*axes.get_xlim(), GRID), np.geomspace(highest / HEADROOM, lowest, GRID)
    speeds = np.array([[plane.speedup(float(c), max(0.0, 1 - float(m))) for c in costs] for m in misses])
    ends = {level: float(np.interp(-level, -speeds[0], costs)) for level in LEVELS}  # speeds fall along the costs
    drawn, spacing = list[float](), LABEL_SPACING * (costs[-1] - costs[0])
    for level, end in ends.items():
        if costs[0] < end < costs[-1] and all(abs(end - ends[other]) > spacing for other in drawn):
            drawn.append(level)
            axes.annotate(f"{level:g}×", (end, 1), (0, 2), axes.get_xaxis_transform(), ha="center", **style.GREY_TEXT)
    if drawn:
        axes.contour(costs, misses, speeds, drawn, colors=style.FAINT, linewidths=0.6, zorder=1)
    axes.plot([], [], color=style.FAINT, linewidth=0.6, label="equal TPT (relative to AR)")


def _draw_points(
    axes: Axes, plane: Plane, drawn: Sequence[ShownCell], marks: Mapping[str, Look], highest: float
) -> None:
    cells, uses = {cell.path.name: cell for cell in drawn}, _uses(plane, drawn)
    for point, use in uses:
        mark, face = marks[cells[use.run]["method"]]
        look = common.point_style(mark, cells[use.run].exclusion, face)
        look["markersize"] = MIN_MARKER + (MAX_MARKER - MIN_MARKER) * use.share**0.5
        axes.plot(point.cost, max(1 - point.alpha, highest), **look)
    costs = [point.cost for point, _ in uses]
    axes.set_xlim(max(0.0, min(costs, default=0.0) - 0.08), max(costs, default=MAX_COST) + 0.06)


def _main_set(plane: Plane, cell: ShownCell) -> Point | None:
    uses = [(use.share, point) for point in plane.chosen for use in point.uses if use.run == cell.path.name]
    return max(uses, key=lambda pair: pair[0])[1] if uses else None


def _draw_names(
    axes: Axes, plane: Plane, drawn: Sequence[ShownCell], marks: Mapping[str, Look], ends: tuple[float, float]
) -> None:
    """Write the methods right of a panel, by their main sets' α, with a line to each set."""
    highest, lowest = ends
    top = np.log(lowest / (highest / HEADROOM))
    mains = [
        (cell, main, max(1 - main.alpha, highest)) for cell in drawn if (main := _main_set(plane, cell)) is not None
    ]
    mains = sorted(mains, key=lambda entry: (entry[2], entry[1].cost, entry[0]["method"]))
    rows = _spread_rows([float(np.log(lowest / miss) / top) for _, _, miss in mains])
    for (cell, main, miss), row in zip(mains, rows):
        mark, face = marks[cell["method"]]
        look = common.point_style(mark, cell.exclusion, face) | {"markersize": 5}
        axes.plot(NAME_X, row, transform=axes.transAxes, clip_on=False, **look)
        line = {"arrowstyle": "-", "color": "#BBBBBB", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}
        place, start = (main.cost, miss), (NAME_X - 0.02, row)
        axes.annotate("", place, start, "data", "axes fraction", annotation_clip=False, arrowprops=line, zorder=1)
        name = cell["method"] + common.excluded_sign(cell)
        axes.annotate(name, (NAME_X, row), (5, 0), "axes fraction", "offset points", va="center", fontsize=7)


def _spread_rows(places: Sequence[float]) -> list[float]:
    """Return rows from 1 down to 0, as close to the descending positions as a minimum distance allows."""
    gap, rows = min(NAME_SPACING, 1 / max(1, len(places))), list[float]()
    for place in places:
        rows.append(min(place, rows[-1] - gap) if rows else place)
    for i in reversed(range(len(rows))):
        rows[i] = max(rows[i], rows[i + 1] + gap if i + 1 < len(rows) else 0.0)
    return rows


def table(replication: Replication) -> pd.DataFrame:
    """Return the table of every method and task, as texts; `python -m studies.frontier` adds predicted speedups."""
    by_task = planes(replication)
    return pd.DataFrame([_row(cell, by_task[cell["task"]]) for cell in replication.shown_cells()]).fillna(ABSENT)


def _row(cell: ShownCell, plane: Plane | NotDrawable) -> dict[str, str]:
    summary = cell.summary
    row = {axis: cell[axis] for axis in ("model", "task", "method")} | {
        DECODE: f"excluded: {cell.exclusion}" if cell.exclusion else format_measured(summary.speedup),
        END_TO_END: ABSENT if cell.exclusion else format_measured(summary.speedup_e2e),
        "M": format_measured(summary.M),
        "α": format_measured(summary.alpha, 3),
        "skipped, of all sublayers": format_percent(summary.skip_ratio),
        "overhead": format_percent(summary.overhead),
        "equal to AR": format_lossless(summary.row),
    }
    if isinstance(plane, Plane):
        main = _main_set(plane, cell)
        row["main set"] = ABSENT if main is None else f"{plane.speedup(main.cost, main.alpha):.2f}"
        row["best set"] = f"{max(plane.speedup(point.cost, point.alpha) for point in plane.frontier):.2f}"
    return row
