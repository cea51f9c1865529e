"""Rules for all figures: what ran is named, runs without a difference are one point, and a sentence replaces a figure
whose subject the runs do not show.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from ssd_bench.papers.figures.shared import NotDrawable
from ssd_bench.papers.figures.subjects import MEASURED, MODELLED
from ssd_bench.papers.knn_ssd.figures import PERPLEXITY, VECTORS
from ssd_bench.papers.ours.cells import Cell, Replication, setting_ran
from ssd_bench.papers.runs import grid
from ssd_bench.report.figures import figure
from ssd_bench.results.folder import Record
from tests.exhibit_runs import caption, legend_labels, renamed
from tests.synthetic import unit, with_work, write_record

Options = dict[str, Any]
Spec = Callable[[int], Options]
"""Number of a job -> arguments of `measured`."""

NAMES = itertools.count()


@cache
def measured(root: Path, accept: float = 0.5, searches: int = 0, sets: int | None = None) -> Record:
    """A run whose copies stand behind cells; with `sets`, its online search scored so many sets."""
    units = [with_work(unit(k, accept=accept), searches) for k in range(6)]
    header: Options = {}
    if sets is not None:
        header = {"prepare_ms": 0.0}
        for i, step in enumerate(step for records in units for step in records[1].steps):
            step.est_alpha = 0.8 if i < sets else None
    path = root / f"{accept:.2f}-{searches}-{sets}"
    write_record(path, units, **header)
    return Record(path)


def planted(
    root: Path,
    name: str,
    spec: Spec,
    models: Sequence[tuple[str, int]] = (("tiny", 10**6),),
    options: Callable[[int], Options] = lambda i: {},
) -> Replication:
    """Return an experiment whose job i has such a run, these options of the method, and the next model."""
    experiment, cells, folder = grid.load(name), list[Cell](), root / f"{next(NAMES)}"
    names = list(dict.fromkeys(job.labels["model"] for job in experiment.jobs))
    for i, job in enumerate(experiment.jobs):
        model, n_params = models[names.index(job.labels["model"]) % len(models)]
        changes = {"model": {"name": model, "n_params": n_params}, "config": {"method": options(i)}}
        cells.append(Cell(job.labels, job.overrides, renamed(measured(root, **spec(i)), folder / f"{i}", **changes)))
    return Replication(experiment, "paper", tuple(cells), root)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("subjects")


def growing(i: int) -> Options:
    """Return options without two runs of the same steps."""
    return {"accept": round(0.5 + 0.02 * i, 2)}


def scoring(sets: int) -> Spec:
    return lambda i: growing(i) | {"sets": sets}


def reason(drawing: object) -> str:
    assert isinstance(drawing, NotDrawable)
    assert drawing.reason.endswith(".")
    return drawing.reason


@pytest.mark.parametrize("name", ["swift_figure8b", "swift_figure9"])
def test_one_model_is_a_sentence_and_two_are_a_figure(root: Path, name: str) -> None:
    alone = figure(planted(root, name, growing))
    assert "tiny, 1.0 million parameters" in reason(alone)
    both = planted(root, name, growing, (("tiny", 10**6), ("small", 10**7)))
    assert isinstance(figure(both), Figure)


def test_models_of_one_size_show_nothing_about_size(root: Path) -> None:
    same_size = planted(root, "swift_figure8b", growing, (("tiny", 10**6), ("other", 10**6)))
    assert "of one size" in reason(figure(same_size))


@pytest.mark.parametrize("name", ["swift_figure6", "swift_figure8a", "swift_figure11", "swift_figure12"])
def test_a_search_of_one_set_has_no_course(root: Path, name: str) -> None:
    for sets, scored in ((0, "no layer set"), (1, "one layer set")):
        drawing = figure(planted(root, name, scoring(sets)))
        if name == "swift_figure11" and sets == 0:
            assert "No run searched" in reason(drawing)
        else:
            assert f"scored {scored}" in reason(drawing)
    assert isinstance(figure(planted(root, name, scoring(2))), Figure)


def test_the_legend_names_the_settings_that_ran(root: Path) -> None:
    ran = [(100, 5), (50, 5), (10, 5), (100, 10), (100, 2), (100, None)]

    def options(i: int) -> Options:
        return {"max_steps": ran[i][0], "bayes_interval": ran[i][1]}

    drawing = figure(planted(root, "swift_figure8a", scoring(3), options=options))
    assert legend_labels(drawing) == [f"S = {steps}, β = {'none' if beta is None else beta}" for steps, beta in ran]


def test_a_setting_keeps_the_papers_text_where_its_value_ran() -> None:
    options = {"skip_ratio": 0.4, "min_similarity": -1, "max_steps": 100, "bayes_interval": None}
    assert setting_ran("r=0.40", options) == "r=0.40"
    assert setting_ran("tau=none (no pruning)", options) == "tau=none (no pruning)"
    assert setting_ran("S=1000;beta=25", options) == "S=100;beta=none"
    assert setting_ran("window=adaptive;lambda=0.2", options) == "window=adaptive;lambda=0.2"
    assert setting_ran("", options) == ""


def ticks(drawing: object, panel: int = -1) -> list[str]:
    assert isinstance(drawing, Figure)
    return [label.get_text().replace("\n", " ") for label in drawing.axes[panel].get_xticklabels()]


def test_settings_that_share_a_run_are_one_point(root: Path) -> None:
    drawing = figure(planted(root, "knapspec_figure6", lambda i: {"accept": 0.5 + 0.05 * min(i, 4)}))
    assert ticks(drawing) == ["4", "8", "16", "32", "64, 128, 256"]
    assert "T = 64, 128 and 256: the same steps, so one point." in caption(drawing)
    assert isinstance(drawing, Figure)
    assert legend_labels(drawing)[:2] == [MEASURED, MODELLED]
    assert all(len(axes.lines[0].get_xdata()) == 5 for axes in drawing.axes)


def test_a_search_with_other_work_is_a_point_although_the_steps_are_the_same(root: Path) -> None:
    drawing = figure(planted(root, "knapspec_figure4", lambda i: {"searches": (5, 5, 4, 3, 3)[i]}))
    assert ticks(drawing) == ["none, 0.25", "0.5", "0.75, 0.9"]
    assert "All settings made the same steps; only the work of the search differs." in caption(drawing)
    assert "excluded" not in caption(drawing)
    assert isinstance(drawing, Figure)
    modelled = next(line for line in drawing.axes[1].lines if line.get_label() == MODELLED)
    heights = np.asarray(modelled.get_ydata(), dtype=float)
    assert heights[0] == 1 and (np.diff(heights) < 0).all()


@pytest.mark.parametrize(
    ("name", "symbol"),
    [
        ("knapspec_figure4", "τ"),
        ("knapspec_figure6", "T"),
        ("conflayers_figure6", "window"),
        ("conflayers_figure7", "λ"),
        ("swift_figure8a", "S"),
    ],
)
def test_settings_that_make_no_difference_are_a_sentence(root: Path, name: str, symbol: str) -> None:
    text = reason(figure(planted(root, name, lambda i: {"sets": 3})))
    assert "made the same steps" in text and symbol in text


def test_too_few_vectors_are_a_sentence_with_the_papers_number(root: Path) -> None:
    few = planted(root, "knn_ssd_figure6", growing)
    for count, drawable in ((3, False), (PERPLEXITY, True)):
        labels = np.repeat(["algebra", "geometry"], count)
        vectors = np.random.default_rng(0).normal(size=(2 * count, 8))
        np.savez(few.cells[0].path / VECTORS, vectors=vectors, labels=labels)
        drawing = figure(few)
        if drawable:
            assert f"n = {2 * count} vectors" in caption(drawing)
        else:
            assert "3 of each of 2 domains" in reason(drawing) and "700" in reason(drawing)


def test_rounds_give_the_range_of_their_accepted_tokens(root: Path) -> None:
    drawing = figure(planted(root, "conflayers_figure9", growing))
    assert isinstance(drawing, Figure)
    titles = [axes.get_title("left") for axes in drawing.axes]
    assert all(re.search(r"; (\d+ accepted in 1 step|[\d.]+ \(\d+ to \d+\) accepted in \d+ steps)$", t) for t in titles)
    assert "Paper's mean accepted tokens: 1.42 in round 0, 9.13 in round 7." in caption(drawing)
