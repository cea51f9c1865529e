"""Claims about speed follow modelled times if the records count their work, next to measured effects."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ssd_bench.commands import claims as claims_command
from ssd_bench.cost.reference import reference_machine
from ssd_bench.papers.claims.claims import STATISTICS
from ssd_bench.papers.claims.judge import CANNOT_SAY, FAILS, HOLDS, TOY, Judgement
from ssd_bench.papers.claims.statistics import StatisticSample, take_sample
from ssd_bench.papers.ours.cells import REPEATED_TIMINGS, Cell
from ssd_bench.records.reader import Run
from ssd_bench.report import verdict_texts, verdicts
from ssd_bench.report.answers import claim_lines
from ssd_bench.results.digest import summarise
from ssd_bench.results.folder import Record
from ssd_bench.results.modelled import REFERENCE, modelled_steps, reference_run
from ssd_bench.results.prompt_table import PromptTable
from tests import synthetic
from tests.exhibit_runs import MINIATURE, indexed
from tests.papers.claim_runs import named, searched, timed, verdict_of

COSTS = "modelled at H200 x Llama-3.1-8B costs"
TIMED = [name for name, statistic in STATISTICS.items() if statistic.timed]


def counted(
    folder: Path,
    name: str,
    accept: float = 0.7,
    factor: float = 1.0,
    searches: int = 1,
    prompts: int = 20,
    **changes: Any,
) -> Run:
    """A record that counts its work, with the method's recorded times multiplied."""
    units = searched([synthetic.unit(i, accept=accept) for i in range(prompts)])
    units = [synthetic.with_work(records, searches) for records in timed(units, factor)]
    return synthetic.write_run(folder / name, units, **{"run_id": name, "model": MINIATURE} | changes)


def cell(folder: Path, name: str) -> Cell:
    return Cell({"model": "", "task": "", "method": "", "setting": ""}, (), Record(folder / name))


def value(folder: Path, name: str, statistic: str) -> float:
    sample = take_sample([cell(folder, name)], statistic, {}, modelled=True)
    assert isinstance(sample, StatisticSample)
    return sample.value()


def numbers(judged: Judgement) -> Mapping[str, object]:
    """A judgement without the records behind it and the measured effect."""
    return vars(replace(judged, cells=(), measured=None))


