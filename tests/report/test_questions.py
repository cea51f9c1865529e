"""The answers at the top of the page, on runs with planted kind, acceptance and order."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.papers.audit.register import read_reports
from ssd_bench.papers.figures.shared import NotDrawable
from ssd_bench.papers.ours.cells import Replication, replications
from ssd_bench.papers.runs import grid
from ssd_bench.papers.ssd_bench.real import REAL, real
from ssd_bench.report.facts import Fact
from ssd_bench.report.questions import questions
from tests import synthetic
from tests.exhibit_runs import indexed

ACCEPTANCE = {"8 bits": 0.95, "SWIFT": 0.5, "ConfLayers": 0.8, "prompt lookup": 0.05}
TASKS = "GSM8K", "HumanEval"
MODEL = "Qwen2.5-Coder-0.5B"
DISTURBED = "prompt lookup"


def write(folder: Path, name: str, method: str) -> None:
    """Write a run with drafts of the method's kind."""
    units = [synthetic.unit(i, accept=ACCEPTANCE[method]) for i in range(6)]
    for step in (step for records in units for step in records[1].steps):
        if method == "8 bits":
            step.layer_set = LayerSet(synthetic.N_LAYERS).in_bits(8)
        if method == "prompt lookup":
            step.layer_set = None
    load = {"others_share": 0.5} if method == DISTURBED else {}
    synthetic.write_record(folder / name, [synthetic.with_work(records) for records in units], run_id=name, **load)


@pytest.fixture(scope="module")
def replication(tmp_path_factory: pytest.TempPathFactory) -> Replication:
    folder = tmp_path_factory.mktemp("real")

    def run(job: grid.Job) -> str | None:
        method, task = job.labels["method"], job.labels["task"]
        if method not in ACCEPTANCE or task not in TASKS or job.labels["model"] != MODEL:
            return None
        if not (folder / (name := f"{task}-{method.replace(' ', '_')}")).is_dir():
            write(folder, name, method)
        return name

    indexed(folder, REAL, "paper", run)
    return next(one for one in replications(folder) if one.experiment.name == REAL)


def answers(replication: Replication | None) -> dict[str, Fact]:
    return {fact.asks: fact for fact in questions(replication, replication, read_reports())}


@pytest.fixture(scope="module")
def facts(replication: Replication) -> dict[str, Fact]:
    return answers(replication)


def cells_of(replication: Replication, method: str) -> list[float]:
    shown = [cell for cell in replication.shown_cells() if cell["method"] == method]
    return [cell.summary.speedup_modelled.value or 0.0 for cell in shown]


def test_the_fastest_kind_is_named_with_its_range_and_the_others(
    replication: Replication, facts: dict[str, Fact]
) -> None:
    fact = facts["Which kind of draft is fastest?"]
    fastest = cells_of(replication, "8 bits")
    assert fact.number == "8 bits: " + " to ".join(dict.fromkeys(f"{v:.2f}" for v in sorted(fastest))) + "×, modelled"
    assert all(text in fact.says for text in ("by the method “8 bits”.", "layers", "(“ConfLayers”)", "copied text"))
    assert "(“SWIFT”)" not in fact.says and "outputs equal AR's" in fact.basis


def test_measured_speedups_are_of_undisturbed_runs(replication: Replication, facts: dict[str, Fact]) -> None:
    fact = facts["Which kind of draft is fastest?"]
    by_method: dict[str, list[float]] = {}
    for cell in replication.shown_cells():
        by_method.setdefault(cell["method"], []).append(cell.summary.speedup.value or 0.0)
    del by_method[DISTURBED]
    parts = [(np.mean(np.log(v)), f"“{m}” {_range_text(v)}") for m, v in by_method.items()]
    listed = ", ".join(text for _, text in sorted(parts, reverse=True))
    assert f": {listed}; other work disturbed the times of the other methods." in fact.says


def _range_text(speedups: list[float]) -> str:
    return " to ".join(dict.fromkeys(f"{value:.2f}" for value in (min(speedups), max(speedups)))) + "×"


def test_methods_that_skip_layers_are_counted_by_their_whole_intervals(
    replication: Replication, facts: dict[str, Fact]
) -> None:
    fact = facts["Do methods that skip layers beat plain decoding?"]
    skipping = [cell for cell in replication.shown_cells() if cell["method"] in ("SWIFT", "ConfLayers")]
    faster = sum((cell.summary.speedup_modelled.low or 0) > 1 for cell in skipping)
    frozen = sum((cell.summary.speedup_frozen.low or 0) > 1 for cell in skipping)
    assert fact.number == f"{faster} of 4" and f"left out {frozen} are above. Methods: SWIFT, ConfLayers" in fact.says
    for cell in skipping:
        named = f"{cell['method']} on {cell['task']}" in fact.says
        assert named == ((cell.summary.speedup_modelled.low or 0) > 1)


def test_the_rivals_are_compared_prompt_by_prompt(replication: Replication, facts: dict[str, Fact]) -> None:
    fact = facts["Which is faster, SWIFT or ConfLayers?"]
    stated = re.search(r"has ([\d.]+) \[([\d.]+), ([\d.]+)\] times", fact.says)
    assert stated is not None
    pooled, low, high = map(float, stated.groups())
    ratios = [b / a for a, b in zip(cells_of(replication, "SWIFT"), cells_of(replication, "ConfLayers"))]
    assert pooled == pytest.approx(np.exp(np.mean(np.log(ratios))), abs=0.005)
    assert (fact.number.split(" ")[0] == "ConfLayers") == (low > 1) and low <= pooled <= high


def test_without_runs_only_the_register_answers(replication: Replication) -> None:
    empty = replace(replication, cells=tuple(replace(cell, record=None) for cell in replication.cells))
    assert [*answers(None)] == [*answers(empty)] == ["How much of a published speedup comes back elsewhere?"]
    assert isinstance(real(empty), NotDrawable)


def test_the_figure_has_a_panel_of_each_task_with_all_methods(replication: Replication) -> None:
    figure = real(replication)
    assert not isinstance(figure, NotDrawable)
    panels = [axes for axes in figure.get_axes() if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in panels] == [*TASKS]
    ticks = [label.get_text() for label in panels[0].get_yticklabels()]
    assert sorted(ticks) == sorted(ACCEPTANCE) and ticks[0] == "8 bits"


def test_kinds_are_compared_on_the_tasks_that_every_method_ran(replication: Replication) -> None:
    """One fast run on a further task must not make its method the fastest."""
    kept = tuple(
        cell if (cell["method"], cell["task"]) != ("ConfLayers", "HumanEval") else replace(cell, record=None)
        for cell in replication.cells
    )
    fact = answers(replace(replication, cells=kept))["Which kind of draft is fastest?"]
    assert "GSM8K, 6 prompts" in fact.basis and "HumanEval" not in fact.basis
