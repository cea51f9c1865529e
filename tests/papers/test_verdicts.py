"""Claims' verdicts: the rule, its intervals, and false records' effect on verdict and page."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ssd_bench.commands import claims as claims_command
from ssd_bench.errors import ConfigError
from ssd_bench.papers.claims import judge
from ssd_bench.papers.claims.claims import PARTS, RULE_WRITTEN, SEARCHES, STATISTICS, Claim, claims
from ssd_bench.papers.claims.judge import CANNOT_SAY, FAILS, HOLDS, NOT_RUN, VERDICTS, Judgement
from ssd_bench.papers.claims.statistics import _DEFINITIONS, StatisticSample, take_sample
from ssd_bench.papers.ours.cells import Replication, replications
from ssd_bench.report import numbers, page, verdict_texts, verdicts
from ssd_bench.report.answers import claim_lines, describe_records
from ssd_bench.report.exhibit import build_exhibits
from ssd_bench.report.results import result_table
from ssd_bench.results.quantity import measure, ratio_of_sums
from tests.exhibit_runs import indexed
from tests.papers.claim_runs import ablation, effect, make, named, samples, verdict_of
from tests.papers.test_paper_audit import planted


def test_every_claim_has_a_verdict_with_its_evidence(judgements: list[Judgement]) -> None:
    assert {one.claim.id for one in judgements} == {claim.id for claim in claims()}
    for one in judgements:
        assert one.verdict in VERDICTS
        assert bool(one.reason) == (one.verdict in (CANNOT_SAY, NOT_RUN)), one
        decided_by = verdicts._decided_by(one)
        assert bool(decided_by) == (one.verdict in (CANNOT_SAY, NOT_RUN)), one
        if "experiment=" in decided_by:
            on_given_data = " data=local data.root=DIR" if one.scale == "real" else ""
            assert f"scale={one.scale or 'paper'}{on_given_data}`" in decided_by
        if one.verdict in (HOLDS, FAILS):
            assert one.effect is not None and one.low is not None and one.high is not None
            assert one.low <= one.effect <= one.high and one.n >= (SEARCHES if one.by_seed else 8)
            assert 0 < one.comparisons <= one.planned
            if STATISTICS[one.claim.statistic].variation and not one.references:  # modelled times do not vary
                assert one.variation is not None
    assert {one.verdict for one in judgements} >= {HOLDS, CANNOT_SAY}


def test_no_verdict_rests_on_an_excluded_cell(judgements: list[Judgement], reference: list[Replication]) -> None:
    every = [one for replication in reference for one in (replication, *replication.repeats)]
    exclusions = {cell: reason for replication in every for cell, reason in replication.exclusions.items()}
    for one in judgements:
        excluded = [exclusions[cell] for cell in one.cells if exclusions[cell]]
        if "gpus" not in one.claim.needs:  # on a CPU its number has no meaning, excluded or not
            assert (one.verdict == CANNOT_SAY and one.reason.startswith("excluded: ")) == bool(excluded)
            assert one.effect is None or not excluded
    assert any(one.reason.startswith("excluded: ") for one in judgements)


def test_on_a_toy_run_every_verdict_says_so(judgements: list[Judgement]) -> None:
    on_toy = [one for one in judgements if one.scale != "real"]
    frame = verdicts.table(on_toy)
    for one, (_, row) in zip(on_toy, frame.iterrows(), strict=True):
        assert one.toy == (one.verdict != NOT_RUN)
        assert verdict_texts.verdict_text(row).startswith("on the toy model: ") == one.toy
        assert (row["evidence_class"] == judge.TOY) == one.toy
    assert "this project trained" in verdict_texts.terminal_text(frame)


def test_every_statistic_and_part_is_made_of_something() -> None:
    recorded = {name for name, statistic in STATISTICS.items() if not statistic.unrecorded}
    assert set(_DEFINITIONS) == recorded and set(STATISTICS) >= {claim.statistic for claim in claims()}
    assert set(PARTS) == {axis for claim in claims() for side in (claim.of, claim.over) for axis in side} & set(PARTS)


def test_recorded_verdicts_stand_beside_and_replace_nothing(judgements: list[Judgement], tmp_path: Path) -> None:
    own = verdicts.table(judgements)
    real = {"toy": False, "evidence_class": judge.REAL_MODEL}
    other = own[own["verdict"] != NOT_RUN].assign(model="another", scale="small", **real)
    (tmp_path / "verdicts").mkdir()
    other.to_csv(tmp_path / "verdicts" / "another.csv", index=False)
    again = verdicts.read_verdicts(tmp_path)
    pd.testing.assert_frame_equal(again, other.assign(records=False).reset_index(drop=True), check_dtype=False)
    both = verdicts.merge_verdicts(own, pd.concat([again, own]))
    assert len(both) == len(own) + len(again)
    lines = claim_lines(both)
    counts = other["claim"].value_counts()
    assert all(sum(map(len, line["verdicts"].values())) == 2 * counts.get(line["claim"].id, 0) for line in lines)
    assert sorted(line["claim"].id for line in lines) == sorted({*own["claim"]})
    (tmp_path / "verdicts" / "broken.csv").write_text("claim\nnone/such\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"broken\.csv"):
        verdicts.read_verdicts(tmp_path)


def test_the_command_prints_and_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, "own", 0.8)
    make(tmp_path, "uniform", 0.3)
    indexed(tmp_path, "swift_table8", "mini", ablation(), own_traces=False)
    out = tmp_path / "verdicts" / "mini.csv"
    assert claims_command.main([f"runs_dir={tmp_path}", "scale=mini", f"out={out}"]) == 0
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("on the toy model:", "miniature,", "not recorded"))
    assert verdicts.read_verdicts(tmp_path)["claim"].tolist() == ["swift/more_candidates_help"]
    assert claims_command.main([f"runs_dir={tmp_path}", "scale=paper"]) == 2
    assert "one of the scales with runs: mini" in capsys.readouterr().err


def test_few_prompts_decide_nothing(tmp_path: Path) -> None:
    make(tmp_path, "7", 0.8, prompts=7)
    make(tmp_path, "8", 0.8, prompts=8)
    make(tmp_path, "uniform", 0.3)
    few, enough = (verdict_of(tmp_path, own) for own in "78")
    assert (few.verdict, enough.verdict) == (CANNOT_SAY, HOLDS) and "has 7 prompts; 8 are required" in few.reason
    assert few.effect is not None and few.low is not None and few.n > 0


def test_a_run_that_is_missing_is_no_evidence(tmp_path: Path) -> None:
    make(tmp_path, "own", 0.8)
    for uniform, reason in (
        ("", "no comparison has all of its runs yet"),
        ("!out of memory", "a run failed: out of memory"),
    ):
        found = verdict_of(tmp_path, uniform=uniform)
        assert (found.verdict, found.reason) == (NOT_RUN, reason)


def test_the_pages_verdicts_follow_the_records(tmp_path: Path) -> None:
    frames = []
    # each in its own folder, because two timings of a trace widen the intervals of a folder
    for name, own, factor, uniform in (("own", 0.8, 1.0, 0.3), ("slow", 0.3, 1.0, 0.8), ("copied", 0.6, 1.5, 0.6)):
        make(tmp_path / name, "own", own, factor)
        make(tmp_path / name, "uniform", uniform)
        indexed(tmp_path / name, "swift_table8", "mini", ablation(), own_traces=False)
        made = replications(tmp_path / name)
        frames.append(verdicts.table(judge.judge(made, "swift")).assign(scale=name))
    shown = build_exhibits({("swift", "Table 8"): numbers.long_table(made, "swift", "Table 8")}, made)
    judged = pd.concat([frame[frame["verdict"] != NOT_RUN] for frame in frames])
    checks = planted(("swift", "sums", "consistent", 1.0))
    text = page.render(shown, made, {}, checks, judged, result_table(made))
    item = re.search(r'<tr data-claim="swift/more_candidates_help".*?</tr>', text, re.DOTALL)
    assert item is not None
    said = [f"on the toy model: {verdict}" for verdict in ("cannot say", "holds", "fails")]
    assert re.findall(r"<b>(.*?)</b>", item[0]) == said and "excluded: " in html.unescape(item[0])


VALUE = Claim("p/c", "It.", "§1", (), "swift_table8", "alpha", "value", 0.0, at_least=0.5, none=0.0)


def test_of_one_run_it_is_the_interval_of_every_number() -> None:
    rng = np.random.default_rng(1)
    columns = np.stack([rng.uniform(1, 5, 12), rng.uniform(6, 9, 12)], axis=1)
    found = effect(VALUE, [[samples(columns)]])
    theirs = measure(ratio_of_sums, *columns.T)
    assert (found.value, *found.interval()) == pytest.approx((theirs.value, theirs.low, theirs.high))
    assert found.n == 12 and found.variation is None


def test_runs_without_a_common_prompt_add_their_variances_and_the_same_prompts_do_not_count_twice() -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.uniform((1, 6), (5, 10), (12, 2)) for _ in range(2))
    alone, twice = effect(VALUE, [[samples(a)]]), effect(VALUE, [[samples(a)], [samples(a)]])
    assert twice.interval() == pytest.approx(alone.interval()) and twice.n == 12
    apart = effect(VALUE, [[samples(a)], [samples(b, "q")]])
    assert apart.n == 24 and len(apart._strata) == 2
    ratio = replace(VALUE, effect="ratio", over={"method": ["x"]}, none=None)
    same = effect(ratio, [[samples(a), samples(1.5 * a)]])
    assert same.lacking == "" and (same.value, *same.interval()) == pytest.approx((1.0, 1.0, 1.0))


def test_noise_widens_both_ends_and_a_share_of_prompts_has_an_exact_interval() -> None:
    columns = np.random.default_rng(3).uniform((1, 6), (5, 10), (12, 2))
    plain, wide = (effect(replace(VALUE, noise=noise), [[samples(columns)]]).interval() for noise in (0.0, 0.1))
    assert wide == pytest.approx((plain[0] - 0.1, plain[1] + 0.1))
    routed = replace(VALUE, statistic="routing")
    low, high = effect(routed, [[samples([[1, 1]] * 20)]]).interval()
    assert (low, high) == pytest.approx((0.025 ** (1 / 20), 1.0))


def test_the_interval_of_a_ratio_of_two_methods_covers_on_recorded_prompts(reference: list[Replication]) -> None:
    """Samples of 20 of the four methods' 60 committed prompts hold the ratio over all 60."""
    made = next(one for one in reference if one.experiment.name == "ssd_bench_population")
    by_method = {cell["method"]: take_sample([cell], "speedup", {}) for cell in made.recorded_cells()}
    a, b = (by_method[name] for name in ("adaptive", "KnapSpec"))
    assert isinstance(a, StatisticSample) and isinstance(b, StatisticSample) and set(a.prompts) == set(b.prompts)
    claim = replace(VALUE, statistic="M", effect="ratio", over={"method": ["x"]}, none=None)
    truth, rng, held, rounds = a.value() / b.value(), np.random.default_rng(0), 0, 300
    for _ in range(rounds):
        chosen = np.isin(a.prompts, rng.choice(a.prompts, 20, replace=False))
        parts = [
            StatisticSample(one.prompts[keep], one.columns[keep], one.formula)
            for one, keep in ((a, chosen), (b, np.isin(b.prompts, a.prompts[chosen])))
        ]
        low, high = effect(claim, [parts]).interval()
        held += low <= truth <= high
    assert held / rounds >= 0.93


