"""Shared parts of the figures: captions, exclusions, the papers' numbers, bars and lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.markers import CARETDOWNBASE, CARETUPBASE
from matplotlib.patheffects import withStroke

from ssd_bench.papers.figures import style
from ssd_bench.papers.ours.cells import SPEED_FACTOR, Replication, ShownCell
from ssd_bench.papers.printed.catalogue import NAMES, version_name
from ssd_bench.papers.printed.reported import Number, find_numbers
from ssd_bench.papers.runs.grid import AXES
from ssd_bench.results.models import model_names
from ssd_bench.results.quantity import Measured
from ssd_bench.results.text import TOY

INTERVALS = "Error bars: 95 % intervals over prompts."
BY_LAYERS = "The run did not draft with layers."
EXCLUDED_LABEL, PAPER = "excluded", "paper"
"""Legend labels of excluded results and the paper's numbers."""
# bound of a paper's number -> marker at its line, and sign before its text
CARETS = {"low": CARETUPBASE, "high": CARETDOWNBASE, "max": CARETDOWNBASE}
SIGNS = {"low": "≥ ", "high": "≤ ", "max": "≤ ", "about": "≈ "}
PAPER_ZORDER = 1.5
"""Z-order of the paper's numbers: above bars, below lines, so that they do not hide ours."""
MAX_BAR_WIDTH = 0.4
"""Widest bar, in distances between groups, for figures with few bars."""


@dataclass(frozen=True)
class NotDrawable:
    """Table or figure that cannot be drawn, with the reason as one sentence."""

    reason: str


@dataclass(frozen=True)
class PlotValue(Measured):
    """Number of a figure; `exclusion` says why its cell is excluded, or is ""."""

    exclusion: str = ""


def missing_runs(replication: Replication) -> NotDrawable:
    """Return why the experiment has no run to draw."""
    errors = sorted({cell.error for cell in replication.cells if cell.error})
    if errors:
        return NotDrawable(f"No run has finished: {'; '.join(errors)}")
    return NotDrawable(f"No runs yet; create them with `{replication.command}`.")


def unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def pretty(setting: str) -> str:
    """Return a setting with the papers' symbols."""
    for name, symbol in NAMES["symbols"].items():
        setting = setting.replace(f"{name}=", f"{symbol}=")
    return setting.replace(";", ", ").replace("=-", "=−").replace("=", " = ")


# --- page, caption, legend --------------------------------------------------------------------------------------------


def new_figure(width: float, height: float) -> tuple[Figure, SubFigure]:
    """Return an empty figure, and its part for panels and legend, between title and caption."""
    figure = style.new(width, height)
    return figure, figure.subfigures(1, 1, squeeze=False)[0, 0]


def finish(
    figure: Figure, replication: Replication, drawn: Sequence[ShownCell], *notes: str, sample: str = ""
) -> Figure:
    """Add title (paper, exhibit, model that ran), caption and, where labels have none, legend; return the figure.

    The caption has models, tasks, `notes`, sample size (default: prompts per run), missing runs, the paper's numbers
    and excluded cells.
    """
    for body in figure.subfigs:
        if not body.legends:
            _draw_legend(body)
    experiment = replication.experiment
    panel = experiment.name[-1] if experiment.name[-2].isdigit() and experiment.name[-1].isalpha() else ""
    title = f"{version_name(experiment.paper)} {experiment.exhibit}{panel}"
    toy = f"{TOY}{'s' if len(drawn) > 1 else ''}" if any(cell.model_ran.toy for cell in drawn) else "ours"
    title += f" – {toy}: {model_names(cell.model_ran for cell in drawn)}"
    if toy == "ours" and replication.scale != "paper":
        title += f", scale {replication.scale}"
    if all(cell.exclusion for cell in drawn):
        title += f" – {style.EXCLUDED} {EXCLUDED_LABEL}"
    planned = len(replication.cells)
    absent = planned - sum(cell.record is not None for cell in replication.cells)
    parts = [
        f"{', '.join(unique(cell['model'] for cell in drawn))}; {', '.join(unique(cell['task'] for cell in drawn))}.",
        *notes,
        f"n = {sample or prompts_per_run(drawn)}.",
        f"{absent} of {planned} runs are missing." if absent else "",
        _paper_sentence(figure, replication, drawn),
        *_excluded_sentences(drawn),
        *(f"{caveat}." for caveat in unique(cell.header.caveat or "" for cell in drawn) if caveat),
    ]
    style.describe(figure, title, " ".join(part for part in parts if part))
    return figure


