"""What the papers' figures share: the cells they draw, streams of prompts, titles, captions, bars and lines."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from ssd_bench import metrics, style
from ssd_bench.metrics import Level, Measured, intervals
from ssd_bench.papers.cells import Cell, Replication
from ssd_bench.papers.rooms import name_of
from ssd_bench.records.reader import Run

DOMAINS = {
    "cnn_dm": "CNN/DM", "cnndm": "CNN/DM", "gsm8k": "GSM8K", "tinystories": "TinyStories", "wmt16": "WMT16 DE-EN",
    "wmt14": "WMT14 DE-EN", "spider2": "Spider2", "sql": "Spider2", "alpaca": "Alpaca", "xsum": "XSum", "math": "MATH",
    "natural_questions": "Natural Questions",
}  # fmt: skip
WINDOW = 10
"""Prompts of a running mean, fewer where a task has few."""
CUT = 1.6
"""An axis ends at this multiple of the largest value of a task: a single prompt can be far above it."""
INTERVALS = "Bars on values: 95 % intervals over prompts."


@dataclass(frozen=True)
class Cannot:
    """An exhibit that cannot be drawn from what the runs hold.

    Attributes:
        reason: one sentence for the reader of a report.
    """

    reason: str


def cells(replication: Replication, **labels: str) -> list[Cell]:
    """The cells with these labels that have a record, each record once: at a small scale several cells share one.

    Where the paper's model was replaced they are labelled with that of the record.
    """
    found: dict[Path, Cell] = {}
    for cell in replication.where(**labels):
        if replication.scale != "paper":
            cell = replace(cell, labels={**cell.labels, "model": str(cell.run.header["model"]["name"])})
        found.setdefault(cell.path, cell)
    return list(found.values())


def missing(replication: Replication) -> Cannot:
    """Why there is nothing to draw at all."""
    errors = sorted({cell.error for cell in replication.cells if cell.error})
    if errors:
        return Cannot(f"No run of it was finished: {'; '.join(errors)}")
    return Cannot(f"None of its runs was made yet: `{replication.command}` makes them.")


def unique(values: Iterable[str]) -> list[str]:
    """The distinct values in order of appearance."""
    return list(dict.fromkeys(values))


def finish(figure: Figure, replication: Replication, drawn: Sequence[Cell], note: str) -> Figure:
    """Title (paper, exhibit, rehearsal) and caption (what is drawn, n, runs that are missing)."""
    experiment = replication.experiment
    panel = experiment.name[-1] if experiment.name[-2].isdigit() and experiment.name[-1].isalpha() else ""
    title = f"{name_of(experiment.paper)} {experiment.exhibit}{panel}"
    models = unique(str(cell.run.header["model"]["name"]) for cell in drawn)
    if any(cell.run.header["model"].get("rehearsal") for cell in drawn):
        title += f" – rehearsal on the {', '.join(models)}"
    elif replication.scale != "paper":
        title += f" – at scale {replication.scale}, on {', '.join(models)}"
    counts = sorted({int(cell.run.prompts["prompt_index"].nunique()) for cell in drawn})
    numbers = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    asked = len(replication.cells)
    left = asked - sum(cell.record is not None for cell in replication.cells)
    parts = [
        f"{', '.join(unique(cell['model'] for cell in drawn))}; {', '.join(unique(cell['task'] for cell in drawn))}.",
        note,
        f"n = {numbers} prompts{' a run' if len(drawn) > 1 else ''}.",
        f"{left} of {asked} runs are missing." if left else "",
        *(f"Void: {_named(cell)}, {cell.void}." for cell in drawn if cell.void),
        *(f"{caveat}." for caveat in unique(cell.run.header.get("caveat") or "" for cell in drawn) if caveat),
    ]
    style.describe(figure, title, " ".join(part for part in parts if part))
    return figure


def _named(cell: Cell) -> str:
    return " ".join(filter(None, (cell["task"], cell["method"], cell["setting"])))


def page(width: float, height: float) -> tuple[Figure, SubFigure]:
    """An empty figure and the part of it for panels and legend, between title and caption."""
    figure = style.new(width, height)
    return figure, figure.subfigures(1, 1, squeeze=False)[0, 0]


def legend(body: SubFigure, axes: Axes | Sequence[Axes], ncols: int) -> None:
    """One legend above all panels, of what these axes hold."""
    pairs = [own.get_legend_handles_labels() for own in ([axes] if isinstance(axes, Axes) else axes)]
    handles: list[Any] = [handle for found, _ in pairs for handle in found]
    labels: list[Any] = [label for _, found in pairs for label in found]
    body.legend(handles, labels, loc="outside upper left", ncols=ncols, handlelength=2.2)


# --- numbers ----------------------------------------------------------------------------------------------------------


def measured(summary: Mapping[str, Any], name: str) -> Measured:
    """A number of a summary with its interval."""
    return Measured(summary[name], summary.get(f"{name}_lo"), summary.get(f"{name}_hi"))


def scaled(number: Measured, factor: float) -> Measured:
    """The number in another unit."""
    low, high = ((None if v is None else v * factor) for v in (number.low, number.high))
    return Measured(None if number.value is None else number.value * factor, low, high, number.n)


def stream(run: Run) -> pd.DataFrame:
    """The prompts that both arms decoded, in the order of the stream, one row each, the index counting from 1.

    Returns:
        Columns domain, prompt_index, repeat, tokens, ms, ar_tokens, ar_ms (decode only), accepted, drafted, emitted,
        passes (of the method).
    """
    keys = ["repeat", "prompt_index"]
    both = metrics.paired(run.prompts)
    both = both.assign(tokens=(both["new_tokens"] - 1).clip(lower=0), ms=both["decode_ms"]).set_index(keys)
    method = both.loc[both["arm"] == "method", ["domain", "tokens", "ms"]]
    ar = both.loc[both["arm"] == "ar", ["tokens", "ms"]].add_prefix("ar_")
    columns = {"accepted_len": "accepted", "draft_len": "drafted", "emitted": "emitted", "passes": "passes"}
    steps = metrics.of_arm(run.steps, "method").assign(passes=1).groupby(keys)[list(columns)].sum()
    rows = method.join(ar).join(steps.rename(columns=columns)).fillna(dict.fromkeys(columns.values(), 0))
    rows = rows.sort_index().reset_index()
    rows.index += 1
    return rows


QUANTITIES: dict[str, tuple[str, tuple[str, ...], Callable[..., Any]]] = {
    "speedup": ("speedup over AR (×)", ("tokens", "ms", "ar_tokens", "ar_ms"), intervals.ratio_of_ratios),
    "alpha": ("acceptance rate α", ("accepted", "drafted"), intervals.ratio_of_sums),
    "M": ("tokens per verification M", ("emitted", "passes"), intervals.ratio_of_sums),
}
"""Name -> label of its axis, the columns of `stream` that it is made of, and how."""


def of_rows(rows: pd.DataFrame, quantity: str) -> float:
    """A quantity over these rows of a stream, NaN where it is not defined."""
    _, columns, statistic = QUANTITIES[quantity]
    with np.errstate(all="ignore"):
        value = float(statistic(*(rows[name].to_numpy(dtype=float) for name in columns)))
    return value if np.isfinite(value) else float("nan")


def measure_rows(rows: pd.DataFrame, quantity: str, noise: Level | None = None) -> Measured:
    """A quantity over these rows of a stream, with its interval over prompts, of a speedup over moments as well."""
    _, columns, statistic = QUANTITIES[quantity]
    sums = rows.groupby("prompt_index")[list(columns)].sum()
    number = intervals.measure(statistic, *(sums[name].to_numpy(dtype=float) for name in columns))
    return number if noise is None or quantity != "speedup" else intervals.widened(number, noise.speedup)


def cumulative(rows: pd.DataFrame, quantity: str = "speedup") -> pd.Series[float]:
    """A quantity over all prompts of a stream so far."""
    sums = rows[list(QUANTITIES[quantity][1])].cumsum()
    return pd.Series([of_rows(sums.loc[[i]], quantity) for i in sums.index], sums.index, dtype=float)


# --- drawing ----------------------------------------------------------------------------------------------------------


def error(number: Measured) -> list[list[float]] | None:
    """The interval as matplotlib takes it."""
    if number.value is None or number.low is None or number.high is None:
        return None
    return [[number.value - number.low], [number.high - number.value]]


def line(axes: Axes, x: Sequence[float], numbers: Sequence[Measured], mark: style.Mark, label: str) -> None:
    """A line through numbers with their intervals; undefined ones are left out."""
    points = [(at, number) for at, number in zip(x, numbers) if number.value is not None]
    axes.plot(
        [at for at, _ in points], [number.value or 0.0 for _, number in points],
        color=mark.colour, marker=mark.marker, linestyle=mark.line, label=label,
    )  # fmt: skip
    for at, number in points:
        axes.errorbar(at, number.value or 0.0, yerr=error(number), color=mark.colour, capsize=2, linewidth=0.8)


def bars(axes: Axes, groups: Sequence[str], series: Mapping[str, Sequence[Measured | None]], unit: str,
         marks: Mapping[str, style.Mark] | None = None) -> None:  # fmt: skip
    """Groups of bars with intervals and their values written on top.

    Args:
        series: label -> a number for each group, None where there is none.
        unit: label of the axis.
        marks: of the labels, where they are not those of methods.
    """
    width, tops, named = 0.8 / max(len(series), 1), [0.0], set()
    for group in range(len(groups)):
        there = [(i, label, numbers[group]) for i, (label, numbers) in enumerate(series.items())]
        present = [(i, label, number) for i, label, number in there if number is not None and number.value is not None]
        for slot, (i, label, number) in enumerate(present):
            assert number is not None and number.value is not None, "those are left out above"
            own = (marks or {}).get(label) or style.mark(label, i)
            x, top = group + (slot - (len(present) - 1) / 2) * width, number.high or number.value
            axes.bar(
                x, number.value, 0.92 * width, color=own.colour, hatch=own.hatch, edgecolor="white", linewidth=0,
                label="_" if label in named else label,
            )  # fmt: skip
            axes.errorbar(x, number.value, yerr=error(number), color="black", capsize=1.5, linewidth=0.8)
            axes.annotate(
                f"{number.value:.2f}", (x, top), (0, 3.5), textcoords="offset points", ha="center",
                fontsize=style.SMALL, rotation=90 if len(series) * len(groups) > 10 else 0,
            )  # fmt: skip
            tops.append(top)
            named.add(label)
    axes.set_xticks(range(len(groups)), [textwrap.fill(group, 14) for group in groups])
    axes.set_xlim(-0.55, len(groups) - 0.45)
    axes.set_ylim(0, 1.25 * max(tops))
    if "α" in unit:
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_ylabel(unit)


def level(axes: Axes, value: float = 1.0) -> None:
    """A thin line at a value that matters, such as the speed of AR."""
    axes.axhline(value, color="#888888", linewidth=0.6, zorder=0)


def whole(axes: Axes) -> None:
    """Ticks of the x axis at whole numbers only."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def domain(name: str) -> str:
    """A part of a stream as the papers call it."""
    return DOMAINS.get(name, name.replace("_", " "))


