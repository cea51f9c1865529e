"""Figures, drawn without global state: of a task (speed and time of its methods), of all tasks, and of the papers."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ssd_bench.errors import ConfigError
from ssd_bench.papers.figures import forest, style
from ssd_bench.papers.figures.forest import label_methods
from ssd_bench.papers.figures.shared import NotDrawable, missing_runs, new_figure, prompts_per_run
from ssd_bench.papers.figures.style import ACCOUNTS, AR_COLOUR, METHOD_COLOUR, STYLE
from ssd_bench.papers.ours.cells import Replication
from ssd_bench.papers.ours.match import order_scales
from ssd_bench.papers.printed.catalogue import paper_folders
from ssd_bench.report.results import comparison
from ssd_bench.report.runs import ACCOUNT_LABELS, RunGroup
from ssd_bench.results.models import model_names
from ssd_bench.results.text import TOY

_waiting: list[Replication] = []  # in a forked process: the replications to draw
FIGURES: dict[str, Callable[[Replication], Figure | NotDrawable]] = {
    f"{folder.name}_{name}": draw for folder in paper_folders() for name, draw in folder.figures().items()
}
"""Experiment -> function in the paper's `figures.py` that draws it."""
SVG_LIMIT = 150_000  # bytes; a larger figure is shown as PNG
ROWS = 60
"""Most runs of a group in a task's figure; the table has all runs."""
LONGEST = 30_000  # pixels of the longer side; Matplotlib cannot draw twice as many
FOREST, NARROW = "comparison_forest", "comparison_forest_narrow"


@dataclass(frozen=True)
class DrawnFigure:
    """Files of the figure of an experiment at a scale.

    Attributes:
        models: that ran, with sizes.
        image: for the page, SVG if small, else PNG; None if not drawn.
        reason: why it was not drawn, or "".
        width, height: in screen pixels.
        paths: files written.
    """

    name: str
    scale: str
    models: str
    image: Path | None
    reason: str
    width: int = 0
    height: int = 0
    paths: tuple[Path, ...] = ()


def figure(replication: Replication) -> Figure | NotDrawable | None:
    """Return an experiment's figure, or why it cannot be drawn; None for a table."""
    draw = FIGURES.get(replication.experiment.name)
    if draw is None:
        return None
    if not any(cell.record for cell in replication.cells):
        return missing_runs(replication)
    with matplotlib.rc_context(STYLE):
        return draw(replication)


def task_figure(task: str, groups: Sequence[RunGroup]) -> Figure:
    """Draw speed and time of a task's methods, one row of panels per group of comparable runs.

    Left: decode tokens/s with 95 % intervals, AR first. Right: milliseconds per token, split into drafting,
    verification, method overhead and the rest. At most the `ROWS` fastest runs of a group are drawn.
    """
    groups = [_fastest(group) for group in groups]
    heights = [1.0 + 0.34 * len(group.rows) for group in groups]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.5, sum(heights) + 0.5), layout="constrained")
        figure.suptitle(task, fontweight="bold")
        axes = figure.subplots(len(groups), 2, squeeze=False, height_ratios=heights)
        for (left, right), group in zip(axes, groups, strict=True):
            _draw_speed(left, group)
            _draw_time(right, group)
            left.set_title(textwrap.fill(group.title, 60), fontsize=8, loc="left")
    return figure


def _fastest(group: RunGroup) -> RunGroup:
    runs = group.runs
    if len(runs) <= ROWS:
        return group
    drawn = sorted(runs, key=lambda row: -(row["method_tokens_per_s"] or 0.0))[:ROWS]
    ids = {id(row) for row in (*group.baselines, *drawn)}
    rows = [row for row in group.rows if id(row) in ids]
    return replace(group, title=f"{group.title}; the {ROWS} fastest of {len(runs)} runs", rows=rows)


def _draw_speed(axes: Axes, group: RunGroup) -> None:
    for i, row in enumerate(group.rows):
        rate = row["method_tokens_per_s"] or 0.0
        axes.barh(
            i, rate, 0.7, color=AR_COLOUR if row["method"] == "ar" else METHOD_COLOUR, edgecolor="black", linewidth=0.5
        )
        low, high = row["method_tokens_per_s_lo"], row["method_tokens_per_s_hi"]
        if low is not None:
            axes.errorbar(rate, i, xerr=[[rate - low], [high - rate]], color="black", capsize=2, linewidth=1)
        if row["speedup"] is not None:
            axes.annotate(f"{row['speedup']:.2f}×", (high or rate, i), (4, 0), textcoords="offset points", va="center")
    label_methods(axes, [str(row["method"]) for row in group.rows])
    axes.margins(x=0.18)
    axes.set_xlim(left=0)
    axes.set_xlabel("tokens/s, decode only; ×: speedup over AR in the same run")


def _draw_time(axes: Axes, group: RunGroup) -> None:
    for i, row in enumerate(group.rows):
        rate, start = row["method_tokens_per_s"], 0.0
        for name, (colour, hatch) in ACCOUNTS.items():
            share = max(row[f"{name}_share"] or 0.0, 0.0)
            width = share * 1000 / rate if rate else 0.0
            label = ACCOUNT_LABELS[name] if i == 0 else None
            axes.barh(i, width, 0.7, start, color=colour, hatch=hatch, edgecolor="black", linewidth=0.5, label=label)
            start += width
    label_methods(axes, [str(row["method"]) for row in group.rows])
    axes.tick_params(labelleft=False)
    axes.set_xlabel("ms per token")
    axes.legend(ncols=4, fontsize=7, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), handlelength=1.5)