def prompts_per_run(drawn: Sequence[ShownCell]) -> str:
    """Return the number of prompts as text: `20 prompts`, `10 to 20 prompts per run`."""
    counts = sorted({cell.summary.n_prompts for cell in drawn})
    text = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{text} prompts{' per run' if len(drawn) > 1 else ''}"


def _excluded_sentences(drawn: Sequence[ShownCell]) -> list[str]:
    """Return a sentence per reason of exclusion, with cells named by the axes on which they differ."""
    axes = [axis for axis in AXES if len(unique(cell[axis] for cell in drawn)) > 1] or ["method"]
    by_reason: dict[str, list[str]] = {}
    for cell in drawn:
        if cell.exclusion:
            reason, differs, factor = cell.exclusion.partition(SPEED_FACTOR)
            name = " ".join(filter(None, (cell[axis] for axis in axes)))
            by_reason.setdefault(reason, []).append(
                f"{name} (speedups differ by a factor of {factor})" if differs else name
            )
    return [
        f"{style.EXCLUDED} {EXCLUDED_LABEL} ({pretty(reason)}): {'; '.join(map(pretty, names))}."
        for reason, names in by_reason.items()
    ]


def _paper_sentence(figure: Figure, replication: Replication, drawn: Sequence[ShownCell]) -> str:
    """Return a sentence on the grey marks; "" without any."""
    labels = [label for axes in figure.axes for label in axes.get_legend_handles_labels()[1]]
    if not any(label.startswith(PAPER) for label in labels):
        return ""
    reported = find_numbers(replication.experiment.paper, replication.experiment.exhibit)
    drawn_models = {paper_model(replication, cell["model"]) for cell in drawn}
    models = [number.model for number in reported if number.model in drawn_models] or [
        n.model for n in reported if n.model
    ]
    on_models = f" on {', '.join(unique(models))}" if models else ""
    carets = any(number.bound in CARETS for number in reported)
    return f"Grey: the paper's own numbers{on_models}{'; carets: at least, at most' if carets else ''}."


def _draw_legend(body: SubFigure) -> None:
    """Draw one legend above all panels, each label once, in as many columns as fit."""
    handles: dict[str, Any] = {}
    for axes in body.axes:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    if not handles:
        return
    labels = sorted(handles, key=lambda label: (label.startswith(PAPER), label == EXCLUDED_LABEL))

    def width(columns: int) -> float:
        return 35 * columns - 8 + 4.2 * sum(max(map(len, part)) for part in np.array_split(labels, columns))

    available = 72 * body.get_figure(root=True).get_figwidth()
    columns = max((n for n in range(1, len(labels) + 1) if width(n) < available), default=1)
    body.legend([handles[label] for label in labels], labels, loc="outside upper left", ncols=columns, handlelength=2.2)


# --- exclusions, and the paper's numbers ----------------------------------------------------------------------------


def plot_value(cell: ShownCell, number: Measured | str) -> PlotValue:
    """Return a cell's number to draw: of its summary, by name, or computed."""
    number = cell.summary.number(number) if isinstance(number, str) else number
    return PlotValue(number.value, number.low, number.high, number.n, cell.exclusion)


def find_value(cells: Iterable[ShownCell], name: str, **labels: str) -> PlotValue | None:
    """Return a number of the first cell with these labels, or None."""
    matches = (cell for cell in cells if all(cell[axis] == label for axis, label in labels.items()))
    return next((plot_value(cell, name) for cell in matches), None)


def excluded_sign(cell: ShownCell) -> str:
    """Return the sign after an excluded cell's name; else ""."""
    return f" {style.EXCLUDED}" if cell.exclusion else ""


