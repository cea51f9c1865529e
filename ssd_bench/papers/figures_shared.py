"""What the papers' figures share: the cells they draw, streams of prompts, titles, captions, bars and lines."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from ssd_bench import metrics, style
from ssd_bench.metrics import Measured, intervals
from ssd_bench.papers.cells import Cell, Replication
from ssd_bench.papers.rooms import name_of
from ssd_bench.records.reader import Run

DOMAINS = {
    "cnn_dm": "CNN/DM", "cnndm": "CNN/DM", "gsm8k": "GSM8K", "tinystories": "TinyStories", "wmt16": "WMT16 DE-EN",
    "wmt14": "WMT14 DE-EN", "spider2": "Spider2", "sql": "Spider2", "alpaca": "Alpaca", "xsum": "XSum", "math": "MATH",
    "natural_questions": "Natural Questions",
}  # fmt: skip
INTERVALS = "Bars on values: 95 % BCa bootstrap intervals over prompts."


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
        *(f"{caveat}." for caveat in unique(cell.run.header.get("caveat") or "" for cell in drawn) if caveat),
    ]
    style.describe(figure, title, " ".join(part for part in parts if part))
    return figure


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


def measure_rows(rows: pd.DataFrame, quantity: str) -> Measured:
    """A quantity over these rows of a stream, with its interval over prompts."""
    _, columns, statistic = QUANTITIES[quantity]
    sums = rows.groupby("prompt_index")[list(columns)].sum()
    return intervals.measure(statistic, *(sums[name].to_numpy(dtype=float) for name in columns))


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
