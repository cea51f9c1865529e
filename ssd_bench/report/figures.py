"""Figures, drawn without global state: of a task (how fast its methods are, where time goes), of all, of exhibits."""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from ssd_bench import style
from ssd_bench.errors import ConfigError
from ssd_bench.papers.cells import Cell, Replication
from ssd_bench.papers.figures_shared import NotDrawable, cells, missing_runs
from ssd_bench.papers.match import order_scales
from ssd_bench.papers.ran import model_names
from ssd_bench.papers.rooms import paper_folders
from ssd_bench.records.files import write_atomic
from ssd_bench.report.answers import comparison
from ssd_bench.report.runs import RunGroup
from ssd_bench.style import ACCOUNTS, AR_COLOUR, METHOD_COLOUR, STYLE

_waiting: list[Replication] = []  # what forked processes draw
FIGURES: dict[str, Callable[[Replication], Figure | NotDrawable]] = {
    f"{folder.name}_{name}": draw for folder in paper_folders() for name, draw in folder.figures().items()
}
"""Experiment -> what draws it: the function of its exhibit's name in the paper's `figures.py`."""
SVG_LIMIT = 150_000  # bytes; a larger figure is shown as PNG
ROWS = 60
"""Of a group of runs in the figure of a task; the table has all."""
LONGEST = 30_000  # pixels of a side; twice as many are more than the library draws
FOREST, NARROW = "comparison_forest", "comparison_forest_narrow"


