"""All methods on one model: their layer sets by draft cost and acceptance rate, and the same as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ssd_bench import style
from ssd_bench.cost.plane import Plane, path_of, read
from ssd_bench.metrics.text import ABSENT, lossless, percent, spread
from ssd_bench.papers import figures_shared as common
from ssd_bench.papers.cells import Cell, Replication
from ssd_bench.papers.figures_shared import Cannot

COMPARISON = "ssd_bench_comparison"
"""Its experiment."""
LEVELS = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0)  # predicted speedups whose lines are drawn
GRID = 120
WIDEST = 1.15  # draft cost: with all layers it may be more than a plain step
LEAST, MOST = 3.0, 8.0  # points: markers of sets that drafted next to nothing, and of those that drafted everything


def planes(replication: Replication) -> dict[str, Plane | Cannot]:
    """By the name of each task, its layer sets, or why there are none."""
    found: dict[str, Plane | Cannot] = {}
    for cell in common.cells(replication):
        model, task = cell.run.header["model"]["name"], cell.run.header["task"]["name"]
        path = path_of(replication.runs_dir, model, task)
        command = f"python -m ssd_bench frontier model={model} task={task} runs_dir={replication.runs_dir}"
        if cell["task"] not in found:
            found[cell["task"]] = read(path) if path.is_file() else Cannot(f"`{command}` was not run yet.")
    return found


def comparison(replication: Replication) -> Figure | Cannot:
    """Every set that drafted as a point of draft cost and α, with lines of equal TPT and the best sets there are."""
    drawn = common.cells(replication)
    there = {task: found for task, found in planes(replication).items() if isinstance(found, Plane)}
    if not there:
        return next(found for found in planes(replication).values() if isinstance(found, Cannot))
    labels = {cell.path.name: cell["method"] for cell in drawn}
    used = {labels[u.run] for one in there.values() for p in one.chosen for u in p.uses if u.run in labels}
    marks = {label: i for i, label in enumerate(label for label in common.unique(labels.values()) if label in used)}
    figure, body = common.page(style.PAGE, 4.1)
    panels = body.subplots(1, len(there), squeeze=False, sharey=True)[0]
    lowest = min((point.alpha for found in there.values() for point in found.chosen), default=0.1)
    floor = max(0.0, lowest - 0.1)
    for axes, (task, found) in zip(panels, there.items()):
        _lines(axes, found, floor)
        _points(axes, found, labels, marks)
        best = found.frontier
        axes.plot([p.cost for p in best], [p.alpha for p in best], color="black", linewidth=1, drawstyle="steps-post")
        axes.set_title(f"{task}: {found.tried} sets tried ({found.search})", loc="left")
        axes.set_xlabel("draft cost c (plain steps)")
        axes.set_xlim(0, WIDEST)
    panels[0].set_ylim(floor, 1.01)
    panels[0].set_ylabel("acceptance rate α, teacher-forced")
    handles = [Line2D([], [], linestyle="", label=label, **_look(i), markersize=5) for label, i in marks.items()]
    handles += [Line2D([], [], color="black", linewidth=1, label="best sets found")]
    handles += [Line2D([], [], color="#888888", linewidth=0.6, label="equal TPT, over AR's")]
    body.legend(handles=handles, loc="outside upper left", ncols=5, handlelength=2.0)
    note = (
        "A point is a layer set; the larger, the more of its run's tokens it drafted. c: a drafted token's time over a "
        "plain step's, by the latency profile; α: share of AR's tokens that the set predicts, drafting 8 at a time. "
        "TPT: KnapSpec's Eq. 4 at the best draft length, with measured verification."
    )
    return common.finish(figure, replication, drawn, note)


def _look(position: int) -> dict[str, Any]:
    """Colour and marker of a method; hollow the second time round."""
    mark = style.MARKS[position % len(style.MARKS)]
    face = mark.colour if position < len(style.MARKS) else "white"
    return {"marker": mark.marker, "color": mark.colour, "markerfacecolor": face}


def _lines(axes: Axes, found: Plane, floor: float) -> None:
    costs, alphas = np.linspace(0.01, WIDEST, GRID), np.linspace(floor, 1, GRID)
    speeds = np.array([[found.speedup(float(c), float(a)) for c in costs] for a in alphas])
    lines = axes.contour(costs, alphas, speeds, LEVELS, colors="#888888", linewidths=0.6)
    axes.clabel(lines, fmt=lambda level: f"{level:g}×", fontsize=style.SMALL)


def _points(axes: Axes, found: Plane, labels: Mapping[str, str], marks: Mapping[str, int]) -> None:
    for point in found.chosen:
        for use in point.uses:
            if use.run in labels:
                size = LEAST + (MOST - LEAST) * use.share**0.5
                axes.plot(point.cost, point.alpha, markersize=size, linestyle="", **_look(marks[labels[use.run]]))


def table(replication: Replication) -> pd.DataFrame:
    """Every method and task of the comparison.

    Returns:
        Texts with 95 % intervals: speedup (decode only; of a void cell why), M, α, share of sublayers skipped, share of
        the time that the method's own work takes, outputs equal to AR's; and, where `python -m ssd_bench frontier` has
        been run, the predicted speedup of the set that drafted most, and of the best set found.
    """
    found = planes(replication)
    return pd.DataFrame([_row(cell, found[cell["task"]]) for cell in common.cells(replication)]).fillna(ABSENT)


def _row(cell: Cell, found: Plane | Cannot) -> dict[str, str]:
    summary = cell.summary
    row = {
        "task": cell["task"], "method": cell["method"],
        "speedup": f"void: {cell.void}" if cell.void else spread(summary, "speedup"),
        "M": spread(summary, "M"), "α": spread(summary, "alpha", 3), "skipped": percent(summary["skip_ratio"]),
        "policy": percent(summary["overhead"]), "equal to AR": lossless(summary),
    }  # fmt: skip
    if isinstance(found, Plane):
        uses = [(use.share, point) for point in found.chosen for use in point.uses if use.run == cell.path.name]
        most = max(uses, key=lambda pair: pair[0], default=None)
        row["its main set"] = ABSENT if most is None else f"{found.speedup(most[1].cost, most[1].alpha):.2f}"
        row["best set"] = f"{max(found.speedup(point.cost, point.alpha) for point in found.frontier):.2f}"
    return row
