"""What the papers' figures share: the cells they draw, what is void, the papers' numbers, captions, bars and lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.markers import CARETDOWNBASE, CARETUPBASE
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from ssd_bench import style
from ssd_bench.metrics import Measured
from ssd_bench.metrics.text import TOY
from ssd_bench.papers.cells import Cell, Replication
from ssd_bench.papers.grid import AXES
from ssd_bench.papers.ran import named
from ssd_bench.papers.reported import Number, numbers
from ssd_bench.papers.rooms import name_of

INTERVALS = "Bars on values: 95 % intervals over prompts."
VOID_LABEL, PAPER = "void", "paper"
"""In a legend: what decides nothing, and what the paper itself reports."""
SYMBOLS = {
    "beta=": "β=",
    "lambda=": "λ=",
    "tau=": "τ=",
    "opt_interval=": "T=",
    "skip_set=": "set=",
    ";": ", ",
    "=-": "=−",
    "=": " = ",
}
CARETS = {"low": CARETUPBASE, "high": CARETDOWNBASE, "max": CARETDOWNBASE}
SIGNS = {"low": "≥ ", "high": "≤ ", "max": "≤ ", "about": "≈ "}
PAPER_ZORDER = 1.5
"""Drawn after bars and before lines, so that none of our numbers is hidden."""
MAX_BAR_WIDTH = 0.4
"""Of a bar, where there are few; groups are 1 apart."""


@dataclass(frozen=True)
class NotDrawable:
    """An exhibit that cannot be drawn from what the runs hold.

    Attributes:
        reason: one sentence for the reader of a report.
    """

    reason: str


@dataclass(frozen=True)
class PlotValue(Measured):
    """A number as it is drawn.

    Attributes:
        void: why its cell decides nothing; "" where it may decide.
    """

    void: str = ""


def cells(replication: Replication, **labels: str) -> list[Cell]:
    """The cells with these labels that have a record, each record once: at a small scale several cells share one.

    They are labelled with the model that ran and its size.
    """
    found: dict[Path, Cell] = {}
    for cell in replication.where(**labels):
        cell = replace(cell, labels={**cell.labels, "model": cell.ran.text})
        found.setdefault(cell.path, cell)
    return list(found.values())


def missing_runs(replication: Replication) -> NotDrawable:
    """Why there is nothing to draw at all."""
    errors = sorted({cell.error for cell in replication.cells if cell.error})
    if errors:
        return NotDrawable(f"No run of it was finished: {'; '.join(errors)}")
    return NotDrawable(f"None of its runs was made yet: `{replication.command}` makes them.")


def unique(values: Iterable[str]) -> list[str]:
    """The distinct values in order of appearance."""
    return list(dict.fromkeys(values))


def pretty(setting: str) -> str:
    """A setting with the papers' symbols."""
    for written, symbol in SYMBOLS.items():
        setting = setting.replace(written, symbol)
    return setting


# --- page, caption, legend --------------------------------------------------------------------------------------------


def new_figure(width: float, height: float) -> tuple[Figure, SubFigure]:
    """An empty figure and the part of it for panels and legend, between title and caption."""
    figure = style.new(width, height)
    return figure, figure.subfigures(1, 1, squeeze=False)[0, 0]


def finish(figure: Figure, replication: Replication, drawn: Sequence[Cell], note: str) -> Figure:
    """Title (paper, exhibit, the model that ran), caption (what is drawn, n, void cells, the paper's numbers, gaps)."""
    experiment = replication.experiment
    panel = experiment.name[-1] if experiment.name[-2].isdigit() and experiment.name[-1].isalpha() else ""
    title = f"{name_of(experiment.paper)} {experiment.exhibit}{panel}"
    toy = f"{TOY}{'s' if len(drawn) > 1 else ''}" if any(cell.ran.toy for cell in drawn) else "ours"
    title += f" – {toy}: {named(cell.ran for cell in drawn)}"
    if toy == "ours" and replication.scale != "paper":
        title += f", scale {replication.scale}"
    if all(cell.void for cell in drawn):
        title += f" – {style.VOID} void"
    counts = sorted({int(cell.summary["n_prompts"]) for cell in drawn})
    several = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    asked = len(replication.cells)
    left = asked - sum(cell.record is not None for cell in replication.cells)
    parts = [
        f"{', '.join(unique(cell['model'] for cell in drawn))}; {', '.join(unique(cell['task'] for cell in drawn))}.",
        note,
        f"n = {several} prompts{' a run' if len(drawn) > 1 else ''}.",
        f"{left} of {asked} runs are missing." if left else "",
        _paper_sentence(figure, replication, drawn),
        *_void_sentences(drawn),
        *(f"{caveat}." for caveat in unique(cell.header.get("caveat") or "" for cell in drawn) if caveat),
    ]
    style.describe(figure, title, " ".join(part for part in parts if part))
    return figure


