"""Figures, drawn without global state: of a task (how fast its methods are, and where time goes), of the exhibits."""

from __future__ import annotations

import base64
import io
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ssd_bench.errors import ConfigError
from ssd_bench.papers.cells import Replication
from ssd_bench.papers.figures_shared import Cannot, missing
from ssd_bench.papers.match import ordered
from ssd_bench.papers.rooms import rooms
from ssd_bench.report.runs import Group
from ssd_bench.style import ACCOUNTS, AR_COLOUR, METHOD_COLOUR, STYLE

_waiting: list[Replication] = []  # what forked processes draw
FIGURES: dict[str, Callable[[Replication], Figure | Cannot]] = {
    f"{room.name}_{name}": draw for room in rooms() for name, draw in room.figures().items()
}
"""Experiment -> what draws it: the function of its exhibit's name in the paper's `figures.py`."""
SVG_LIMIT = 150_000  # bytes; a larger figure is shown as PNG


@dataclass(frozen=True)
class Drawn:
    """The figure of an experiment at a scale.

    Attributes:
        name: of the experiment.
        image: a data URI, SVG where that is small, else PNG; "" where it cannot be drawn, for `reason`.
        width: of the image, in pixels of a screen.
        paths: the files written.
    """

    name: str
    scale: str
    image: str
    reason: str
    width: int = 0
    paths: tuple[Path, ...] = ()


def figure(replication: Replication) -> Figure | Cannot | None:
    """The figure of an experiment, or why it cannot be drawn; None for one that is a table."""
    draw = FIGURES.get(replication.experiment.name)
    if draw is None:
        return None
    if not any(cell.record for cell in replication.cells):
        return missing(replication)
    with matplotlib.rc_context(STYLE):
        return draw(replication)


def task_figure(task: str, groups: Sequence[Group]) -> Figure:
    """Left: decode tokens/s with 95 % intervals, AR first. Right: milliseconds per token, split by account.

    One row of panels per group of comparable runs.
    """
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


def _labels(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    axes.set_yticks(range(len(rows)), [str(row["method"]) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)


def _draw_speed(axes: Axes, group: Group) -> None:
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


def _draw_time(axes: Axes, group: Group) -> None:
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


def save(made: Figure, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.pdf, the same bytes for the same records."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "pdf")]
    with matplotlib.rc_context(STYLE):
        made.savefig(paths[0], dpi=200)
        made.set_layout_engine("none")  # it is laid out now: once is enough for all formats
        made.savefig(paths[1], metadata={"CreationDate": None})
    return paths


def draw(replications: Sequence[Replication], out: Path) -> dict[str, list[Drawn]]:
    """Draw every experiment that is a figure, into `out/EXPERIMENT_SCALE.{png,pdf}`.

    Returns:
        By experiment, the scale nearest to the papers' first.
    """
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[Drawn]] = {}
    shown = list(_ordered(replications))
    for one, drawn in zip(shown, _all(shown, out)):
        found.setdefault(one.experiment.name, []).append(drawn)
    return found


def _all(shown: Sequence[Replication], out: Path) -> list[Drawn]:
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


def _nth(out: Path, i: int) -> Drawn:
    return _draw(_waiting[i], out)


def _ordered(replications: Iterable[Replication]) -> Iterator[Replication]:
    by_name: dict[str, dict[str, Replication]] = {}
    for one in replications:
        if one.experiment.name in FIGURES:
            by_name.setdefault(one.experiment.name, {})[one.scale] = one
    for scales in by_name.values():
        yield from (scales[scale] for scale in ordered(scales))


def _draw(replication: Replication, out: Path) -> Drawn:
    name, scale = replication.experiment.name, replication.scale
    try:
        made = figure(replication)
    except ConfigError as error:  # a damaged record must not cost the others their report
        made = Cannot(f"A record cannot be read: {error}.")
    if not isinstance(made, Figure):
        return Drawn(name, scale, "", made.reason if made else "")
    svg = _svg(made, name)
    made.set_layout_engine("none")
    paths = save(made, out / f"{name}_{scale}")
    kind, content = ("svg+xml", svg) if len(svg) <= SVG_LIMIT else ("png", paths[0].read_bytes())
    image = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return Drawn(name, scale, image, "", round(96 * made.get_figwidth()), tuple(paths))


def _svg(made: Figure, name: str) -> bytes:
    """The figure with its letters as paths; the same bytes for the same records."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": name, "svg.fonttype": "path"}):
        made.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
