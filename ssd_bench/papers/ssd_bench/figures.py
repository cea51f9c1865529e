"""All methods on one model: their layer sets by draft cost and acceptance rate, and the same as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ssd_bench import style
from ssd_bench.cost.plane import Plane, Point, path_of, read
from ssd_bench.metrics.text import ABSENT, DECODE, END_TO_END, format_interval, format_lossless, format_percent
from ssd_bench.papers import figures_shared as common
from ssd_bench.papers.cells import Cell, Replication
from ssd_bench.papers.figures_shared import Cannot
from ssd_bench.papers.ssd_bench.windows import windows
from ssd_bench.paths import display_path

__all__ = ["COMPARISON", "comparison", "note", "planes", "table", "windows"]

COMPARISON = "ssd_bench_comparison"
"""Its experiment."""
LEVELS = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0)  # predicted speedups whose lines are drawn
GRID = 120
WIDEST = 1.15  # draft cost: with all layers it may be more than a plain step
LEAST, MOST = 2.5, 7.0  # points: markers of sets that drafted next to nothing, and of those that drafted everything
RATES = (
    0.0,
    0.5,
    0.8,
    0.9,
    0.95,
    0.98,
    0.99,
    0.995,
    0.998,
    0.999,
)  # α whose ticks are drawn, as far as they are reached
ROW = 0.068  # of a panel's height: from one name beside it to the next
BESIDE = 1.05  # where the names stand, panels being 1 wide
ROOM = 1.3  # above the best, as a factor of 1 − α

Look = tuple[style.Mark, str]
"""A method's mark, and the colour inside it."""


def planes(replication: Replication) -> dict[str, Plane | Cannot]:
    """By the name of each task, its layer sets, or why there are none."""
    found: dict[str, Plane | Cannot] = {}
    for cell in common.cells(replication):
        model, task = cell.header["model"]["name"], cell.header["task"]["name"]
        path = path_of(replication.runs_dir, model, task)
        command = (
            f"python -m ssd_bench frontier model={model} task={task} runs_dir={display_path(replication.runs_dir)}"
        )
        if cell["task"] not in found:
            found[cell["task"]] = read(path) if path.is_file() else Cannot(f"`{command}` was not run yet.")
    return found


def comparison(replication: Replication) -> Figure | Cannot:
    """Every set that drafted as a point of draft cost and α, with lines of equal TPT and the best sets there are."""
    drawn = common.cells(replication)
    there = {task: found for task, found in planes(replication).items() if isinstance(found, Plane)}
    if not there:
        return next(found for found in planes(replication).values() if isinstance(found, Cannot))
    mains = [cell for cell in drawn if any(_main(found, cell) for found in there.values())]
    marks = _looks(common.unique(cell["method"] for cell in mains))
    figure, body = common.page(style.PAGE, 4.0)
    panels = body.subplots(1, len(there), squeeze=False, sharey=True)[0]
    points = [point for found in there.values() for point in found.chosen]
    lowest = min(1.0, max((1 - point.alpha for point in points), default=0.8) * ROOM)
    # what a set never got wrong is drawn at half a token
    highest = min(0.5 / found.tokens for found in there.values())
    _scale(panels[0], highest, lowest)
    for axes, (task, found) in zip(panels, there.items()):
        _points(axes, found, drawn, marks, highest)
        _lines(axes, found, highest, lowest)
        best = found.frontier
        axes.plot([p.cost for p in best], [max(1 - p.alpha, highest) for p in best], color="black", linewidth=1,
                  drawstyle="steps-post", label="best sets found")  # fmt: skip
        _names(axes, found, drawn, marks, (highest, lowest))
        axes.set_title(f"{task}: {found.tried} sets tried ({found.search})", loc="left")
        axes.set_xlabel("draft cost c (plain steps)")
    panels[0].set_ylabel("acceptance rate α (log scale of 1 − α)")
    common.legend(body)
    without = [cell["method"] for cell in drawn if cell["method"] not in marks]
    note = (
        "A point is a layer set; the larger, the more of its run's tokens it drafted. Lines lead from methods to their "
        "main sets. c: time of a drafted token over a plain step's, by the latency profile; α: share of AR's tokens "
        "that the set predicts, drafting 8 at a time. TPT: KnapSpec's Eq. 4 at the best draft length, with measured "
        "verification."
    )
    if without:
        note += f" Without sets of layers: {', '.join(common.unique(without))}."
    return common.finish(figure, replication, drawn, note)


def _scale(axes: Axes, highest: float, lowest: float) -> None:
    """1 − α downwards from the best on a log scale, its ticks named by α."""
    rates = [rate for rate in RATES if highest * ROOM < 1 - rate < lowest]
    axes.set_yscale("log")
    axes.set_yticks([*(1 - rate for rate in rates), highest], [*(f"{rate:g}" for rate in rates), "1"])
    axes.minorticks_off()
    axes.set_ylim(lowest, highest / ROOM)


def _looks(methods: Sequence[str]) -> dict[str, Look]:
    """A look for each method: its own mark where it has one, hollow the second time round."""
    free = [(mark, face or mark.colour) for face in ("", "white") for mark in style.MARKS]
    found: dict[str, Look] = {}
    for method in sorted(methods, key=lambda method: method not in style.METHODS):
        own = [look for look in free if method in style.METHODS and look[0] == style.mark(method, 0)]
        found[method] = (own or free or [(style.MARKS[0], "white")])[0]
        free = [look for look in free if look != found[method]]
    return found