@pytest.mark.parametrize(
    ("started", "claim_written", "after"),
    [
        ("2026-11-25T00:00:00+00:00", None, True),  # after the claim, and before the rule
        ("2027-01-01T12:00:00+00:00", None, False),
        ("2027-01-01T12:00:00+00:00", "2027-01-02T00:00:00+00:00", True),
    ],
)
def test_a_verdict_says_if_its_claim_or_rule_was_written_after_the_runs(
    started: str, claim_written: str | None, after: bool, tmp_path: Path
) -> None:
    claim = named("swift/more_candidates_help")
    assert claim.written < "2026-11-25" < RULE_WRITTEN < "2027"
    for name, accept in (("own", 0.8), ("uniform", 0.3)):
        make(tmp_path, name, accept, prompts=8, provenance={"started_at": started})
    found = verdict_of(tmp_path, claim=replace(claim, written=claim_written or claim.written))
    row = verdicts.table([found]).iloc[0]
    assert found.after_runs == row["after_runs"] == after
    assert (verdict_texts.AFTER_RUNS in verdict_texts.evidence_text(claim, row)) == after


def test_the_first_screen_says_what_the_records_are(reference: list[Replication]) -> None:
    assert "this project trained" in describe_records(reference, 7)
    assert "miniature, 2.9 million parameters" in describe_records(reference, 7)
    assert describe_records([], 0).startswith("There are no runs")
