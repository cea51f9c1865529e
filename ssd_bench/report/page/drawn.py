"""The figures of the exhibits: drawn once, written as files, and carried in the page as images."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from ssd_bench.errors import ConfigError
from ssd_bench.papers.cells import Replication
from ssd_bench.papers.figures import FIGURES, figure
from ssd_bench.papers.figures_shared import Cannot
from ssd_bench.papers.match import ordered
from ssd_bench.report import figures
from ssd_bench.style import STYLE

_waiting: list[Replication] = []  # what forked processes draw
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
    paths = figures.save(made, out / f"{name}_{scale}")
    kind, content = ("svg+xml", svg) if len(svg) <= SVG_LIMIT else ("png", paths[0].read_bytes())
    image = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return Drawn(name, scale, image, "", round(96 * made.get_figwidth()), tuple(paths))


def _svg(made: Figure, name: str) -> bytes:
    """The figure with its letters as paths; the same bytes for the same records."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": name, "svg.fonttype": "path"}):
        made.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