def _lines(axes: Axes, found: Plane, highest: float, lowest: float) -> None:
    """Lines of equal TPT over AR's."""
    costs, misses = np.linspace(*axes.get_xlim(), GRID), np.geomspace(highest / ROOM, lowest, GRID)
    speeds = np.array([[found.speedup(float(c), max(0.0, 1 - float(m))) for c in costs] for m in misses])
    lines = axes.contour(costs, misses, speeds, LEVELS, colors=style.FAINT, linewidths=0.6, zorder=1)
    axes.clabel(lines, fmt=lambda level: f"{level:g}×", fontsize=style.SMALL)
    axes.plot([], [], color=style.FAINT, linewidth=0.6, label="equal TPT, over AR's")


def _points(axes: Axes, found: Plane, drawn: Sequence[Cell], marks: Mapping[str, Look], highest: float) -> None:
    """The sets that drafted."""
    runs, costs = {cell.path.name: cell for cell in drawn}, []
    for point in found.chosen:
        for use in point.uses:
            if use.run in runs:
                mark, face = marks[runs[use.run]["method"]]
                look = common.points(mark, runs[use.run].void, face)
                look["markersize"] = LEAST + (MOST - LEAST) * use.share**0.5
                axes.plot(point.cost, max(1 - point.alpha, highest), linestyle="", **look)
                costs.append(point.cost)
    axes.set_xlim(max(0.0, min(costs, default=0.0) - 0.08), max(costs, default=WIDEST) + 0.06)


def _main(found: Plane, cell: Cell) -> Point | None:
    """The set that drafted most of a run."""
    uses = [(use.share, point) for point in found.chosen for use in point.uses if use.run == cell.path.name]
    return max(uses, key=lambda pair: pair[0])[1] if uses else None


def _names(
    axes: Axes, found: Plane, drawn: Sequence[Cell], marks: Mapping[str, Look], ends: tuple[float, float]
) -> None:
    """The methods right of a panel, in the order of their main sets' α, a line from each to that set."""
    highest, lowest = ends
    top = np.log(lowest / (highest / ROOM))
    mains = [(cell, main, max(1 - main.alpha, highest)) for cell in drawn if (main := _main(found, cell)) is not None]
    mains = sorted(mains, key=lambda one: (one[2], one[1].cost, one[0]["method"]))
    rows = _spread([float(np.log(lowest / miss) / top) for _, _, miss in mains])
    for (cell, main, miss), row in zip(mains, rows):
        mark, face = marks[cell["method"]]
        look = common.points(mark, cell.void, face) | {"markersize": 5}
        axes.plot(BESIDE, row, linestyle="", transform=axes.transAxes, clip_on=False, **look)
        axes.annotate("", (main.cost, miss), (BESIDE - 0.02, row), "data", "axes fraction", annotation_clip=False,
                      arrowprops={"arrowstyle": "-", "color": "#BBBBBB", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2},
                      zorder=1)  # fmt: skip
        axes.annotate(cell["method"] + common.sign(cell), (BESIDE, row), (5, 0), "axes fraction", "offset points",
                      va="center", fontsize=7)  # fmt: skip


def _spread(places: Sequence[float]) -> list[float]:
    """Rows from 1 down to 0 that keep apart, as near to these places, which go down, as that allows."""
    gap, rows = min(ROW, 1 / max(1, len(places))), list[float]()
    for place in places:
        rows.append(min(place, rows[-1] - gap) if rows else place)
    for i in reversed(range(len(rows))):
        rows[i] = max(rows[i], rows[i + 1] + gap if i + 1 < len(rows) else 0.0)
    return rows


def table(replication: Replication) -> pd.DataFrame:
    """Every method and task of the comparison.

    Returns:
        Texts: the model that ran; with 95 % intervals both speedups (of a void cell why it is), M, α, share of
        sublayers skipped, share of the time that the method's own work takes, outputs equal to AR's; and, where
        `python -m ssd_bench frontier` has been run, the predicted speedup of the set that drafted most, and of the best
        set found.
    """
    found = planes(replication)
    return pd.DataFrame([_row(cell, found[cell["task"]]) for cell in common.cells(replication)]).fillna(ABSENT)


def note() -> str:
    """Return what the columns mean."""
    return (
        "Main set: the layer set that drafted most of a run; best set: of all sets tried; both as the predicted "
        "speedup over AR (KnapSpec's Eq. 4 at the best draft length, with measured verification). Intervals: 95 % over "
        "prompts."
    )


def _row(cell: Cell, found: Plane | Cannot) -> dict[str, str]:
    summary = cell.summary
    row = {
        "model": cell.ran.text, "task": cell["task"], "method": cell["method"],
        DECODE: f"void: {cell.void}" if cell.void else format_interval(summary, "speedup"),
        END_TO_END: ABSENT if cell.void else format_interval(summary, "speedup_e2e"),
        "M": format_interval(summary, "M"), "α": format_interval(summary, "alpha", 3),
        "skipped, of all sublayers": format_percent(summary["skip_ratio"]),
        "policy": format_percent(summary["overhead"]), "equal to AR": format_lossless(summary),
    }  # fmt: skip
    if isinstance(found, Plane):
        main = _main(found, cell)
        row["its main set"] = ABSENT if main is None else f"{found.speedup(main.cost, main.alpha):.2f}"
        row["best set"] = f"{max(found.speedup(point.cost, point.alpha) for point in found.frontier):.2f}"
    return row