def paper_numbers(replication: Replication, metric: str, **labels: str) -> list[Number]:
    """Return the exhibit's numbers by metric and `model`, `task` or `method`."""
    return find_numbers(replication.experiment.paper, replication.experiment.exhibit, metric=metric, **labels)


def paper_model(replication: Replication, model: str) -> str:
    """Return the paper's model to compare with a shown cell's `model`: the same, else the first replaced."""
    same_model = [cell for cell in replication.recorded_cells() if cell.model_ran.text == model]
    nearest = sorted(same_model, key=lambda cell: not cell.is_of_papers_model) or replication.cells
    return nearest[0]["model"]


def paper_label(number: Number) -> str:
    """Return a paper number's legend label, with its model."""
    return f"{PAPER}: {number.model}" if number.model else PAPER


def printed_text(number: Number) -> str:
    """Return a number as printed, with the sign of a bound."""
    return f"{SIGNS.get(number.bound, '')}{number.printed}"


def draw_paper_numbers(
    axes: Axes, reported: Iterable[Number], over: tuple[float, float] | None = None, marker: str = "", name: str = ""
) -> None:
    """Draw the paper's numbers as thin grey lines; carets point up from a lower bound, down from an upper one.

    Args:
        over: part of the x axis; None: all of it.
        marker: at the end of the line, or "".
        name: of the series, right of the panel before the number; "": neither.
    """
    look: dict[str, Any] = {"color": style.FAINT, "zorder": PAPER_ZORDER}
    look |= {} if over else {"transform": axes.get_yaxis_transform()}
    line: dict[str, Any] = {"linewidth": 1.0, "linestyle": "-" if over else style.DASHED}
    line |= {"path_effects": [withStroke(linewidth=2.4, foreground="white")]}
    for number in reported:
        ends, value = over or (0.0, 1.0), number.value
        axes.plot(ends, [value, value], label=paper_label(number), **look, **line)
        low, high = axes.get_ylim()
        if not low <= value <= high:
            margin = 0.05 * (high - low)
            axes.set_ylim(min(low, value - margin), max(high, value + margin))
        point = look | {"linestyle": "", "clip_on": False}
        if number.bound in CARETS:
            caret = CARETS[number.bound]
            axes.plot(np.interp(0.45 if caret == CARETUPBASE else 0.55, (0, 1), ends), value, marker=caret, **point)
        if marker:
            axes.plot(ends[1], value, marker=marker, markerfacecolor="white", **point)
        if name:
            where = ("axes fraction", "data")
            axes.annotate(f"{name} {printed_text(number)}", (1, value), (4, 0), where, va="center", **style.GREY_TEXT)


# --- drawing ----------------------------------------------------------------------------------------------------------


def error_bar(number: Measured) -> list[list[float]] | None:
    """Return the interval as matplotlib's `yerr`; None without one."""
    if number.value is None or number.low is None or number.high is None:
        return None
    return [[number.value - number.low], [number.high - number.value]]


def point_style(mark: style.Mark, exclusion: str = "", face: str = "") -> dict[str, Any]:
    """Return points' colour and marker, with `face` as inner colour; excluded points have a special marker."""
    look: dict[str, Any] = {"color": mark.colour, "linestyle": ""}
    if exclusion:
        edge = {"markeredgecolor": mark.colour, "markeredgewidth": 0.3}
        return look | {"marker": style.EXCLUDED_MARKER, "markersize": 6, **edge}
    return look | {"marker": mark.marker, "markerfacecolor": face or mark.colour}


def explain_excluded(axes: Axes) -> None:
    axes.plot([], [], **point_style(style.Mark(style.FAINT, "", "", ""), EXCLUDED_LABEL), label=EXCLUDED_LABEL)


def draw_point(axes: Axes, x: float, number: Measured, **look: Any) -> None:
    """Draw a number, if defined, with its interval."""
    value = float("nan") if number.value is None else number.value
    axes.errorbar(x, value, yerr=error_bar(number), capsize=2, **look)


