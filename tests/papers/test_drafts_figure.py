"""The figure of the kinds of drafts: a run's kind, the best run of each, and what is drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.window import Window
from ssd_bench.papers.figures.shared import NotDrawable
from ssd_bench.papers.ours.cells import Replication, replications
from ssd_bench.papers.runs import grid
from ssd_bench.papers.ssd_bench import drafts
from ssd_bench.papers.ssd_bench.drafts import DRAFTS
from ssd_bench.report.figures import figure
from tests import synthetic
from tests.exhibit_runs import indexed

KINDS = {
    "8 bits": "8 bits",
    "window": "window",
    "8 bits, window": "window + 8 bits",
    "uniform half-skip": "layers",
    "uniform quarter-skip, 8 bits": "layers + 8 bits",
    "KnapSpec": "layers",
    "KnapSpec, mixed": "layers + 8 bits",
    "adaptive, 8 bits": drafts.ROUTER,
}
"""Methods of the experiment -> kind of their synthetic drafts."""


def write(folder: Path, name: str, kind: str, accept: float) -> None:
    """Write a run whose drafts are of one kind or, of a router, 8-bit ones and copies in turns."""
    whole = LayerSet(synthetic.N_LAYERS, window=Window(1, 16) if "window" in kind else None)
    units = [synthetic.unit(i, accept=accept) for i in range(6)]
    for records in units:
        for i, step in enumerate(records[1].steps):
            if kind == drafts.ROUTER and i % 2:
                step.layer_set = None
            elif step.layer_set is not None:
                layer_set = step.layer_set if "layers" in kind else whole
                step.layer_set = layer_set.in_bits(8) if "8 bits" in kind or kind == drafts.ROUTER else layer_set
    synthetic.write_record(folder / name, [synthetic.with_work(records) for records in units], run_id=name)


@pytest.fixture(scope="module")
def replication(tmp_path_factory: pytest.TempPathFactory) -> Replication:
    """Runs of the experiment on two tasks, each method with its own acceptance."""
    folder = tmp_path_factory.mktemp("drafts")
    tasks = [*dict.fromkeys(job.labels["task"] for job in grid.load(DRAFTS).jobs)][:2]

    def run(job: grid.Job) -> str | None:
        method, task = job.labels["method"], job.labels["task"]
        if method not in KINDS or task not in tasks:
            return None
        name = f"{task}-{[*KINDS].index(method)}"
        write(folder, name, KINDS[method], 0.4 + 0.08 * [*KINDS].index(method))
        return name

    indexed(folder, DRAFTS, "mini", run)
    whole = next(one for one in replications(folder) if one.experiment.name == DRAFTS)
    return replace(whole, cells=tuple(cell for cell in whole.cells if cell["task"] in tasks))


def test_a_run_is_of_the_kind_of_its_drafts(replication: Replication) -> None:
    kinds = {cell["method"]: drafts.kind_of(cell) for cell in replication.shown_cells() if cell.is_readable}
    assert kinds == KINDS


def test_the_best_run_of_each_kind_is_drawn_measured_and_modelled(replication: Replication) -> None:
    cells = [cell for cell in replication.shown_cells() if cell.is_readable]
    for number in drafts.PANELS:
        best = drafts.best_of_each([(cell, drafts.kind_of(cell)) for cell in cells], number)
        for (task, kind), shown in best.items():
            values = [
                cell.summary.number(number).value
                for cell in cells
                if cell["task"] == task and KINDS[cell["method"]] == kind
            ]
            assert shown.value == max(value for value in values if value is not None)
        assert len(best) == 2 * len(set(KINDS.values()))
    drawn = figure(replication)
    assert isinstance(drawn, Figure)
    assert [axes.get_ylabel() for axes in drawn.axes] == ["speedup, measured", "speedup, modelled"]
    assert set(drawn.axes[0].get_legend_handles_labels()[1]) >= set(KINDS.values())


def test_without_runs_nothing_is_drawn(replication: Replication) -> None:
    empty = replace(replication, cells=tuple(replace(cell, record=None) for cell in replication.cells))
    assert isinstance(drafts.drafts(empty), NotDrawable)