def _void_sentences(drawn: Sequence[Cell]) -> list[str]:
    """A sentence for each reason for which cells decide nothing; they are named by what tells the drawn ones apart."""
    axes = [axis for axis in AXES if len(unique(cell[axis] for cell in drawn)) > 1] or ["method"]
    found: dict[str, list[str]] = {}
    for cell in drawn:
        if cell.void:
            reason, timed, apart = cell.void.partition(", timed ")
            name = " ".join(filter(None, (cell[axis] for axis in axes)))
            found.setdefault(reason, []).append(f"{name} (timed {apart})" if timed else name)
    return [f"{style.VOID} void, {pretty(reason)}: {'; '.join(map(pretty, names))}." for reason, names in found.items()]


def _paper_sentence(figure: Figure, replication: Replication, drawn: Sequence[Cell]) -> str:
    """What the grey marks are, if there are any."""
    labels = [label for axes in figure.axes for label in axes.get_legend_handles_labels()[1]]
    if not any(label.startswith(PAPER) for label in labels):
        return ""
    found = _exhibit_numbers(replication)
    asked = {paper_model(replication, cell["model"]) for cell in drawn}
    models = [number.model for number in found if number.model in asked] or [n.model for n in found if n.model]
    named = f" on {', '.join(unique(models))}" if models else ""
    carets = any(number.bound in CARETS for number in found)
    return f"Grey: the paper's own numbers{named}{'; carets: at least, at most' if carets else ''}."


def draw_legend(body: SubFigure) -> None:
    """One legend above all panels, of what they hold, each label once, in as many columns as fit."""
    found: dict[str, Any] = {}
    for axes in body.axes:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            found.setdefault(label, handle)
    last = [label for label in found if label == VOID_LABEL] + [label for label in found if label.startswith(PAPER)]
    labels = [label for label in found if label not in last] + last

    def width(columns: int) -> float:
        """Points, by the mean width of a letter."""
        return 35 * columns - 8 + 4.2 * sum(max(map(len, part)) for part in np.array_split(labels, columns))

    room = 72 * body.get_figure(root=True).get_figwidth()
    columns = max((n for n in range(1, len(labels) + 1) if width(n) < room), default=1)
    body.legend([found[label] for label in labels], labels, loc="outside upper left", ncols=columns, handlelength=2.2)


# --- what is void, and what the paper says ----------------------------------------------------------------------------


def summary_value(summary: Mapping[str, Any], name: str) -> Measured:
    """A number of a summary with its interval."""
    return Measured(summary[name], summary.get(f"{name}_lo"), summary.get(f"{name}_hi"))


def plot_value(cell: Cell, number: Measured | str) -> PlotValue:
    """A number of a cell, by its name in the summary or worked out, to be drawn."""
    number = summary_value(cell.summary, number) if isinstance(number, str) else number
    return PlotValue(number.value, number.low, number.high, number.n, cell.void)


def trace_labels(lines: Mapping[str, Cell]) -> dict[str, str]:
    """Of curves with one trace the first, and what a legend calls it: it stands for the others, too."""
    alike: dict[str, list[str]] = {}
    for label, cell in lines.items():
        assert cell.record is not None, "what has no record is not drawn"
        alike.setdefault(cell.record.trace, []).append(label)
    texts = {}
    for first, *others in alike.values():
        rest = f"{len(others)} other{'s' if len(others) > 1 else ''}"
        texts[first] = f"{first} (and {rest} with its trace)" if others else first
    return texts