def forest_plot(replication: Replication, narrow: bool = False) -> Figure:
    """Draw the speedups of all methods, one panel per task: decode and end to end with intervals, AR at 1.

    A band shows run-to-run variation. Methods are ordered by end-to-end speedup over all tasks, the fastest first. A
    narrow plot has one column of panels, for one column of a paper.
    """
    drawn = [cell for cell in replication.shown_cells() if cell.summary.speedup.value is not None]
    columns = 1 if narrow else len({cell["task"] for cell in drawn})
    with matplotlib.rc_context(STYLE):
        figure, body = new_figure(style.COLUMN if narrow else style.PAGE, forest.height(drawn, columns))
        forest.draw(body, drawn, ("speedup_e2e", "speedup"), ("end to end", "decode"), columns)
        varied = forest.variation_of(drawn) is not None
        kind = f"{TOY}s".capitalize() if any(cell.model_ran.toy for cell in drawn) else "Our runs"
        caption = f"Bars: 95 % intervals over prompts{' and run-to-run variation' if varied else ''}."
        title = f"{kind}: {model_names(cell.model_ran for cell in drawn)}"
        style.describe(figure, title, f"{caption} n = {prompts_per_run(drawn)}.")
    return figure


def save(figure: Figure, stem: Path, salt: str = "") -> list[Path]:
    """Write `stem`.svg, `stem`.png and `stem`.pdf; the same records give the same bytes.

    The salt (default: the files' name) determines the names within the SVG.
    """
    svg, png, pdf = (stem.with_name(f"{stem.name}.{kind}") for kind in ("svg", "png", "pdf"))
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": salt or stem.name, "svg.fonttype": "path"}):
        figure.savefig(svg, metadata={"Date": None})
        figure.set_layout_engine("none")  # the first save has laid it out, for all formats
        figure.savefig(png, dpi=min(200, LONGEST / max(figure.get_size_inches())))
        figure.savefig(pdf, metadata={"CreationDate": None})
    return [svg, png, pdf]


def save_for_page(figure: Figure, name: str, replication: Replication, stem: Path) -> DrawnFigure:
    """Save a figure; the page shows the SVG if small, else the PNG."""
    svg, png, pdf = save(figure, stem, name)
    shown = svg if svg.stat().st_size <= SVG_LIMIT else png
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return DrawnFigure(name, replication.scale, replication.models_ran, shown, "", width, height, (png, svg, pdf))


def draw_figures(replications: Sequence[Replication], out: Path) -> dict[str, list[DrawnFigure]]:
    """Draw every experiment that is a figure into `out/EXPERIMENT_SCALE.{png,svg,pdf}`.

    Return figures by experiment, the scale nearest to the papers' first; `FOREST` and `NARROW` are further keys if
    methods were compared.
    """
    out.mkdir(parents=True, exist_ok=True)
    drawn_by_name: dict[str, list[DrawnFigure]] = {}
    if (compared := comparison(replications)) is not None:
        for name in (FOREST, NARROW):
            drawn_by_name[name] = [save_for_page(forest_plot(compared, name == NARROW), name, compared, out / name)]
    shown = list(_drawable_replications(replications))
    for replication, drawn in zip(shown, _draw_in_parallel(shown, out)):
        drawn_by_name.setdefault(replication.experiment.name, []).append(drawn)
    return drawn_by_name


def _draw_in_parallel(shown: Sequence[Replication], out: Path) -> list[DrawnFigure]:
    """Draw with one process per core; forked processes share the records in memory."""
    workers = min(len(shown), len(os.sched_getaffinity(0)))
    if workers < 2:
        return [_draw(replication, out) for replication in shown]
    with get_context("fork").Pool(workers, _waiting.extend, (shown,)) as pool:
        return pool.map(partial(_draw_waiting, out), range(len(shown)), chunksize=1)


def _draw_waiting(out: Path, i: int) -> DrawnFigure:
    return _draw(_waiting[i], out)


def _drawable_replications(replications: Iterable[Replication]) -> Iterator[Replication]:
    by_name: dict[str, dict[str, Replication]] = {}
    for replication in replications:
        if replication.experiment.name in FIGURES:
            by_name.setdefault(replication.experiment.name, {})[replication.scale] = replication
    for scales in by_name.values():
        yield from (scales[scale] for scale in order_scales(scales))


def _draw(replication: Replication, out: Path) -> DrawnFigure:
    name, scale = replication.experiment.name, replication.scale
    try:
        drawing = figure(replication)
    except ConfigError as error:  # one damaged record must not stop the report of the others
        drawing = NotDrawable(f"A record cannot be read: {error}.")
    if not isinstance(drawing, Figure):
        return DrawnFigure(name, scale, replication.models_ran, None, drawing.reason if drawing else "")
    return save_for_page(drawing, name, replication, out / f"{name}_{scale}")
