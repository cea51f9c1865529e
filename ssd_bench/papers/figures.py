"""Every figure of the papers, and their case studies, by the name of the experiment: runs in, figure out."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib
from matplotlib.figure import Figure

from ssd_bench import style
from ssd_bench.papers import figures_shared as common
from ssd_bench.papers.cells import Replication
from ssd_bench.papers.figures_shared import Cannot
from ssd_bench.papers.rooms import rooms

FIGURES: dict[str, Callable[[Replication], Figure | Cannot]] = {
    f"{room.name}_{name}": draw for room in rooms() for name, draw in room.figures().items()
}
"""Experiment -> what draws it: the function of its exhibit's name in the paper's `figures.py`."""


def figure(replication: Replication) -> Figure | Cannot | None:
    """The figure of an experiment, or why it cannot be drawn; None for one that is a table."""
    draw = FIGURES.get(replication.experiment.name)
    if draw is None:
        return None
    if not any(cell.record for cell in replication.cells):
        return common.missing(replication)
    with matplotlib.rc_context(style.STYLE):
        return draw(replication)
