"""Forest plot: two speedups per method with intervals, one panel per model and task, AR at 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.ticker import FixedLocator, FuncFormatter

from ssd_bench.papers.figures import style
from ssd_bench.papers.figures.shared import error_bar
from ssd_bench.papers.figures.style import METHOD_COLOUR
from ssd_bench.papers.ours.cells import ShownCell
from ssd_bench.results.evidence import VariationLevel
from ssd_bench.results.quantity import QUANTITIES

Numbers = tuple[str, str]
"""Numbers of a summary: of the filled marks, which rank methods, and of the hollow ones."""
FILLED: dict[str, Any] = {"color": METHOD_COLOUR, "marker": "o", "markersize": 4.5, "linewidth": 1.2}
HOLLOW = FILLED | {"marker": "s", "markersize": 3.5, "linewidth": 0.7, "markerfacecolor": "white"}
TICKS = (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6)


def height(cells: Sequence[ShownCell], columns: int) -> float:
    return 0.75 + sum(_row_heights(_by_panel(cells), columns))


def _by_panel(cells: Sequence[ShownCell]) -> dict[tuple[str, str], dict[str, ShownCell]]:
    by_panel: dict[tuple[str, str], dict[str, ShownCell]] = {}
    for cell in cells:
        by_panel.setdefault((cell["model"], cell["task"]), {})[cell["method"]] = cell
    return by_panel


def _row_heights(by_panel: Mapping[tuple[str, str], Mapping[str, ShownCell]], columns: int) -> list[float]:
    sizes = [len(by_method) for by_method in by_panel.values()]
    return [0.2 + 0.17 * max(sizes[i : i + columns]) for i in range(0, len(sizes), columns)]


def ranked(cells: Sequence[ShownCell], number: str) -> list[str]:
    """Rank the methods by the geometric mean of a speedup, the fastest first; excluded ones last.

    The mean is over the panels with the most methods, else over the method's own.
    """
    panels = _by_panel(cells).values()
    full = [cell for panel in panels if len(panel) == max(map(len, panels)) for cell in panel.values()]

    def mean(method: str) -> float:
        own = [cell for cell in full if cell["method"] == method] or [c for c in cells if c["method"] == method]
        speedups = [None if cell.exclusion else getattr(cell.summary, number).value for cell in own]
        return float(np.mean([-np.inf if speedup is None else np.log(speedup) for speedup in speedups]))

    return sorted(dict.fromkeys(cell["method"] for cell in cells), key=mean, reverse=True)


def draw(body: SubFigure, cells: Sequence[ShownCell], numbers: Numbers, labels: Numbers, columns: int) -> None:
    """Draw panels, each with its own methods, and legend; a band shows run-to-run variation of measured speedups."""
    by_panel, order = _by_panel(cells), ranked(cells, numbers[0])
    several_models, alike = len({model for model, _ in by_panel}) > 1, len({*map(frozenset, by_panel.values())}) == 1
    heights = _row_heights(by_panel, columns)
    shape, ratios = (len(heights), columns), {"height_ratios": heights}
    grid = body.subplots(*shape, squeeze=False, sharey=alike, sharex=True, gridspec_kw=ratios).ravel()
    panels, unused = grid[: len(by_panel)], grid[len(by_panel) :]
    for ((model, task), by_method), axes in zip(by_panel.items(), panels, strict=True):
        _draw_panel(axes, by_method, [method for method in order if method in by_method], dict(zip(numbers, labels)))
        # the heading names each model in full
        name = model.partition(" (")[0].partition(",")[0]
        title = f"{task}, {name}" if several_models else task
        axes.set_title(title, loc="left", fontweight="bold", fontsize=style.SMALL if several_models else None)
    for axes in panels[-columns:]:  # the last of each column, below which a panel may be missing
        axes.tick_params(labelbottom=True)
    for axes in unused:
        axes.remove()
    body.supxlabel("speedup over AR (×)", fontsize=8)
    # a number's label is drawn with each method, and a panel's methods may all be excluded
    legend = {text: handle for axes in panels for handle, text in zip(*axes.get_legend_handles_labels())}
    body.legend([*legend.values()], [*legend], loc="outside upper left", ncols=2 if columns == 1 else len(legend))


def variation_of(cells: Sequence[ShownCell]) -> VariationLevel | None:
    return next((cell.variation for cell in cells if cell.variation is not None), None)


def _draw_panel(
    axes: Axes, by_method: Mapping[str, ShownCell], methods: Sequence[str], labels: Mapping[str, str]
) -> None:
    variation, band = variation_of([*by_method.values()]), 1.0
    if variation is not None and not any(QUANTITIES[number].times for number in labels):
        # 95 % of repeated timings of one trace are within exp(+-1.96 sigma)
        band = float(np.exp(1.96 * variation.speedup.sigma))
        axes.axvspan(1 / band, band, color="#DDDDDD", linewidth=0, zorder=0, label="run-to-run variation")
    axes.axvline(1, color="#444444", linewidth=0.8, zorder=1, label="AR")
    for i, method in enumerate(methods):
        cell = by_method[method]
        if cell.exclusion:
            text = f"excluded: {cell.exclusion.split(', ')[0]}"
            axes.annotate(text, (1 / band, i), (-3, 0), ha="right", va="center", **style.SMALL_TEXT)
            continue
        for (number, label), shift, look in zip(labels.items(), (-0.14, 0.16), (FILLED, HOLLOW)):
            speedup = getattr(cell.summary, number)
            axes.errorbar(speedup.value, i + shift, xerr=error_bar(speedup), linestyle="", label=label, **look)
    label_methods(axes, methods)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(TICKS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.minorticks_off()
    axes.grid(axis="y", color="#EEEEEE", linewidth=0.6, zorder=0)


def label_methods(axes: Axes, methods: Sequence[str]) -> None:
    """Label the rows of a panel with methods, the first on top."""
    axes.set_yticks(range(len(methods)), methods)
    axes.set_ylim(len(methods) - 0.5, -0.5)