@dataclass(frozen=True)
class DrawnFigure:
    """The figure of an experiment at a scale.

    Attributes:
        name: of the experiment.
        models: that ran, with their sizes.
        image: the file that a page shows, SVG where that is small, else PNG; None where it cannot be drawn, for
            `reason`.
        width, height: of the image, in pixels of a screen.
        paths: the files written.
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
    """The figure of an experiment, or why it cannot be drawn; None for one that is a table."""
    draw = FIGURES.get(replication.experiment.name)
    if draw is None:
        return None
    if not any(cell.record for cell in replication.cells):
        return missing_runs(replication)
    with matplotlib.rc_context(STYLE):
        return draw(replication)


def task_figure(task: str, groups: Sequence[RunGroup]) -> Figure:
    """Left: decode tokens/s with 95 % intervals, AR first. Right: milliseconds per token, split by account.

    One row of panels per group of comparable runs, of which at most `ROWS` are drawn, the fastest.
    """
    groups = [_fastest(group) for group in groups]
    heights = [1.0 + 0.34 * len(group.rows) for group in groups]
    with matplotlib.rc_context(STYLE):
        whole = Figure(figsize=(8.5, sum(heights) + 0.5), layout="constrained")
        whole.suptitle(task, fontweight="bold")
        axes = whole.subplots(len(groups), 2, squeeze=False, height_ratios=heights)
        for (left, right), group in zip(axes, groups, strict=True):
            _draw_speed(left, group)
            _draw_time(right, group)
            left.set_title(textwrap.fill(group.title, 60), fontsize=8, loc="left")
    return whole


def _fastest(group: RunGroup) -> RunGroup:
    """What is drawn of a group: AR and the fastest runs; its title says so where there are more."""
    ran = [row for row in group.rows if row["run_dir"] is not None]
    if len(ran) <= ROWS:
        return group
    drawn = sorted(ran, key=lambda row: -(row["method_tokens_per_s"] or 0.0))[:ROWS]
    ids = {id(row) for row in drawn}
    rows = [row for row in group.rows if row["run_dir"] is None or id(row) in ids]
    return replace(group, title=f"{group.title}; the {ROWS} fastest of {len(ran)} runs", rows=rows)


def _labels(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    axes.set_yticks(range(len(rows)), [str(row["method"]) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)


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
    _labels(axes, group.rows)
    axes.margins(x=0.18)
    axes.set_xlim(left=0)
    axes.set_xlabel("tokens/s, decode only; × speedup over AR of the same run")


def _draw_time(axes: Axes, group: RunGroup) -> None:
    for i, row in enumerate(group.rows):
        rate, start = row["method_tokens_per_s"], 0.0
        for name, (colour, hatch) in ACCOUNTS.items():
            share = max(row[f"{name}_share"] or 0.0, 0.0)
            width = share * 1000 / rate if rate else 0.0
            label = name if i == 0 else None
            axes.barh(i, width, 0.7, start, color=colour, hatch=hatch, edgecolor="black", linewidth=0.5, label=label)
            start += width
    _labels(axes, group.rows)
    axes.tick_params(labelleft=False)
    axes.set_xlabel("ms per token")
    axes.legend(ncols=4, fontsize=7, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), handlelength=1.5)


def forest_plot(replication: Replication, narrow: bool = False) -> Figure:
    """Speedups of all methods, a panel a task: decode and end to end with intervals, AR at 1, the noise floor a band.

    Methods stand in the order of their end-to-end speedup over all tasks, the fastest first.

    Args:
        replication: of the comparison, with a run at least.
        narrow: one column of a paper wide, panels below one another.
    """
    drawn = [cell for cell in cells(replication) if cell.summary["speedup"] is not None]
    tasks = list(dict.fromkeys(cell["task"] for cell in drawn))
    methods = _ranked(drawn)
    with matplotlib.rc_context(STYLE):
        rows, columns = (len(tasks), 1) if narrow else (1, len(tasks))
        whole = style.new(style.COLUMN if narrow else style.PAGE, 0.75 + rows * (0.2 + 0.17 * len(methods)))
        body = whole.subfigures(1, 1, squeeze=False)[0, 0]
        panels = body.subplots(rows, columns, squeeze=False, sharey=True, sharex=True).flat
        for axes, task in zip(panels, tasks, strict=True):
            _draw_forest(axes, {cell["method"]: cell for cell in drawn if cell["task"] == task}, methods)
            axes.set_title(task, loc="left", fontweight="bold")
        body.supxlabel("speedup over AR (×)", fontsize=8)
        whole.suptitle(f"Ours: {model_names(cell.model_ran for cell in drawn)}", x=0.01, ha="left")
        handles, labels = panels[0].get_legend_handles_labels()
        kept = dict(zip(labels, handles))
        body.legend(list(kept.values()), list(kept), loc="outside upper left", ncols=2 if narrow else len(kept))
    return whole


def _ranked(drawn: Sequence[Cell]) -> list[str]:
    """Methods by the geometric mean of their end-to-end speedups; void ones last."""
    logs: dict[str, list[float]] = {}
    for cell in drawn:
        logs.setdefault(cell["method"], []).append(-np.inf if cell.exclusion else np.log(cell.summary["speedup_e2e"]))
    return sorted(logs, key=lambda method: -float(np.mean(logs[method])))


def _draw_forest(axes: Axes, found: Mapping[str, Cell], methods: Sequence[str]) -> None:
    noise = next((cell.variation for cell in found.values() if cell.variation is not None), None)
    if noise is not None:
        reach = float(np.exp(1.96 * noise.speedup.sigma))
        axes.axvspan(1 / reach, reach, color="#DDDDDD", linewidth=0, zorder=0, label="noise floor")
    axes.axvline(1, color="#444444", linewidth=0.8, zorder=1, label="AR")
    for i, method in enumerate(methods):
        cell = found.get(method)
        if cell is None or cell.exclusion:
            why = "not run" if cell is None else f"void: {cell.exclusion.split(', ')[0]}"
            axes.annotate(
                why, (1, i), (-3, 0), textcoords="offset points", ha="right", va="center", fontsize=style.SMALL
            )
            continue
        for name, shift, face, label in (
            ("speedup_e2e", -0.14, METHOD_COLOUR, "end to end"), ("speedup", 0.16, "white", "decode")
        ):  # fmt: skip
            value, low, high = (cell.summary[f"{name}{end}"] for end in ("", "_lo", "_hi"))
            spread = None if low is None else [[value - low], [high - value]]
            axes.errorbar(
                value, i + shift, xerr=spread, color=METHOD_COLOUR, marker="o" if face != "white" else "s",
                markerfacecolor=face, markersize=4.5 if face != "white" else 3.5, linestyle="",
                linewidth=1.2 if face != "white" else 0.7, label=label if i == 0 else None,
            )  # fmt: skip
    _labels(axes, [{"method": method} for method in methods])
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator([0.25, 0.5, 0.75, 1, 1.5, 2, 3]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.minorticks_off()
    axes.grid(axis="y", color="#EEEEEE", linewidth=0.6, zorder=0)


def save(made: Figure, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.pdf, the same bytes for the same records."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "pdf")]
    with matplotlib.rc_context(STYLE):
        made.savefig(paths[0], dpi=min(200, LONGEST / max(made.get_size_inches())))
        made.set_layout_engine("none")  # it is laid out now: once is enough for all formats
        made.savefig(paths[1], metadata={"CreationDate": None})
    return paths


def save_for_page(made: Figure, name: str, replication: Replication, stem: Path) -> DrawnFigure:
    """Save a figure, also as SVG where that is small."""
    svg = _svg(made, name)
    made.set_layout_engine("none")
    paths = save(made, stem)
    if len(svg) <= SVG_LIMIT:
        paths.append(stem.with_name(f"{stem.name}.svg"))
        write_atomic(paths[-1], svg)
    shown = paths[-1] if len(svg) <= SVG_LIMIT else paths[0]
    width, height = (round(96 * inches) for inches in made.get_size_inches())
    return DrawnFigure(name, replication.scale, replication.models_ran, shown, "", width, height, tuple(paths))


def draw_figures(replications: Sequence[Replication], out: Path) -> dict[str, list[DrawnFigure]]:
    """Draw every experiment that is a figure, into `out/EXPERIMENT_SCALE.{png,pdf}`.

    Returns:
        By experiment, the scale nearest to the papers' first; `FOREST`, `NARROW` where methods were compared.
    """
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[DrawnFigure]] = {}
    if (compared := comparison(replications)) is not None:
        for name in (FOREST, NARROW):
            found[name] = [save_for_page(forest_plot(compared, name == NARROW), name, compared, out / name)]
    shown = list(_ordered(replications))
    for one, drawn in zip(shown, _all(shown, out)):
        found.setdefault(one.experiment.name, []).append(drawn)
    return found


def _all(shown: Sequence[Replication], out: Path) -> list[DrawnFigure]:
    """The drawings, made by one process a core; forked ones have the records that are in memory already."""
    workers = min(len(shown), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    if workers < 2:
        return [_draw(one, out) for one in shown]
    _waiting[:] = shown
    try:
        with get_context("fork").Pool(workers) as pool:
            return pool.map(partial(_nth, out), range(len(shown)), chunksize=1)
    finally:
        _waiting.clear()


def _nth(out: Path, i: int) -> DrawnFigure:
    return _draw(_waiting[i], out)


def _ordered(replications: Iterable[Replication]) -> Iterator[Replication]:
    by_name: dict[str, dict[str, Replication]] = {}
    for one in replications:
        if one.experiment.name in FIGURES:
            by_name.setdefault(one.experiment.name, {})[one.scale] = one
    for scales in by_name.values():
        yield from (scales[scale] for scale in order_scales(scales))


def _draw(replication: Replication, out: Path) -> DrawnFigure:
    name, scale = replication.experiment.name, replication.scale
    try:
        made = figure(replication)
    except ConfigError as error:  # a damaged record must not cost the others their report
        made = NotDrawable(f"A record cannot be read: {error}.")
    if not isinstance(made, Figure):
        return DrawnFigure(name, scale, replication.models_ran, None, made.reason if made else "")
    return save_for_page(made, name, replication, out / f"{name}_{scale}")


def _svg(made: Figure, name: str) -> bytes:
    """The figure with its letters as paths; the same bytes for the same records."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": name, "svg.fonttype": "path"}):
        made.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
