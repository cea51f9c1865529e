"""Planted records that decide nothing are caught, and every speed's interval has run-to-run variation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ssd_bench.papers.ours import agreement
from ssd_bench.papers.ours.cells import REPEATED_TIMINGS, Cell, Replication, replications
from ssd_bench.report import layout, numbers
from ssd_bench.report.closing import comparison_text
from ssd_bench.results import evidence
from ssd_bench.results.digest import summarise
from ssd_bench.results.effect import widen
from ssd_bench.results.evidence import RunTiming, run_to_run_variation, searched_share
from ssd_bench.results.folder import Record, records
from ssd_bench.results.quantity import Measured, Spread
from ssd_bench.results.rows import arm_rows
from tests import synthetic
from tests.exhibit_runs import indexed
from tests.papers.claim_runs import make
from tests.runs import executed

SPREAD = (0.0, 0.02, -0.02, 0.01, -0.01, 0.015, -0.015, 0.0)  # logarithms of the moments' speeds
TABLE = "swift_table8"


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Replication:
    """Table 8 of SWIFT: its own trace; that trace at twice the time; a search that never ran; another trace."""
    folder = tmp_path_factory.mktemp("planted")
    lengths = {"HumanEval, 4 problems": 4, "HumanEval, 20 problems": 8, "AIME24": 16}  # prompts: each a level
    for prompts in lengths.values():
        for i, log in enumerate(SPREAD):
            make(folder, f"moment={i + 1} of {prompts}", 0.8, math.exp(log), prompts=prompts)
    indexed(folder, REPEATED_TIMINGS, "mini", lambda job: f"{job.labels['setting']} of {lengths[job.labels['task']]}")
    runs = {
        "ablation=none": make(folder, "own", 0.7),
        "ablation=w/o early-stopping": make(folder, "doubled", 0.7, factor=2.0),
        "ablation=w/o dynamic ver.": make(folder, "never", 0.6, search=False),
        "ablation=w/o optimization": make(folder, "another", 0.5),
    }
    indexed(folder, TABLE, "mini", lambda job: runs[job.labels["setting"]], own_traces=False)
    return next(one for one in replications(folder) if one.experiment.name == TABLE)


def cell(replication: Replication, run: str) -> Cell:
    return next(one for one in replication.recorded_cells() if one.path.name == run)


def test_what_decides_nothing_is_excluded_and_says_why(planted: Replication) -> None:
    reasons = {cell.path.name: reason for cell, reason in planted.exclusions.items()}
    assert reasons["own"] == reasons["another"] == ""
    assert reasons["never"] == "no search ran"
    said = reasons["doubled"]
    assert said.startswith("duplicates the trace of SWIFT, ablation=none")
    assert "although their speedups differ by a factor of 2.00, beyond run-to-run variation" in said
    assert cell(planted, "never").summary.searched_share == 0
    warning = "no search ran: every draft used the method's initial layer set"
    assert warning in cell(planted, "never").summary.warnings
    assert 0.7 < cell(planted, "own").summary.searched_share < 1


def test_the_same_trace_within_the_floor_is_excluded_and_no_more(planted: Replication, tmp_path: Path) -> None:
    for name, factor in (("a", 1.0), ("b", 1.01)):
        make(tmp_path, name, 0.7, factor)
    noise = cell(planted, "own").record.variation  # type: ignore[union-attr]
    assert noise is not None
    a, b = (Record(tmp_path / name) for name in ("a", "b"))
    assert a.digest.timing.trace == b.digest.timing.trace == cell(planted, "own").timing.trace
    assert noise.speed_ratio(a.digest.timing, b.digest.timing) is None
    assert noise.speed_ratio(a.digest.timing, cell(planted, "doubled").timing) == pytest.approx(2.0)


def test_excluded_numbers_are_neither_shown_nor_ranked_nor_counted(planted: Replication) -> None:
    frame = numbers.long_table([planted], "swift", "Table 8")
    excluded = frame[frame["verdict"] == agreement.EXCLUDED]
    assert set(excluded["setting"]) == {"ablation=w/o early-stopping", "ablation=w/o dynamic ver."}
    assert excluded["ours"].isna().all() and excluded["reason"].str.startswith("excluded: ").all()
    assert frame.loc[frame["setting"] == "ablation=none", "ours"].notna().all()
    ranked = {row for order in agreement.rank_orders(frame) for row in order.rows}
    assert ranked and not ranked & set(excluded.index)
    shown = layout.wide_table(frame).to_string()
    assert layout.EXCLUDED in shown
    assert (frame["verdict"] == agreement.EXCLUDED).sum() == len(excluded)


def test_intervals_of_speeds_have_the_noise_floor_and_others_do_not(planted: Replication) -> None:
    one = cell(planted, "own")
    assert one.variation is not None
    # the eight timings of the longest trace, and the two of another trace that differ by a factor of 2
    pooled = math.sqrt((7 * np.var(SPREAD, ddof=1) + math.log(2) ** 2 / 2) / 8)
    assert one.variation.speedup.sigma == pytest.approx(pooled, rel=1e-6)
    assert one.variation.speedup.dof == 8
    floors = one.record.variation  # type: ignore[union-attr]
    assert floors is not None and len(floors.levels) == 3 and one.variation is floors.levels[-1]
    alone = summarise(one.run)
    assert alone.noise is None and one.summary.noise == one.variation.speedup.sigma
    for name in ("speedup", "speedup_e2e", "method_tokens_per_s"):
        wide, narrow = one.summary.number(name), alone.number(name)
        assert wide.low < narrow.low < narrow.high < wide.high  # type: ignore[operator]
    for name in ("M", "alpha"):
        assert one.summary.number(name) == alone.number(name)
    synthetic.write_record(planted.runs_dir / "elsewhere", [synthetic.unit(0)], model={"name": "other"})
    (other,) = (record for record in records(planted.runs_dir) if record.path.name == "elsewhere")
    assert other.variation is None


def test_levels_join_traces_until_they_have_enough_timings(tmp_path: Path) -> None:
    timings = []
    for i, prompts in enumerate((4, 5, 12, 13)):  # four traces, three timings each
        for j, log in enumerate((0.0, 0.1, -0.1)):
            name = make(tmp_path, f"{i}-{j}", 0.7, math.exp(log), prompts=prompts)
            timings.append(Record(tmp_path / name).digest.timing)
    (variation,) = run_to_run_variation(timings)
    assert [level.speedup.dof for level in variation.levels] == [8]
    assert variation.levels[0].speedup.sigma == pytest.approx(0.1, rel=1e-6)


@pytest.mark.parametrize("sigma", [0.0, 0.03])
def test_widening_adds_variances(sigma: float) -> None:
    number = Measured(1.2, 1.2 / math.exp(0.1), 1.2 * math.exp(0.1), 20)
    wide = widen(number, Spread(sigma, 7))
    assert wide.low is not None and wide.high is not None and wide.value == 1.2
    assert wide.low * wide.high == pytest.approx(1.2**2)
    if sigma:
        assert wide.high > number.high  # type: ignore[operator]
    else:
        assert wide.high == pytest.approx(number.high)
    assert widen(Measured(1.2, n=1), Spread(0.1, 7)) == Measured(1.2, n=1)


def with_slow_steps(folder: Path, slow: Sequence[int], times: float) -> dict[str, Any]:
    units = [synthetic.unit(i) for i in range(8)]
    for i in slow:
        step = units[i][1].steps[3]
        units[i][1].prompt.decode_ms += (times - 1) * step.verify_ms
        step.verify_ms *= times
    return summarise(synthetic.write_run(folder / f"{len(slow)}-{times:g}", units)).row


def test_steps_that_took_many_times_what_their_like_do_are_marked(tmp_path: Path) -> None:
    quiet = with_slow_steps(tmp_path, [], 1)
    assert (quiet["slow_steps"], quiet["slow_share"]) == (0, 0.0)
    assert not any("unreliable" in w for w in quiet["warnings"])
    one = with_slow_steps(tmp_path, [2], 12)
    assert one["slow_steps"] == 1 and 0 < one["slow_share"] < evidence.SLOW_SHARE_LIMIT
    assert not any("unreliable" in w for w in one["warnings"])
    long = with_slow_steps(tmp_path, [2], 200)  # one step alone, in a short run
    assert long["slow_steps"] == 1 and any("timings unreliable: 1 step took" in w for w in long["warnings"])
    many = with_slow_steps(tmp_path, range(8), 100)
    assert many["slow_steps"] == 8 and any("timings unreliable: 8 steps" in w for w in many["warnings"])


def test_a_search_is_no_slow_step(tmp_path: Path) -> None:
    units = [synthetic.unit(i) for i in range(4)]
    units[0][1].steps[2].policy_ms *= 1000
    assert summarise(synthetic.write_run(tmp_path / "run", units)).row["slow_steps"] == 0


def test_a_run_beside_others_says_so_and_is_no_moment(tmp_path: Path) -> None:
    runs = [
        synthetic.write_run(tmp_path / f"{i}", [synthetic.unit(j) for j in range(4)], others_share=share)
        for i, share in enumerate((0.01, 0.02, 0.4))
    ]
    said = [summarise(run).warnings for run in runs]
    assert any("other processes used 40 % of the CPU cores" in w for w in said[2])
    assert not any("unreliable" in w for w in said[0])
    together = comparison_text([Record(tmp_path / f"{i}") for i in range(3)])
    assert together.count("\ntimings unreliable, see the warnings: knapspec\n") == 1
    floors = run_to_run_variation(map(RunTiming.of, runs))
    assert len(floors) == 1 and [level.speedup for level in floors[0].levels] == [Spread(0.0, 1)]


SHORT_SEARCH = ("method.calibration=1", "method.search.iterations=1", "method.search.new_tokens=2")


@pytest.mark.parametrize(
    ("method", "options", "tokens", "before", "after"),
    [  # the set of the first step, and of the last
        ("knapspec", (), 24, True, True),
        ("knapspec_code", (), 100, False, True),
        ("swift", (), 100, False, True),
        ("swift", ("method.max_steps=0",), 24, None, None),
        ("conflayers", ("method.context_window=12", "method.interval=4"), 50, False, True),
        ("clasp", (), 24, True, True),
        ("clasp_knapspec", (), 100, False, True),
        ("del", (), 24, False, True),
        ("self_ssd", SHORT_SEARCH, 24, True, True),
        ("fixed_layers", (), 24, None, None),
    ],
)
def test_a_record_says_whose_set_drafted(
    method: str, options: Sequence[str], tokens: int, before: bool | None, after: bool | None, tmp_path: Path
) -> None:
    length = f"decode.max_new_tokens={tokens}"
    run = executed(tmp_path, "model=miniature", "task=tinystories", "limit=1", length, f"method={method}", *options)
    steps = arm_rows(run.steps, "method").sort_values("step")
    told = [None if pd.isna(value) else bool(value) for value in steps.loc[steps["draft_len"] > 0, "searched"]]
    assert (told[0], told[-1]) == (before, after) and told == sorted(told, key=lambda value: bool(value))
    assert arm_rows(run.steps, "ar")["searched"].isna().all()
    share = searched_share(run)
    assert share is None if before is None else share == sum(map(bool, told)) / len(told)