def void_sign(cell: Cell) -> str:
    """What is added to the name of a cell that decides nothing."""
    return f" {style.VOID}" if cell.void else ""


def paper_numbers(replication: Replication, metric: str, **wanted: str) -> list[Number]:
    """The paper's numbers of this exhibit and metric with these `model`, `task` or `method`."""
    found = [number for number in _exhibit_numbers(replication) if number.metric == metric]
    return [number for number in found if all(getattr(number, name) == value for name, value in wanted.items())]


def _exhibit_numbers(replication: Replication) -> list[Number]:
    own = (replication.experiment.paper, replication.experiment.exhibit)
    return [number for number in numbers() if (number.paper, number.exhibit) == own]


def paper_model(replication: Replication, model: str) -> str:
    """Return the paper's model to compare with `model`, a label of `cells`: itself, else the first it stands for."""
    own = [cell for cell in replication.where() if cell.ran.text == model]
    nearest = sorted(own, key=lambda cell: not cell.is_of_papers_model) or replication.cells
    return nearest[0]["model"]


def paper_label(number: Number) -> str:
    """Return what a legend calls a number of the paper, with the paper's model."""
    return f"{PAPER}: {number.model}" if number.model else PAPER


def printed_text(number: Number) -> str:
    """A number as the paper prints it."""
    return f"{SIGNS.get(number.bound, '')}{number.printed}"


def draw_paper_numbers(
    axes: Axes, found: Iterable[Number], over: tuple[float, float] | None = None, marker: str = "", name: str = ""
) -> None:
    """The paper's numbers as thin grey lines, with carets up from a lower bound and down from an upper one.

    Args:
        over: part of the x axis that they are about; None: all of it.
        marker: of the series that they are of, at the end of the line.
        name: what they are of, right of the panel before the number.
    """
    for number in found:
        place: dict[str, Any] = {} if over else {"transform": axes.get_yaxis_transform()}
        ends, value = over or (0.0, 1.0), number.value
        axes.plot(
            ends, [value, value], color=style.FAINT, linewidth=1.0, linestyle="-" if over else style.DASHED,
            label=paper_label(number), zorder=PAPER_ZORDER,
            path_effects=[withStroke(linewidth=2.4, foreground="white")], **place,
        )  # fmt: skip
        low, high = axes.get_ylim()
        if not low <= value <= high:
            reach = 0.05 * (high - low)
            axes.set_ylim(min(low, value - reach), max(high, value + reach))
        place |= {"color": style.FAINT, "linestyle": "", "clip_on": False, "zorder": PAPER_ZORDER}
        if number.bound in CARETS:
            caret = CARETS[number.bound]
            axes.plot(np.interp(0.45 if caret == CARETUPBASE else 0.55, (0, 1), ends), value, marker=caret, **place)
        if marker:
            axes.plot(ends[1], value, marker=marker, markerfacecolor="white", **place)
        if name:
            axes.annotate(
                f"{name} {printed_text(number)}", (1, value), (4, 0), ("axes fraction", "data"), "offset points",
                va="center", fontsize=style.SMALL, color=style.FAINT,
            )  # fmt: skip


# --- drawing ----------------------------------------------------------------------------------------------------------


def error_bar(number: Measured) -> list[list[float]] | None:
    """The interval as matplotlib takes it."""
    if number.value is None or number.low is None or number.high is None:
        return None
    return [[number.value - number.low], [number.high - number.value]]


def point_style(mark: style.Mark, void: str = "", face: str = "") -> dict[str, Any]:
    """Colour and marker of points of a series, with another colour inside or not; void ones have the mark of that."""
    if void:
        edge = {"markeredgecolor": mark.colour, "markeredgewidth": 0.3}
        return {"color": mark.colour, "marker": style.VOID_MARKER, "markersize": 6, **edge}
    return {"color": mark.colour, "marker": mark.marker, "markerfacecolor": face or mark.colour}


def explain_void(axes: Axes) -> None:
    """Say in the legend what the mark of void cells is."""
    axes.plot([], [], linestyle="", **point_style(style.Mark(style.FAINT, "", "", ""), VOID_LABEL), label=VOID_LABEL)


