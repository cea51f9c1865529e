"""Every figure of the papers, and their case studies, by the name of the experiment: runs in, figure out."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib
from matplotlib.figure import Figure

from ssd_bench import style
from ssd_bench.papers import figures_cases as cases
from ssd_bench.papers import figures_shared as common
from ssd_bench.papers import figures_streams as streams
from ssd_bench.papers.cells import Replication
from ssd_bench.papers.conflayers import figures as conflayers
from ssd_bench.papers.figures_shared import Cannot
from ssd_bench.papers.knapspec import figures as knapspec
from ssd_bench.papers.knn_ssd import figures as knn_ssd
from ssd_bench.papers.ssd_bench import figures as compare
from ssd_bench.papers.swift import figures as swift

FIGURES: dict[str, Callable[[Replication], Figure | Cannot]] = {
    "knapspec_figure2": knapspec.figure2,
    "knapspec_figure3": knapspec.figure3,
    "knapspec_figure4": knapspec.figure4,
    "knapspec_figure5": knapspec.figure5,
    "knapspec_figure6": knapspec.figure6,
    "knn_ssd_figure1": knn_ssd.figure1,
    "knn_ssd_figure2": streams.transfer,
    "knn_ssd_figure4": knn_ssd.figure4,
    "knn_ssd_figure5": knn_ssd.vectors,
    "knn_ssd_figure6": knn_ssd.vectors,
    "knn_ssd_figure7": knn_ssd.figure1,
    "knn_ssd_figure8": cases.stream,
    "knn_ssd_figure9": knn_ssd.layer_sets,
    "knn_ssd_figure10": knn_ssd.layer_sets,
    "swift_figure2a": swift.figure2a,
    "swift_figure2b": streams.transfer,
    "swift_figure6": swift.figure6,
    "swift_figure7": swift.figure7,
    "swift_figure8a": swift.figure8a,
    "swift_figure8b": swift.figure8b,
    "swift_figure9": swift.figure9,
    "swift_figure10": swift.figure10,
    "swift_figure11": swift.figure11,
    "swift_figure12": swift.figure12,
    "swift_table13": cases.table,
    "swift_table14": cases.table,
    "conflayers_figure4": conflayers.figure4,
    "conflayers_figure5": conflayers.figure5,
    "conflayers_figure6": conflayers.figure6,
    "conflayers_figure7": conflayers.figure7,
    "conflayers_figure8": conflayers.figure8,
    "conflayers_figure9": conflayers.figure9,
    compare.COMPARISON: compare.plane,
}
"""Experiment -> what draws it."""


def figure(replication: Replication) -> Figure | Cannot | None:
    """The figure of an experiment, or why it cannot be drawn; None for one that is a table."""
    draw = FIGURES.get(replication.experiment.name)
    if draw is None:
        return None
    if not any(result.made for result in replication.results):
        return common.missing(replication)
    with matplotlib.rc_context(style.STYLE):
        return draw(replication)