def draw_line(axes: Axes, x: Sequence[float], numbers: Sequence[PlotValue], mark: style.Mark, label: str) -> None:
    """Draw a line through defined numbers with intervals, dashed and grey at excluded ones."""
    defined = [(at, number, number.value) for at, number in zip(x, numbers) if number.value is not None]
    places, values = [at for at, _, _ in defined], [value for _, _, value in defined]
    solid = [float("nan") if number.exclusion else value for _, number, value in defined]
    axes.plot(places, solid, color=mark.colour, marker=mark.marker, linestyle=mark.line, label=label)
    if any(number.exclusion for _, number, _ in defined):
        axes.plot(places, values, color=style.FAINT, linestyle=style.DASHED, linewidth=0.8, zorder=1)
        explain_excluded(axes)
    for at, number, _ in defined:
        look = point_style(mark, number.exclusion) | {"linestyle": "-"} if number.exclusion else {"color": mark.colour}
        draw_point(axes, at, number, linewidth=0.8, **look)


def draw_bars(
    axes: Axes,
    groups: Sequence[str],
    series: Mapping[str, Sequence[PlotValue | None]],
    unit: str,
    marks: Mapping[str, style.Mark] | None = None,
) -> dict[tuple[str, str], tuple[float, float]]:
    """Draw groups of bars with intervals and, above them, values or the mark of exclusion.

    Args:
        series: label -> one number per group, None if missing.
        unit: of the axis.
        marks: label -> mark, if labels are not methods.

    Returns:
        Group and label -> left and right end of the bar.
    """
    width, tops, places = min(MAX_BAR_WIDTH, 0.8 / max(len(series), 1)), [0.0], {}
    series_marks = {label: (marks or {}).get(label) or style.mark(label, i) for i, label in enumerate(series)}
    rotation = 90 if len(series) * len(groups) > 10 else 0
    for i, group in enumerate(groups):
        numbers = {label: number for label, of_groups in series.items() if (number := of_groups[i]) is not None}
        present = {label: number for label, number in numbers.items() if number.value is not None}
        for slot, (label, number) in enumerate(present.items()):
            x = i + (slot - (len(present) - 1) / 2) * width
            tops.append(_draw_bar(axes, x, 0.92 * width, number, series_marks[label], rotation))
            places[group, label] = (x - width / 2, x + width / 2)
    for label in unique(label for _, label in places):
        mark = series_marks[label]
        axes.bar(0, 0, color=mark.colour, hatch=mark.hatch, edgecolor="white", linewidth=0, label=label)
    if any(number.exclusion for numbers in series.values() for number in numbers if number is not None):
        explain_excluded(axes)
    axes.set_xticks(range(len(groups)), [textwrap.fill(group, 14) for group in groups])
    axes.set_xlim(-0.55, len(groups) - 0.45)
    axes.set_ylim(0, 1.25 * max(tops))
    if "α" in unit:
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_ylabel(unit)
    return places


def _draw_bar(axes: Axes, x: float, width: float, number: PlotValue, mark: style.Mark, rotation: int) -> float:
    value = number.value or 0.0
    look: dict[str, Any] = {"facecolor": mark.colour, "hatch": mark.hatch, "edgecolor": "white", "linewidth": 0}
    if number.exclusion:
        look |= {"facecolor": "white", "hatch": style.EXCLUDED_HATCH, "edgecolor": mark.colour, "linewidth": 0.6}
    axes.bar(x, value, width, **look)
    colour = mark.colour if number.exclusion else "black"
    axes.errorbar(x, value, yerr=error_bar(number), color=colour, capsize=1.5, linewidth=0.8)
    top = number.high or value
    text, angle = (style.EXCLUDED, 0) if number.exclusion else (f"{value:.2f}", rotation)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.7}
    axes.annotate(text, (x, top), (0, 3.5), ha="center", rotation=angle, bbox=box, **style.SMALL_TEXT)
    return top


def draw_level(axes: Axes) -> None:
    """Draw a thin line at AR's speed."""
    axes.axhline(1.0, color=style.FAINT, linewidth=0.6, zorder=0)
