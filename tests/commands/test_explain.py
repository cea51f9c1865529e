"""Why a run is as fast as it is: the split adds up, and each loss is what its absence would save."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ssd_bench.commands import explain
from ssd_bench.contract.window import Window
from ssd_bench.records.reader import Run
from ssd_bench.results.definitions import expected_speedup, skip_ratio_of_all
from ssd_bench.results.prompt_table import PromptTable, of_steps
from ssd_bench.results.rows import arm_rows
from tests.synthetic import T_DRAFT_MS, T_TARGET_MS, unit, write_run

POLICY, OTHER, VERIFY, DRAFT, REJECTED = (
    explain.OVERHEAD,
    "loop, sampling, trace",
    "verification beyond an AR step",
    "drafting beyond its share of the layers",
    "rejected drafts",
)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_run(tmp_path / "run", [unit(i) for i in range(6)])


def without(run: Run, column: str, factor: float) -> Run:
    """The run with a scaled column of the method's times, and its decode time."""
    prompts, steps = run.prompts.copy(), run.steps.copy()
    method = prompts["arm"] == "method"
    prompts.loc[method, "decode_ms"] += (factor - 1) * prompts.loc[method, column]
    prompts.loc[method, column] *= factor
    steps.loc[steps["arm"] == "method", column] *= factor
    return replace(run, prompts=prompts, steps=steps)


def loss(found: explain.Explanation, name: str) -> explain.Loss:
    return next(loss for loss in found.losses if loss.name == name)


def test_the_split_adds_up_to_the_measured_speedup(run: Run) -> None:
    found = explain.explain(run)
    assert found.speedup == pytest.approx(PromptTable(run.prompts).value("speedup"))
    assert found.ms["ar"] / (sum(found.ms.values()) - found.ms["ar"]) == pytest.approx(found.speedup)
    steps = arm_rows(run.steps, "method")
    assert found.ceiling == of_steps("M", steps)
    assert found.cost_model == expected_speedup(
        found.ceiling, of_steps("alpha", steps), PromptTable.of(run).value("skip_ratio")
    )
    assert [x.ms for x in found.losses] == sorted((x.ms for x in found.losses), reverse=True)


def test_each_speedup_without_a_loss_is_that_of_a_run_without_it(run: Run) -> None:
    found = explain.explain(run)
    for name, column, factor in (
        (POLICY, "policy_ms", 0.0),
        (VERIFY, "verify_ms", 1 / found.verify_cost),
        (DRAFT, "draft_ms", (found.c or 0) / (found.c_measured or 1)),
    ):
        other = explain.explain(without(run, column, factor))
        assert loss(found, name).speedup == pytest.approx(other.speedup), name
        assert loss(other, name).ms == pytest.approx(0, abs=1e-9)
    # accepting all k drafted tokens in the same time multiplies the tokens by (k + 1) / M
    steps = arm_rows(run.steps, "method")
    factor = (steps["draft_len"] + 1).sum() / steps["emitted"].sum()
    assert loss(found, REJECTED).speedup == pytest.approx(found.speedup * factor)


def test_costs_are_those_of_the_record(run: Run) -> None:
    """The synthetic record drafts a token in 3 of 10 ms with 13 of 16 sublayers; AR loses 2 % outside."""
    found = explain.explain(run)
    assert found.c == pytest.approx(13 / 16)
    assert found.c_measured == pytest.approx(T_DRAFT_MS / T_TARGET_MS / 1.02, rel=0.1)
    assert found.verify_cost == pytest.approx(1 / 1.02, rel=0.1)
    assert loss(found, DRAFT).ms < 0  # dearer layers than the drafts took: no loss
    assert found.losses[0].name == REJECTED


def test_a_method_without_layer_drafts(tmp_path: Path) -> None:
    """No skip ratio, no cost model: drafting is one loss."""
    units = [unit(i) for i in range(3)]
    for records in units:
        for step in records[1].steps:
            step.layer_set = None
    found = explain.explain(write_run(tmp_path / "run", units))
    assert found.cost_model is found.c is None
    assert loss(found, "drafting").ms == pytest.approx(found.ms["draft"])


