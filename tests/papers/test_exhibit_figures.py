"""The papers' figures on made-up runs: each draws with units and separate labels, and repeats itself."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from ssd_bench.papers.conflayers import figures as conflayers
from ssd_bench.papers.figures import cases as figures_cases
from ssd_bench.papers.figures import layers as figures_layers
from ssd_bench.papers.figures import streams, style
from ssd_bench.papers.figures.shared import NotDrawable
from ssd_bench.papers.knn_ssd import figures as figures_knn_ssd
from ssd_bench.papers.ours.cells import Cell, Replication
from ssd_bench.papers.printed.catalogue import paper_folders
from ssd_bench.papers.printed.reported import released_set
from ssd_bench.papers.runs import grid
from ssd_bench.papers.ssd_bench.plane import Plane, Point, Use
from ssd_bench.records.schema import PromptRecord
from ssd_bench.report.figures import FIGURES, figure
from ssd_bench.results.folder import Record
from studies import frontier
from tests.exhibit_runs import caption, laid_out, legend_labels, renamed, texts, ticks
from tests.synthetic import unit, write_record

STREAMS = {
    "5-task stream": ("cnn_dm", "gsm8k", "wmt16", "spider2", "tinystories"),
    "4-task stream": ("cnn_dm", "gsm8k", "wmt14", "alpaca"),
    "MATH": ("algebra", "counting_and_probability", "geometry", "number_theory"),
}
NEED_FILES = {"knn_ssd_figure5", "knn_ssd_figure6", "conflayers_figure8", "ssd_bench_comparison"}
SEARCH: dict[str, Any] = {"init_sets": [], "iterations": 7, "new_tokens": 32}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("figures")


def units(domains: tuple[str, ...], count: int, accept: float) -> list[list[PromptRecord]]:
    """`count` prompts of each domain, one domain after the other."""
    made = []
    for index in range(count * len(domains)):
        records = unit(index, accept=accept)
        for record in records:
            record.prompt.domain = domains[index // count]
            record.prompt.decode_ms *= 1 + 0.05 * (index // count)
        made.append(records)
    return made


def made(root: Path, job: grid.Job, model: str, variant: int) -> Record:
    """A run as a job would leave it; jobs that a figure does not distinguish share one.

    Its tables and numbers are those of another run of its variant; header and trace are its own.
    """
    domains = STREAMS.get(job.labels["task"], ("of one task",))
    first = next((o.partition("=")[2] for o in job.overrides if o.startswith("task.first=")), domains[0])
    domains = (first, *(domain for domain in domains if domain != first)) if len(domains) > 1 else domains
    base = measured(root, domains, variant % 8)
    names = (model, job.labels["task"], first, variant, job.labels["method"])
    return _copied(root / "-".join(map(str, names)).replace("/", "_"), base, model, "self_ssd" in str(job.overrides))


@cache
def measured(root: Path, domains: tuple[str, ...], variant: int) -> Record:
    path = root / f"{domains[0]}-{len(domains)}-{variant}"
    prompts = units(domains, 4 if len(domains) > 1 else 6, 0.5 + 0.05 * variant)
    write_record(path, prompts, base_bytes=2**30, prepare_ms=1000.0 * (variant + 1))
    return Record(path)


@cache
def _copied(path: Path, base: Record, model: str, searches: bool) -> Record:
    config = {"model": {"embedded": "miniature"}, "method": {"search": SEARCH} if searches else {}}
    shown = {"name": model, "toy": model == "miniature", "n_params": 10**9 * (1 + len(model))}
    return renamed(base, path, own_trace=True, model=shown, config=config)  # so that none is excluded


def replication(root: Path, name: str, scale: str = "paper") -> Replication:
    experiment = grid.load(name)
    results = []
    for i, job in enumerate(experiment.jobs):
        model = "miniature" if scale == "mini" else job.labels["model"]
        results.append(Cell(job.labels, job.overrides, made(root, job, model, i), None))
    return Replication(experiment, scale, tuple(results), root)


def box(text: Text) -> Bbox:
    extent = text.get_window_extent()
    return Bbox.from_extents(extent.x0 + 1, extent.y0 + 1, extent.x1 - 1, extent.y1 - 1)


def check(found: Figure) -> None:
    """No text on another or outside, every numeric axis labelled, nothing empty."""
    boxes = [(text.get_text(), box(text)) for text in texts(found)]
    clashes = [(a, b) for (a, first), (b, second) in combinations(boxes, 2) if first.overlaps(second)]
    assert not clashes
    width, height = found.bbox.width, found.bbox.height
    outside = [t for t, b in boxes if b.x0 < -1 or b.y0 < -1 or b.x1 > width + 1 or b.y1 > height + 1]
    assert not outside
    panels = [axes for axes in found.axes if axes.axison]
    for axes in panels:
        assert axes.has_data() or axes.patches or axes.texts
        for direction in "xy":
            assert labelled(axes, direction, panels), f"{direction} of {axes}"


def labelled(axes: Axes, direction: str, panels: list[Axes]) -> bool:
    axis: Axis = getattr(axes, f"{direction}axis")
    numeric = [label for label in ticks(axis) if label.get_text().strip("−.0123456789") == ""]
    side = "intervalx" if direction == "x" else "intervaly"
    aligned = [o for o in panels if np.allclose(getattr(o.bbox, side), getattr(axes.bbox, side), atol=2)]
    whole = direction == "x" and any(part.get_supxlabel() for part in axes.get_figure(root=True).subfigs)  # type: ignore[union-attr]
    return not numeric or whole or any(getattr(other, f"get_{direction}label")() for other in aligned)


@pytest.mark.parametrize("name", sorted(set(FIGURES) - NEED_FILES))
def test_every_figure_draws_with_labels_that_keep_apart(root: Path, name: str) -> None:
    found = laid_out(figure(replication(root, name)))
    check(found)
    assert found.get_figwidth() in (style.COLUMN, style.PAGE)
    title = found.get_suptitle()
    assert title.startswith(tuple(name for folder in paper_folders() for name in folder.versions.values()))
    assert "toy-model" not in title and "n =" in caption(found)


@pytest.mark.parametrize("name", ["knapspec_figure5", "swift_figure2a", "conflayers_figure7"])
def test_at_a_small_scale_the_models_are_one_and_the_title_says_so(root: Path, name: str) -> None:
    small = replication(root, name, "mini")
    kept = {(cell["task"], cell["method"], cell["setting"]): cell.record for cell in reversed(small.cells)}
    shared = [replace(cell, record=kept[cell["task"], cell["method"], cell["setting"]]) for cell in small.cells]
    found = laid_out(figure(replace(small, cells=tuple(shared))))
    check(found)
    assert "toy-model runs: miniature, 10.0 billion parameters" in found.get_suptitle().replace("\n", " ")
    shown = {text.get_text() for text in texts(found)} - {found.get_supxlabel()}  # which names the paper's models
    assert all(text.startswith("paper: ") for text in shown if "LLaMA" in text)


def test_what_cannot_be_drawn_has_a_reason(root: Path) -> None:
    whole = replication(root, "knapspec_figure6")
    assert figure(replace(whole, experiment=replace(whole.experiment, name="knapspec_table2"))) is None
    nothing = tuple(replace(result, record=None) for result in whole.cells)
    not_yet = figure(replace(whole, cells=nothing))
    assert isinstance(not_yet, NotDrawable) and "experiment=knapspec_figure6" in not_yet.reason
    failed = figure(replace(whole, cells=tuple(replace(result, error="no such task") for result in nothing)))
    assert isinstance(failed, NotDrawable) and "no such task" in failed.reason
    for name in sorted(NEED_FILES):
        found = figure(replication(root, name))
        assert isinstance(found, NotDrawable) and found.reason.endswith(".")
    alone = replication(root, "knn_ssd_figure2")
    found = figure(replace(alone, cells=alone.cells[:1]))
    assert isinstance(found, NotDrawable) and "cnn_dm" in found.reason


def test_missing_runs_are_counted_in_the_caption(root: Path) -> None:
    whole = replication(root, "knapspec_figure6")
    part = (replace(whole.cells[0], record=None), *whole.cells[1:])
    assert "1 of 7 runs are missing" in caption(figure(replace(whole, cells=part)))


def test_the_numbers_drawn_are_those_of_the_metrics(root: Path) -> None:
    one = replication(root, "knapspec_figure6")
    throughput = laid_out(figure(one)).axes[0].lines[0]
    summaries = [result.summary for result in one.cells if result.record]
    assert list(throughput.get_ydata()) == [s.speedup.value for s in summaries]
    axes = laid_out(figure(one)).axes[1]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["4", "8", "16", "32", "64", "128", "256"]
    rows = streams.stream_rows(one.cells[0].run)  # type: ignore[union-attr]
    assert streams.cumulative_speedups(rows).iloc[-1] == pytest.approx(summaries[0].speedup.value)
    assert streams.pooled_value(rows, "alpha") == pytest.approx(summaries[0].alpha.value)


def test_tokens_of_a_case_are_coloured_as_the_steps_say(root: Path) -> None:
    run = next(replication(root, "swift_table13").recorded_cells(method="SWIFT")).run
    tokenizer = figures_cases.tokenizer_of(run)
    assert not isinstance(tokenizer, NotDrawable)
    pieces = figures_cases.output_tokens(run, 2, tokenizer)
    row = run.prompts[(run.prompts["arm"] == "method") & (run.prompts["prompt_index"] == 2)].iloc[0]
    steps = run.steps[(run.steps["arm"] == "method") & (run.steps["prompt_index"] == 2)]
    assert "".join(text for text, _ in pieces) == tokenizer.decode(list(row["output_ids"]))
    assert sum(flag for _, flag in pieces) == steps["accepted_len"].sum()
    assert len(pieces) == row["new_tokens"] and not pieces[0][1]
    lines, cut = figures_cases.wrap([("word " * 60, True), ("\n\tend\N{GRINNING FACE}", False)], 10)
    assert not cut and max(map(len, lines)) <= figures_cases.COLUMNS
    assert "".join(c for c, _ in lines[-1]) == "    end□"
    assert figures_cases.wrap([("a\n" * 20, False)], 10)[1]
    elsewhere = replace(run.header, config={"model": {"path": "nowhere"}})
    assert isinstance(figures_cases.tokenizer_of(replace(run, header=elsewhere)), NotDrawable)


def test_vectors_are_drawn_with_their_accuracy(root: Path) -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 16)) * 5
    size = figures_knn_ssd.PERPLEXITY
    labels = np.repeat(["cnn_dm", "gsm8k", "wmt16"], size)
    vectors = (np.repeat(centres, size, axis=0) + rng.normal(size=(3 * size, 16))).astype(np.float32)
    one = replication(root, "knn_ssd_figure5")
    assert one.cells[0].record is not None
    file = one.cells[0].path / figures_knn_ssd.VECTORS
    np.savez(file, vectors=vectors, labels=labels, anchors=centres, anchor_labels=labels[::size])
    found, again = (laid_out(figure(one)) for _ in range(2))
    file.unlink()
    assert "100.0%" in caption(found)
    check(found)
    points = [[[*line.get_xdata()] for line in drawing.axes[0].lines] for drawing in (found, again)]
    assert points[0] == points[1]
    assert figures_knn_ssd.nearest_accuracy(vectors, ["a", "b"] * (3 * size // 2)) < 0.7


def test_confidences_are_drawn_where_a_run_has_them(root: Path) -> None:
    one = replication(root, "conflayers_figure8")
    assert one.cells[0].record is not None
    file = one.cells[0].path / conflayers.SIGNALS
    values = np.random.default_rng(0).random((2, 38))
    np.savez(file, block=np.arange(1, 39), confidence=values, gradient=values, window=10 * values, threshold=values)
    found = laid_out(figure(one))
    file.unlink()
    check(found)


def test_published_sets_stand_beside_ours(root: Path) -> None:
    found = laid_out(figure(replication(root, "knn_ssd_figure9")))
    titles = [axes.get_title("left") for axes in found.axes if axes.axison]
    known = released_set("knn_ssd", "LLaMA-2-13B", "GSM8K")
    assert known is not None and f"GSM8K: {figures_layers.skip_counts(known)}" in titles
    assert sum("of 16" in title for title in titles) == 5


def test_marks_differ_without_colour() -> None:
    for name in ("marker", "hatch", "colour"):
        assert len({getattr(mark, name) for mark in style.MARKS}) == len(style.MARKS)
    assert len({str(mark.line) for mark in style.MARKS}) == len(style.MARKS)


def test_the_comparison_draws_sets_of_its_own_runs_and_the_best(root: Path, tmp_path: Path) -> None:
    one = replace(replication(root, "ssd_bench_comparison"), runs_dir=tmp_path)
    cell = one.shown_cells()[0]
    assert "studies.frontier" in figure(one).reason  # type: ignore[union-attr]
    uses = (Use(cell.run.path.name, "method", 1.0), Use("a run of something else", "other", 1.0))
    points = (Point((1,), 0.7, 0.8, uses[:1]), Point((1, 2), 0.5, 0.9, uses[1:]))
    names = (cell.run.header.model.name, cell.run.header.task.name)
    frontier.write(tmp_path, Plane(*names, 8, "exhaustive", 9, 70, 12.5, (1.0, 1.1, 1.2), points[1:], points))
    found = laid_out(figure(one))
    check(found)
    assert legend_labels(found) == ["equal TPT (relative to AR)", "best sets found"]
    assert cell["method"] in [text.get_text() for text in found.axes[0].texts]
