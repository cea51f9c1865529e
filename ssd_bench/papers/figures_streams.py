"""Figures along a stream of prompts: numbers task by task, speedup so far, and sets on tasks they are not of."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ssd_bench import style
from ssd_bench.metrics import Measured
from ssd_bench.papers import figures_shared as common
from ssd_bench.papers.cells import Cell, Replication
from ssd_bench.papers.figures_shared import Cannot

WINDOW = 10
"""Prompts of a running mean, fewer where a task has few."""
CUT = 1.6
"""An axis ends at this multiple of the largest value of a task: a single prompt can be far above it."""


def along(replication: Replication, quantities: Sequence[str], dashed: str | None = None) -> Figure | Cannot:
    """Quantities along the stream, task by task: running means, and a value with its interval for each task.

    Args:
        dashed: method whose value over the whole stream is a dashed line, as in KNN-SSD's figures.
    """
    drawn = common.cells(replication)
    models = common.unique(cell["model"] for cell in drawn)
    figure, body = common.page(style.PAGE, 1.1 + 1.5 * len(quantities) * len(models))
    panels = body.subplots(len(quantities) * len(models), 1, squeeze=False)[:, 0]
    for i, axes in enumerate(panels):
        model, quantity = models[i // len(quantities)], quantities[i % len(quantities)]
        own = [cell for cell in drawn if cell["model"] == model]
        frames = {_label(cell): _by_task(cell) for cell in own}
        _along(axes, frames, quantity, dashed)
        if len(models) > 1 and i % len(quantities) == 0:
            axes.set_title(model, loc="left", pad=22, fontweight="bold")  # above the names of the tasks
    panels[-1].set_xlabel("prompts, grouped by task")
    common.legend(body, panels[0], 4)
    note = "Lines: running means. Large marks: all prompts of a task, with 95 % BCa bootstrap intervals over them."
    note += f" An axis ends at most at {CUT} times its largest mark."
    return common.finish(figure, replication, drawn, note + (f" Dashed: {dashed} over all." if dashed else ""))


def _label(cell: Cell) -> str:
    return cell["method"]


def _by_task(cell: Cell) -> pd.DataFrame:
    """The stream of a cell, the prompts of a task together, positions from 1."""
    rows = common.stream(cell.run)
    order = {name: i for i, name in enumerate(common.unique(rows["domain"]))}
    rows = rows.sort_values("domain", key=lambda names: names.map(order), kind="stable").reset_index(drop=True)
    rows.index += 1
    return rows


def _along(axes: Axes, frames: Mapping[str, pd.DataFrame], quantity: str, dashed: str | None) -> None:
    first = next(iter(frames.values()))
    heights: list[float] = []
    starts = [int(rows.index[0]) for _, rows in first.groupby("domain", sort=False)] + [len(first) + 1]
    for i, (label, frame) in enumerate(frames.items()):
        own = style.mark(label, i)
        for j, (_, rows) in enumerate(frame.groupby("domain", sort=False)):
            running = _running(rows, quantity)
            axes.plot(rows.index, running, color=own.colour, linestyle=own.line, linewidth=0.8)
            number = common.measure_rows(rows, quantity)
            if number.value is None:
                continue
            heights.append(number.value)
            x = rows.index[0] + (rows.index[-1] - rows.index[0]) * (i + 1) / (len(frames) + 1)
            axes.errorbar(
                x, number.value, yerr=common.error(number), color=own.colour, marker=own.marker, markersize=6,
                markeredgecolor="black", markeredgewidth=0.5, capsize=2, linestyle=own.line, linewidth=1,
                label=label if j == 0 else None,
            )  # fmt: skip
        if label == dashed:
            axes.axhline(common.of_rows(frame, quantity), color=own.colour, linestyle=(0, (6, 3)), linewidth=0.8)
    for start in starts[1:-1]:
        axes.axvline(start - 0.5, color="#888888", linewidth=0.5)
    names = list(first["domain"].unique())
    for name, (start, end) in zip(names, pairwise(starts)):
        text = textwrap.fill(common.domain(str(name)), 13)
        middle = (start + end - 1) / 2
        axes.annotate(text, (middle, 1), (0, 2), ("data", "axes fraction"), "offset points", ha="center", va="bottom",
                      fontsize=style.SMALL)  # fmt: skip
    axes.set_xlim(0.5, len(first) + 0.5)
    common.whole(axes)
    if heights and axes.get_ylim()[1] > CUT * max(heights):
        axes.set_ylim(0, CUT * max(heights))
    axes.set_ylabel(textwrap.fill(common.QUANTITIES[quantity][0], 14))
    if quantity == "speedup":
        common.level(axes)


def _running(rows: pd.DataFrame, quantity: str) -> list[float]:
    """A quantity over the last prompts of this task up to each."""
    return [common.of_rows(rows.iloc[max(0, end - WINDOW) : end], quantity) for end in range(1, len(rows) + 1)]


def so_far(axes: Axes, lines: Mapping[str, Cell], stops: Mapping[str, int | None] | None = None) -> None:
    """Speedup over all prompts so far, prompt by prompt; a star where a search stopped."""
    for i, (label, cell) in enumerate(lines.items()):
        own, values = style.mark(label, i), common.cumulative(common.stream(cell.run))
        every = max(1, len(values) // 8)
        axes.plot(
            values.index, values, color=own.colour, linestyle=own.line, marker=own.marker, markevery=every, label=label
        )
        stop = (stops or {}).get(label)
        if stop is not None:
            axes.plot(
                stop, values[stop], marker="*", markersize=11, color=own.colour, markeredgecolor="black",
                linestyle="", zorder=4,
            )  # fmt: skip
    common.level(axes)
    axes.set_xlabel("prompts so far")
    common.whole(axes)


def last_change(cell: Cell) -> int | None:
    """Position in the stream of the last prompt in which the set changed or a search estimate was made."""
    steps = cell.run.steps[cell.run.steps["arm"] == "method"].sort_values(["repeat", "prompt_index", "step"])
    drafted = steps.dropna(subset=["layer_set_id"])
    changed = drafted[(drafted["layer_set_id"] != drafted["layer_set_id"].shift()).fillna(False).astype(bool)]
    events = pd.concat([changed, steps[steps["est_alpha"].notna()]])[["repeat", "prompt_index"]]
    rows = common.stream(cell.run).reset_index(names="position")
    found = rows.merge(events.drop_duplicates(), on=["repeat", "prompt_index"])["position"]
    return int(found.max()) if len(found) else None


def transfer(replication: Replication) -> Figure | Cannot:
    """Speedup of each task's set on each task: rows are the tasks searched on."""
    drawn = common.cells(replication)
    rows: dict[str, Cell] = {str(common.stream(cell.run)["domain"].iloc[0]): cell for cell in drawn}
    if len(rows) < 2:
        return Cannot(
            f"It needs runs that search on different tasks; those there are all search on {next(iter(rows))}."
        )
    names = {domain: cell.setting("skip_set") for domain, cell in rows.items()}
    table = [[_on(cell, domain) for domain in rows] for cell in rows.values()]
    values = np.array([[np.nan if n is None or n.value is None else n.value for n in line] for line in table])
    figure, body = common.page(style.PAGE, 0.45 * len(rows) + 1.5)
    axes = body.subplots()
    image = axes.imshow(values, cmap="cividis", aspect="auto")
    low, high = np.nanmin(values), np.nanmax(values)
    for i, line in enumerate(table):
        for j, number in enumerate(line):
            dark = not np.isnan(values[i, j]) and values[i, j] < (low + high) / 2
            axes.text(j, i, _cell_text(number), ha="center", va="center", fontsize=style.SMALL,
                      color="white" if dark else "black", fontweight="bold" if i == j else "normal")  # fmt: skip
    labels = [textwrap.fill(name, 13, break_long_words=False) for name in names.values()]
    axes.set_xticks(range(len(rows)), labels)
    axes.set_yticks(range(len(rows)), labels)
    axes.set_xlabel("decoded task")
    axes.set_ylabel("task that the set was searched on")
    for spine in axes.spines.values():
        spine.set_visible(False)
    body.colorbar(image, ax=axes, label="speedup over AR (×)")
    note = "Below each value: its 95 % BCa bootstrap interval over prompts. Bold: the set's own task."
    return common.finish(figure, replication, drawn, note)


def _on(cell: Cell, domain: str) -> Measured | None:
    """The speedup of a cell on a task of its stream."""
    rows = common.stream(cell.run)
    own = rows[rows["domain"] == domain]
    return common.measure_rows(own, "speedup") if len(own) else None


def _cell_text(number: Measured | None) -> str:
    if number is None or number.value is None:
        return "–"
    text = f"{number.value:.2f}"
    return text if number.low is None else f"{text}\n[{number.low:.2f}, {number.high:.2f}]"
