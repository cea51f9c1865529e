"""Our experiments on kinds of drafts and windows: grids, figure, report, what to use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from ssd_bench.cost.tpt import tpt
from ssd_bench.papers.ours.cells import Replication, replications
from ssd_bench.papers.runs import grid
from ssd_bench.papers.ssd_bench import windows
from ssd_bench.papers.ssd_bench.drafts import DRAFTS
from ssd_bench.papers.ssd_bench.own import OWN
from ssd_bench.papers.ssd_bench.windows import WINDOWS
from ssd_bench.report import choice, page, results, write
from ssd_bench.report.figures import figure
from ssd_bench.results.folder import Record
from tests import synthetic
from tests.exhibit_runs import indexed


def made(folder: Path, experiment: str) -> Replication:
    """Its runs at scale mini, each method with its own acceptance, on the first task alone."""
    labels = [*dict.fromkeys((job.labels["method"], job.labels["setting"]) for job in grid.load(experiment).jobs)]
    task = grid.load(experiment).jobs[0].labels["task"]

    def run(job: grid.Job) -> str | None:
        if job.labels["task"] != task:
            return None
        place = labels.index((job.labels["method"], job.labels["setting"]))
        name = f"{experiment}-{job.labels['task']}-{place}".replace("/", "").replace(" ", "").replace(",", "")
        if not (folder / name).is_dir():
            units = [synthetic.unit(i, accept=0.3 + 0.6 * place / len(labels)) for i in range(6)]
            for record in units[0]:
                record.prompt.output_ids = [1, 2, 3, 4] * 20
                record.prompt.output_ids = record.prompt.output_ids[: record.prompt.new_tokens]
            synthetic.write_record(folder / name, units, run_id=name, model={"name": "tiny", "n_params": 2_000_000})
        return name

    indexed(folder, experiment, "mini", run)
    whole = next(one for one in replications(folder) if one.experiment.name == experiment)
    return replace(whole, cells=tuple(cell for cell in whole.cells if cell["task"] == task))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Replication]:
    """Both experiments with all runs of their tasks."""
    return {name: made(tmp_path_factory.mktemp(name), name) for name in (DRAFTS, WINDOWS)}


def test_a_run_set_fills_both_and_prompts_fit_the_context() -> None:
    assert grid.expand_name("families") == [DRAFTS, WINDOWS]
    for job in (*grid.load(DRAFTS).jobs, *grid.load(WINDOWS).jobs):
        asked = dict(override.split("=", 1) for override in job.overrides)
        assert asked["model"] == "smollm2_135m" and asked["seed"] == "0"
        # answer and clip_reserve of the task leave the prompt as long as the label says
        assert int(asked.get("task.max_prompt_tokens", 0)) + int(asked["decode.max_new_tokens"]) + 250 <= 8192


def test_the_figure_has_a_line_for_each_layer_set_in_each_panel(whole: dict[str, Replication]) -> None:
    one = whole[WINDOWS]
    drawn = figure(one)
    assert isinstance(drawn, Figure)
    panels = drawn.axes
    sets = list(dict.fromkeys(job.labels["method"] for job in one.experiment.jobs))
    assert [axes.get_ylabel() for axes in panels] == list(windows.PANELS)
    for axes in panels:
        assert set(axes.get_legend_handles_labels()[1]) >= set(sets)
        assert [text.get_text() for text in axes.get_xticklabels()] == ["60", "252", "1020", "all"]
    cells = list(one.recorded_cells(method=sets[0]))
    line = next(line for line in panels[0].lines if line.get_label() == sets[0])
    assert np.asarray(line.get_ydata()).tolist() == pytest.approx([cell.summary.alpha.value for cell in cells])
    # c of the synthetic runs: drafted tokens take 3 of AR's 10 ms, and AR's loop 2 % more
    cost = cells[0].summary.draft_cost.value
    assert cost is not None and cost == pytest.approx(synthetic.T_DRAFT_MS / synthetic.T_TARGET_MS / 1.02, rel=0.05)
    accepted = cells[0].summary.alpha_conditional
    best = max(tpt(accepted, n, cost, 1.0) / 1000 for n in range(1, 11))
    assert windows.predicted_speedup(cells[0]) == pytest.approx(best)


def test_a_report_writes_them_and_a_page_says_what_is_not_run(whole: dict[str, Replication], tmp_path: Path) -> None:
    made_runs = [whole[WINDOWS]]
    names = {path.name for path in write.write_own_tables(made_runs, tmp_path)}
    assert names == {f"{WINDOWS}_mini.{kind}" for kind in ("md", "csv", "tex")}
    assert len(pd.read_csv(tmp_path / f"{WINDOWS}_mini.csv")) == len(grid.load(WINDOWS).jobs)
    sheets = {sheet.anchor: sheet for sheet in page._own_sheets(made_runs, {})}
    assert "uniform quarter-skip" in sheets[f"{WINDOWS}_mini"].table
    empty = [replace(one, cells=tuple(replace(cell, record=None) for cell in one.cells)) for one in made_runs]
    for given in ([], empty):
        without = {sheet.anchor: sheet for sheet in page._own_sheets(given, {})}
        assert set(without) == {own.experiment for own in OWN}
        assert all("Not run yet. Command: python -m ssd_bench" in sheet.lines[0] for sheet in without.values())


def test_what_to_use_counts_methods_of_no_experiment_under_the_same_conditions(
    whole: dict[str, Replication], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "PROMPTS", 5)  # these runs have six, and five
    one = whole[DRAFTS]
    task = one.experiment.jobs[0].labels["task"]

    def fastest(frame: pd.DataFrame) -> object:
        table = choice.choice_table(frame[frame["times"] == results.MEASURED]).set_index("task")
        return table.loc[task, "fastest method"]

    assert fastest(results.result_table([one])) == "adaptive"
    units = synthetic.thin([synthetic.unit(i, accept=0.99) for i in range(6)])
    model = {"name": "tiny", "n_params": 2_000_000}
    synthetic.write_record(tmp_path / "own", units, run_id="own", method="successors", model=model)
    synthetic.write_record(tmp_path / "few", units[:5], run_id="few", method="fewer_prompts", model=model)
    frame = results.result_table([one], [Record(tmp_path / name) for name in ("own", "few")])
    assert fastest(frame) == "successors"
    assert set(frame[frame["task"] == task]["method"]) == {"successors", *(cell["method"] for cell in one.cells)}
    assert "fewer_prompts" in set(frame["method"])  # other prompts are another task
    assert results.comparisons([one]) == [one] and results.comparison([one]) is None


def test_runs_of_other_seeds_are_those_of_their_experiment(whole: dict[str, Replication]) -> None:
    seeds = replace(whole[WINDOWS], cells=(), repeats=(whole[WINDOWS],))
    records = [cell.record for cell in whole[WINDOWS].recorded_cells() if cell.record is not None]
    assert len(results.result_table([], records)) and results.result_table([seeds], records).empty