# --- along a stream ---------------------------------------------------------------------------------------------------


def along(replication: Replication, quantities: Sequence[str], dashed: str | None = None) -> Figure | Cannot:
    """Quantities along the stream, task by task: running means, and a value with its interval for each task.

    Args:
        dashed: method whose value over the whole stream is a dashed line, as in KNN-SSD's figures.
    """
    drawn = cells(replication)
    models = unique(cell["model"] for cell in drawn)
    figure, body = page(style.PAGE, 1.1 + 1.5 * len(quantities) * len(models))
    panels = body.subplots(len(quantities) * len(models), 1, squeeze=False)[:, 0]
    for i, axes in enumerate(panels):
        model, quantity = models[i // len(quantities)], quantities[i % len(quantities)]
        own = [cell for cell in drawn if cell["model"] == model]
        frames = {_label(cell): (_by_task(cell), cell.noise) for cell in own}
        _along(axes, frames, quantity, dashed)
        if len(models) > 1 and i % len(quantities) == 0:
            axes.set_title(model, loc="left", pad=22, fontweight="bold")  # above the names of the tasks
    panels[-1].set_xlabel("prompts, grouped by task")
    legend(body, panels[0], 4)
    note = "Lines: running means. Large marks: all prompts of a task, with 95 % intervals over them."
    note += f" An axis ends at most at {CUT} times its largest mark."
    return finish(figure, replication, drawn, note + (f" Dashed: {dashed} over all." if dashed else ""))


def _label(cell: Cell) -> str:
    return cell["method"]


def _by_task(cell: Cell) -> pd.DataFrame:
    """The stream of a cell, the prompts of a task together, positions from 1."""
    rows = stream(cell.run)
    order = {name: i for i, name in enumerate(unique(rows["domain"]))}
    rows = rows.sort_values("domain", key=lambda names: names.map(order), kind="stable").reset_index(drop=True)
    rows.index += 1
    return rows


def _along(
    axes: Axes, frames: Mapping[str, tuple[pd.DataFrame, Level | None]], quantity: str, dashed: str | None
) -> None:
    first, _ = next(iter(frames.values()))
    heights: list[float] = []
    starts = [int(rows.index[0]) for _, rows in first.groupby("domain", sort=False)] + [len(first) + 1]
    for i, (label, (frame, noise)) in enumerate(frames.items()):
        own = style.mark(label, i)
        for j, (_, rows) in enumerate(frame.groupby("domain", sort=False)):
            running = _running(rows, quantity)
            axes.plot(rows.index, running, color=own.colour, linestyle=own.line, linewidth=0.8)
            number = measure_rows(rows, quantity, noise)
            if number.value is None:
                continue
            heights.append(number.value)
            x = rows.index[0] + (rows.index[-1] - rows.index[0]) * (i + 1) / (len(frames) + 1)
            axes.errorbar(
                x, number.value, yerr=error(number), color=own.colour, marker=own.marker, markersize=6,
                markeredgecolor="black", markeredgewidth=0.5, capsize=2, linestyle=own.line, linewidth=1,
                label=label if j == 0 else None,
            )  # fmt: skip
        if label == dashed:
            axes.axhline(of_rows(frame, quantity), color=own.colour, linestyle=(0, (6, 3)), linewidth=0.8)
    for start in starts[1:-1]:
        axes.axvline(start - 0.5, color="#888888", linewidth=0.5)
    names = list(first["domain"].unique())
    for name, (start, end) in zip(names, pairwise(starts)):
        text = textwrap.fill(domain(str(name)), 13)
        middle = (start + end - 1) / 2
        axes.annotate(text, (middle, 1), (0, 2), ("data", "axes fraction"), "offset points", ha="center", va="bottom",
                      fontsize=style.SMALL)  # fmt: skip
    axes.set_xlim(0.5, len(first) + 0.5)
    whole(axes)
    if heights and axes.get_ylim()[1] > CUT * max(heights):
        axes.set_ylim(0, CUT * max(heights))
    axes.set_ylabel(textwrap.fill(QUANTITIES[quantity][0], 14))
    if quantity == "speedup":
        level(axes)


def _running(rows: pd.DataFrame, quantity: str) -> list[float]:
    """A quantity over the last prompts of this task up to each."""
    return [of_rows(rows.iloc[max(0, end - WINDOW) : end], quantity) for end in range(1, len(rows) + 1)]


def so_far(axes: Axes, lines: Mapping[str, Cell], stops: Mapping[str, int | None] | None = None) -> None:
    """Speedup over all prompts so far, prompt by prompt; a star where a search stopped."""
    for i, (label, cell) in enumerate(lines.items()):
        own, values = style.mark(label, i), cumulative(stream(cell.run))
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
    level(axes)
    axes.set_xlabel("prompts so far")
    whole(axes)


def last_change(cell: Cell) -> int | None:
    """Position in the stream of the last prompt in which the set changed or a search estimate was made."""
    steps = cell.run.steps[cell.run.steps["arm"] == "method"].sort_values(["repeat", "prompt_index", "step"])
    drafted = steps.dropna(subset=["layer_set_id"])
    changed = drafted[(drafted["layer_set_id"] != drafted["layer_set_id"].shift()).fillna(False).astype(bool)]
    events = pd.concat([changed, steps[steps["est_alpha"].notna()]])[["repeat", "prompt_index"]]
    rows = stream(cell.run).reset_index(names="position")
    found = rows.merge(events.drop_duplicates(), on=["repeat", "prompt_index"])["position"]
    return int(found.max()) if len(found) else None


def transfer(replication: Replication) -> Figure | Cannot:
    """Speedup of each task's set on each task: rows are the tasks searched on."""
    drawn = cells(replication)
    rows: dict[str, Cell] = {str(stream(cell.run)["domain"].iloc[0]): cell for cell in drawn}
    if len(rows) < 2:
        return Cannot(
            f"It needs runs that search on different tasks; those there are all search on {next(iter(rows))}."
        )
    names = {domain: cell.setting("skip_set") for domain, cell in rows.items()}
    table = [[_on(cell, domain) for domain in rows] for cell in rows.values()]
    values = np.array([[np.nan if n is None or n.value is None else n.value for n in line] for line in table])
    figure, body = page(style.PAGE, 0.45 * len(rows) + 1.5)
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
    note = "Below each value: its 95 % interval over prompts. Bold: the set's own task."
    return finish(figure, replication, drawn, note)


def _on(cell: Cell, domain: str) -> Measured | None:
    """The speedup of a cell on a task of its stream."""
    rows = stream(cell.run)
    own = rows[rows["domain"] == domain]
    return measure_rows(own, "speedup", cell.noise) if len(own) else None


def _cell_text(number: Measured | None) -> str:
    if number is None or number.value is None:
        return "–"
    text = f"{number.value:.2f}"
    return text if number.low is None else f"{text}\n[{number.low:.2f}, {number.high:.2f}]"