def draw_line(axes: Axes, x: Sequence[float], numbers: Sequence[PlotValue], mark: style.Mark, label: str) -> None:
    """A line through numbers with their intervals, broken and grey where one is void; undefined ones are left out."""
    there = [(at, number, number.value) for at, number in zip(x, numbers) if number.value is not None]
    places, values = [at for at, _, _ in there], [value for _, _, value in there]
    solid = [float("nan") if number.void else value for _, number, value in there]
    axes.plot(places, solid, color=mark.colour, marker=mark.marker, linestyle=mark.line, label=label)
    if any(number.void for _, number, _ in there):
        axes.plot(places, values, color=style.FAINT, linestyle=style.DASHED, linewidth=0.8, zorder=1)
        explain_void(axes)
    for at, number, value in there:
        look = point_style(mark, number.void) if number.void else {"color": mark.colour}
        axes.errorbar(at, value, yerr=error_bar(number), capsize=2, linewidth=0.8, **look)


def draw_bars(axes: Axes, groups: Sequence[str], series: Mapping[str, Sequence[PlotValue | None]], unit: str,
         marks: Mapping[str, style.Mark] | None = None) -> dict[tuple[str, str], tuple[float, float]]:  # fmt: skip
    """Groups of bars with intervals, at their feet their values, or on top that they are void.

    Args:
        series: label -> a number for each group, None where there is none.
        unit: label of the axis.
        marks: of the labels, where they are not those of methods.

    Returns:
        Group and label -> where the bar begins and ends.
    """
    width, tops, places = min(MAX_BAR_WIDTH, 0.8 / max(len(series), 1)), [0.0], {}
    own = {label: (marks or {}).get(label) or style.mark(label, i) for i, label in enumerate(series)}
    rotation = 90 if len(series) * len(groups) > 10 else 0
    for i, group in enumerate(groups):
        there = [(label, numbers[i]) for label, numbers in series.items()]
        present = [(label, number) for label, number in there if number is not None and number.value is not None]
        for slot, (label, number) in enumerate(present):
            x = i + (slot - (len(present) - 1) / 2) * width
            tops.append(_draw_bar(axes, x, 0.92 * width, number, own[label], rotation))
            places[group, label] = (x - width / 2, x + width / 2)
    for label in unique(label for _, label in places):
        axes.bar(0, 0, color=own[label].colour, hatch=own[label].hatch, edgecolor="white", linewidth=0, label=label)
    if any(number.void for numbers in series.values() for number in numbers if number is not None):
        explain_void(axes)
    axes.set_xticks(range(len(groups)), [textwrap.fill(group, 14) for group in groups])
    axes.set_xlim(-0.55, len(groups) - 0.45)
    axes.set_ylim(0, 1.25 * max(tops))
    if "α" in unit:
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_ylabel(unit)
    return places


def _draw_bar(axes: Axes, x: float, width: float, number: PlotValue, mark: style.Mark, rotation: int) -> float:
    """One bar with its interval and value; where they end."""
    value = number.value or 0.0
    look: dict[str, Any] = {"facecolor": mark.colour, "hatch": mark.hatch, "edgecolor": "white", "linewidth": 0}
    if number.void:
        look |= {"facecolor": "white", "hatch": style.VOID_HATCH, "edgecolor": mark.colour, "linewidth": 0.6}
    axes.bar(x, value, width, **look)
    axes.errorbar(x, value, yerr=error_bar(number), color=mark.colour if number.void else "black", capsize=1.5,
                  linewidth=0.8)  # fmt: skip
    top = number.high or value
    text, y, angle = (style.VOID, top, 0) if number.void else (f"{value:.2f}", 0.0, rotation)
    axes.annotate(text, (x, y), (0, 3.5), textcoords="offset points", ha="center", fontsize=style.SMALL, rotation=angle,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.7})  # fmt: skip
    return top


def draw_level(axes: Axes, value: float = 1.0) -> None:
    """A thin line at a value that matters, such as the speed of AR."""
    axes.axhline(value, color=style.FAINT, linewidth=0.6, zorder=0)


def use_integer_ticks(axes: Axes) -> None:
    """Ticks of the x axis at whole numbers only."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