def test_the_verdict_follows_the_modelled_times_and_shows_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counted(tmp_path, "own", 0.8, factor=4.0)  # measured here, its drafts take four times as long as they should
    counted(tmp_path, "uniform", 0.3)
    judged = verdict_of(tmp_path)
    assert judged.verdict == HOLDS and judged.references == (REFERENCE,)
    assert judged.measured is not None and judged.measured.verdict == FAILS
    assert judged.effect is not None and judged.measured.effect is not None
    assert judged.measured.effect < 1 < judged.effect
    frame = verdicts.table([judged])
    (row,) = frame.to_dict("records")
    assert row["times"] == COSTS and row["measured"] == judged.measured.effect
    shown = verdict_texts.times_text(judged.claim, frame.iloc[0])
    assert shown.startswith(f"{COSTS}; measured here: {judged.measured.effect:.2f} [") and shown.endswith("]×")
    line = next(line for line in claim_lines(frame) if line["claim"] is judged.claim)
    assert [verdict["times"] for verdict in line["verdicts"][TOY]] == [shown]
    out = tmp_path / "verdicts" / "mini.csv"
    assert claims_command.main([f"runs_dir={tmp_path}", f"out={out}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "modelled at H200 x" in printed and "measured here" in printed
    (read,) = verdicts.read_verdicts(tmp_path).to_dict("records")
    assert all(read[name] == row[name] for name in ("times", *verdicts.MEASURED))


def test_the_same_work_gives_the_same_verdict_on_every_machine(tmp_path: Path) -> None:
    other = {"provenance": {"device": {"cpu": "Another"}}, "latency": {"t_mlp_ms": 7.5}, "prepare_ms": 1.0}
    counted(tmp_path, "uniform", 0.3)
    counted(tmp_path, "own", 0.8)
    counted(tmp_path, "elsewhere", 0.8, factor=3.0, **other)
    first, second = (verdict_of(tmp_path, name) for name in ("own", "elsewhere"))
    assert numbers(first) == numbers(second) and first.effect is not None
    assert second.measured is not None and second.measured.reason.endswith("timed on different machines")
    for statistic in TIMED:
        assert value(tmp_path, "own", statistic) == value(tmp_path, "elsewhere", statistic), statistic


def test_contaminated_timings_do_not_touch_modelled_times(tmp_path: Path) -> None:
    counted(tmp_path, "uniform", 0.3)
    counted(tmp_path, "own", 0.8)
    counted(tmp_path, "busy", 0.8, others_share=0.5)
    judged = verdict_of(tmp_path, "busy")
    assert numbers(judged) == numbers(verdict_of(tmp_path))
    assert judged.measured is not None and "timings unreliable" in judged.measured.reason
    assert verdict_texts.times_text(judged.claim, verdicts.table([judged]).iloc[0]) == COSTS


def test_runs_for_different_reference_machines_decide_nothing(tmp_path: Path) -> None:
    counted(tmp_path, "own", 0.8, config={"hardware": {"costs": "h200/qwen3_8b"}})
    counted(tmp_path, "uniform", 0.3)
    judged = verdict_of(tmp_path)
    assert judged.verdict == CANNOT_SAY and "different reference machines: " in judged.reason
    assert judged.effect is None and judged.measured is not None and judged.measured.verdict == HOLDS


def test_claims_without_times_need_no_machine(tmp_path: Path) -> None:
    counted(tmp_path, "own", 0.8)
    counted(tmp_path, "uniform", 0.3)
    acceptance = replace(named("swift/more_candidates_help"), statistic="M")
    judged = verdict_of(tmp_path, claim=acceptance)
    assert judged.verdict == HOLDS and judged.references == () and judged.measured is None
    assert verdicts.table([judged])["times"].tolist() == [""]


def test_run_to_run_variation_is_in_the_interval_of_measured_times_alone(tmp_path: Path) -> None:
    logs = (0.0, 0.05, -0.05, 0.02, -0.02, 0.04, -0.04, 0.0)
    counted(tmp_path, "own", 0.8)
    counted(tmp_path, "uniform", 0.3)
    without = verdict_of(tmp_path)
    for i, log in enumerate(logs):
        counted(tmp_path, f"moment={i + 1}", 0.7, math.exp(log), prompts=8)
    indexed(tmp_path, REPEATED_TIMINGS, "mini", lambda job: job.labels["setting"])
    judged = verdict_of(tmp_path)
    assert numbers(judged) == numbers(without) and judged.variation is None
    wide, narrow = judged.measured, without.measured
    assert wide is not None and narrow is not None and narrow.variation is None and wide.effect == narrow.effect
    assert wide.variation == pytest.approx(math.sqrt(2) * np.std(logs, ddof=1), rel=1e-6)
    assert wide.low < narrow.low < narrow.high < wide.high  # type: ignore[operator]
    quiet = verdict_of(tmp_path, claim=replace(judged.claim, noise=0.0))
    assert (judged.low, judged.high) == (quiet.low, quiet.high)
    record = next(cell for cell in judged.cells if cell.path.name == "own")
    assert record.summary.noise is not None
    assert record.summary.speedup_modelled == summarise(record.run).speedup_modelled


def test_every_time_of_a_modelled_run_is_from_its_work(tmp_path: Path) -> None:
    run = counted(tmp_path, "run")
    machine = reference_machine(REFERENCE).of_blocks(run.header.model.n_layers)
    modelled, parts = reference_run(run), modelled_steps(run, machine)
    names = ["draft_ms", "verify_ms", "policy_ms"]
    pd.testing.assert_frame_equal(modelled.steps[names], parts[names])
    spent = modelled.prompts[names].to_numpy().sum() + machine.step_ms * len(run.steps)
    assert modelled.prompts["decode_ms"].sum() == pytest.approx(spent)
    prefill = set(modelled.prompts["prefill_ms"])
    assert len(prefill) == 1 and prefill.pop() > 0  # all prompts have 20 tokens
    times = [*names, "decode_ms", "prefill_ms"]
    pd.testing.assert_frame_equal(modelled.prompts.drop(columns=times), run.prompts.drop(columns=times))
    pd.testing.assert_frame_equal(modelled.steps.drop(columns=names), run.steps.drop(columns=names))


def test_statistics_of_modelled_times_have_the_definitions_of_measured_ones(tmp_path: Path) -> None:
    run = counted(tmp_path, "run")
    modelled, summary = reference_run(run), summarise(run)
    assert summary.modelled_on == REFERENCE
    decode, end_to_end = (PromptTable(modelled.prompts).number(name) for name in ("speedup", "speedup_e2e"))
    assert value(tmp_path, "run", "speedup") == summary.speedup_modelled.value == decode.value
    assert value(tmp_path, "run", "speedup_e2e") == end_to_end.value and end_to_end.value != decode.value
    assert value(tmp_path, "run", "overhead") == pytest.approx(summary.modelled_overhead)
    events = modelled.steps[modelled.steps["est_alpha"].notna() & (modelled.steps["arm"] == "method")]
    assert value(tmp_path, "run", "search_s") == pytest.approx(events["policy_ms"].sum() / 1000)


def test_a_search_that_runs_twice_costs_its_calls_again(tmp_path: Path) -> None:
    once, twice = (counted(tmp_path, str(n), searches=n) for n in (1, 2))
    first, second = (reference_run(run).steps for run in (once, twice))
    assert second["policy_ms"].tolist() == pytest.approx((2 * first["policy_ms"]).tolist()) and first["policy_ms"].any()
    assert second[["draft_ms", "verify_ms"]].equals(first[["draft_ms", "verify_ms"]])
    summaries = [summarise(run) for run in (once, twice)]
    frozen, speedups = (
        [summary.number(name).value for summary in summaries] for name in ("speedup_frozen", "speedup_modelled")
    )
    assert frozen[0] == pytest.approx(frozen[1]) and frozen[0] > speedups[0] > speedups[1]


def test_an_offline_search_takes_as_long_as_the_work_of_the_preparation(tmp_path: Path) -> None:
    work = {"part": "prepare", "rows": 20, "attentions": 8, "mlps": 8, "heads": 1.0, "launches": 2, "context": 0.0}
    work["ms"] = 1.0
    for name, calls in (("once", 100), ("twice", 200)):
        units = [synthetic.with_work(synthetic.unit(i)) for i in range(4)]
        for step in (step for records in units for record in records for step in record.steps):
            step.est_alpha = None  # it searched before the run, not online
        searches = [{"name": "greedy", "evaluations": 10, "new": 10, "seconds": 40.0}]
        synthetic.write_record(tmp_path / name, units, searches=searches, prepare_work=[work | {"calls": calls}])
    once, twice = (value(tmp_path, name, "search_s") for name in ("once", "twice"))
    summary = summarise(cell(tmp_path, "once").run)
    assert summary.modelled_prepare_ms == pytest.approx(1000 * once)
    assert twice == pytest.approx(2 * once) and once > 0
