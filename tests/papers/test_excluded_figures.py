"""Results that are excluded, duplicate or the paper's own, as the papers' figures draw them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from ssd_bench.papers.figures import style
from ssd_bench.papers.figures.shared import EXCLUDED_LABEL, PAPER
from ssd_bench.papers.ours.cells import Cell, Replication
from ssd_bench.papers.printed.reported import numbers
from ssd_bench.papers.runs import grid
from ssd_bench.report.figures import figure
from ssd_bench.results.digest import Digest
from ssd_bench.results.folder import Record
from tests.exhibit_runs import caption, laid_out, legend_labels, renamed
from tests.synthetic import unit, write_record


@cache
def measured(root: Path, accept: float) -> Record:
    """The run whose copies stand behind all cells that accept as much."""
    path = root / f"{accept:.2f}"
    write_record(path, [unit(k, accept=accept) for k in range(6)], config={"method": {}})
    return Record(path)


def made(root: Path, name: str, accept: float = 0.0, **changes: Sequence[Any]) -> Replication:
    """An experiment whose runs share one trace; with `accept`, each accepts so much more; a header each."""
    experiment, cells = grid.load(name), list[Cell]()
    for i, job in enumerate(experiment.jobs):
        own = {key: values[i] for key, values in changes.items()} | {"model": {"name": job.labels["model"] or "tiny"}}
        record = renamed(measured(root, round(0.5 + i * accept, 2)), root / f"{name}-{accept}-{i}", **own)
        cells.append(Cell(job.labels, job.overrides, record))
    return Replication(experiment, "paper", tuple(cells), root)


def measure_again(cell: Cell) -> None:
    """Compute the numbers of a run whose tables were changed."""
    vars(cell.record)["digest"] = Digest.of(cell.run)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("excluded")


@cache  # several tests read a figure, and none changes it
def drawn(root: Path, name: str, accept: float = 0.0) -> Figure:
    """Its figure, laid out once, with room for everything."""
    return laid_out(figure(made(root, name, accept)))


def test_an_excluded_bar_is_hatched_and_has_the_mark_in_the_place_of_its_value(root: Path) -> None:
    found = drawn(root, "swift_figure2a")
    for axes in found.axes:
        hatched = [bar for bar in axes.patches if bar.get_hatch() == style.EXCLUDED_HATCH]
        assert len(hatched) == 3  # of three tasks the second method
        assert [text.get_text() for text in axes.texts].count(style.EXCLUDED) == 3
    assert style.EXCLUDED_HATCH not in {mark.hatch for mark in style.MARKS}
    assert EXCLUDED_LABEL in legend_labels(found)
    assert caption(found).count(f"{style.EXCLUDED} {EXCLUDED_LABEL} (") == 1


def test_curves_of_one_trace_are_drawn_once_and_the_legend_says_for_how_many(root: Path) -> None:
    found = drawn(root, "conflayers_figure5")
    assert legend_labels(found) == ["SWIFT (and 1 other with the same trace)", "paper"]
    for axes in found.axes:
        assert sum(len(line.get_xdata()) == 6 for line in axes.lines) == 1
    for name in ("swift_figure7", "knn_ssd_figure1"):  # of streams
        texts = legend_labels(drawn(root, name))
        assert len(texts) == 2 and sum("with the same trace" in text for text in texts) == 1  # the other: the paper's


def test_an_excluded_point_leaves_the_line_and_has_the_mark(tmp_path: Path) -> None:
    one = made(tmp_path, "knapspec_figure6", 0.02)
    for cell in one.cells[2:]:
        cell.run.steps["searched"] = False
        measure_again(cell)
    found = figure(one)
    assert isinstance(found, Figure)
    upper = found.axes[0]
    assert np.isfinite(np.asarray(upper.lines[0].get_ydata(), dtype=float)).tolist() == 2 * [True] + 5 * [False]
    marked = [line for line in upper.lines if line.get_marker() == style.EXCLUDED_MARKER and len(line.get_xdata())]
    assert [float(line.get_xdata()[0]) for line in marked] == 2 * [2, 3, 4, 5, 6]  # measured, then modelled


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("knapspec_figure4", {"speedup"}),
        ("knapspec_figure6", {"overhead_pct"}),
        ("swift_figure7", {"speedup", "alpha"}),
        ("swift_figure9", {"speedup"}),
        ("swift_figure11", set()),
        ("swift_figure6", {"matchness", "speedup"}),
        ("knn_ssd_figure1", {"speedup"}),
        ("conflayers_figure5", {"speedup"}),
        ("conflayers_figure6", {"speedup"}),
        ("conflayers_figure7", {"skip_ratio"}),
    ],
)
def test_the_papers_numbers_are_drawn_and_legend_labels(root: Path, name: str, metrics: set[str]) -> None:
    found = drawn(root, name, 0.02)
    own = grid.load(name)
    asked = {n.value for n in numbers() if (n.paper, n.exhibit) == (own.paper, own.exhibit) and n.metric in metrics}
    lines = [line for axes in found.axes for line in axes.lines if str(line.get_label()).startswith(PAPER)]
    assert lines and asked <= {float(y) for line in lines for y in line.get_ydata()}
    assert {line.get_color() for line in lines} == {style.FAINT}
    labels = [label for label in legend_labels(found) if label.startswith(PAPER)]
    assert labels and len(labels) == len(set(labels))  # one for each of the paper's models
    assert "Grey: the paper's own numbers" in caption(found) and "Paper:" not in caption(found)


def test_a_search_that_was_not_run_is_hollow_at_the_time_that_it_took(tmp_path: Path) -> None:
    runs = len(grid.load("swift_figure11").jobs)
    searches = [[{"seconds": 100.0 + new, "new": new, "evaluations": 10}] for new in (10, 4, 0, *range(5, runs + 2))]
    one = made(tmp_path, "swift_figure11", 0.05, searches=searches)
    for cell in one.cells:
        cell.run.steps["est_alpha"] = np.nan  # the search was before the run
    found = figure(one)
    assert isinstance(found, Figure)
    points = [line for line in found.axes[0].lines if len(line.get_xdata()) == 1 and line.get_marker() == "D"]
    faces = {line.get_xdata()[0]: line.get_markerfacecolor() for line in points}
    assert faces[110.0] != "white" and faces[104.0] == faces[100.0] == "white"


def test_an_excluded_row_of_transfers_is_hatched_and_has_no_values(tmp_path: Path) -> None:
    one = made(tmp_path, "swift_figure2b")
    for i, cell in enumerate(one.cells):
        cell.run.prompts["domain"] = ["abcd"[(k + i) % 4] for k in cell.run.prompts["prompt_index"]]
        measure_again(cell)
    found = figure(one)
    assert isinstance(found, Figure)
    axes = found.axes[0]
    assert [text.get_text() for text in axes.texts].count(style.EXCLUDED) == 12  # of four rows all but the first
    assert [patch.get_hatch() for patch in axes.patches] == 12 * [style.EXCLUDED_HATCH]
    assert axes.images[0].norm(1.0) == 0.5  # colours part at the speed of AR