def test_the_largest_loss_is_named(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    slow = without(run, "policy_ms", 40.0)
    assert explain.render(slow, explain.explain(slow)).splitlines()[-1].startswith(f"largest loss: {POLICY}")
    assert explain.main([f"run={run.path}"]) == 0
    assert f"largest loss: {REJECTED}" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["run="], ["runs=x"], ["run=nowhere"]])
def test_bad_options_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.main(arguments) == 2
    assert "run" in capsys.readouterr().err


def test_a_run_without_a_baseline_is_refused(tmp_path: Path) -> None:
    alone = write_run(tmp_path / "run", [[unit(i)[1]] for i in range(3)])
    with pytest.raises(explain.ConfigError, match="paired"):
        explain.explain(alone)


def test_slow_steps_are_listed_the_slowest_first(tmp_path: Path, run: Run) -> None:
    assert "outliers" not in explain.render(run, explain.explain(run))
    units = [unit(i) for i in range(6)]
    for i, times in ((1, 20), (4, 30)):
        units[i][0].steps[2].verify_ms *= times
    disturbed = write_run(tmp_path / "disturbed", units)
    said = explain.render(disturbed, explain.explain(disturbed))
    assert f"2 of {len(disturbed.steps)} steps are outliers: {explain.OUTLIERS}; the slowest:" in said
    rows = [line.split() for line in said.rpartition("expected ms")[2].splitlines()[2:]]
    assert [row[:3] for row in rows] == [["4", "ar", "3"], ["1", "ar", "3"]]


def test_what_drafted_is_listed_by_source(tmp_path: Path) -> None:
    """Counts of plain steps, copied tokens, sets with and without a window add up to the record's."""
    units = [unit(i) for i in range(6)]
    steps = [step for records in units for step in records[1].steps]
    for i, step in enumerate(steps):
        if i % 4 == 0:
            step.layer_set, step.draft_len, step.tree_nodes, step.accepted_len = None, 0, 1, 0
        elif i % 4 == 1:
            step.layer_set = None
        elif i % 4 == 2:
            step.layer_set = step.layer_set and replace(step.layer_set, window=Window(4, 60))
    run = write_run(tmp_path / "run", units)
    sources = explain.draft_sources(run).set_index("source")
    method = arm_rows(run.steps, "method")
    for name, column in (("drafted", "draft_len"), ("accepted", "accepted_len"), ("emitted", "emitted")):
        assert sources[name].sum() == method[column].sum()
    assert sources["steps"].sum() == len(method) and len(sources) == 2 + len(run.layer_sets)
    assert sources.loc[explain.NO_DRAFT, "drafted"] == 0 < sources.loc[explain.NO_LAYERS, "drafted"]
    windowed = [name for name in sources.index if name.endswith("reads 4 + 60 positions")]
    assert len(windowed) == int(run.layer_sets["recent"].notna().sum()) >= 1
    said = explain.render(run, explain.explain(run))
    assert all(name in said for name in sources.index)


def test_copied_tokens_count_as_skipping_everything(tmp_path: Path) -> None:
    units = [unit(i) for i in range(6)]
    steps = [step for records in units for step in records[1].steps]
    whole = write_run(tmp_path / "whole", units)
    assert skip_ratio_of_all(whole) == PromptTable.of(whole).value("skip_ratio")
    for step in steps[::2]:
        step.layer_set = None
    mixed = write_run(tmp_path / "mixed", units)
    assert steps[1].layer_set is not None
    steps[1].layer_set = replace(steps[1].layer_set, window=Window(4, 60))
    assert skip_ratio_of_all(write_run(tmp_path / "windowed", units)) is None
    by_layers = sum(step.draft_len for step in steps[1::2]) / sum(step.draft_len for step in steps)
    c = (1 - (PromptTable.of(mixed).value("skip_ratio") or 0)) * by_layers
    assert skip_ratio_of_all(mixed) == pytest.approx(1 - c) and explain.explain(mixed).c == pytest.approx(c)
