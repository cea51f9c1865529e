"""The verdicts' rule on planted records: where an earlier rule was wrong, and what the present one says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.papers.claims import judge
from ssd_bench.papers.claims.claims import Claim
from ssd_bench.papers.claims.judge import CANNOT_SAY, DEPENDS, EQUIVALENT, FAILS, HOLDS, Judgement
from ssd_bench.papers.ours.cells import replications
from ssd_bench.papers.runs import grid
from ssd_bench.report import verdict_texts, verdicts
from ssd_bench.results import folder as results_folder
from ssd_bench.results.definitions import main_set, skipped_shares
from ssd_bench.results.evidence import trace
from tests import synthetic
from tests.exhibit_runs import indexed
from tests.papers import claim_runs
from tests.papers.claim_runs import PLAIN, Units, by_label, effect, judged, named, samples, searched, timed

RATIO = Claim("p/c", "It.", "§1", (), "swift_table8", "speedup", "ratio", 0.0, at_least=1.05, over={"method": ["x"]})
write = partial(claim_runs.write, model=PLAIN)


def units(accept: float = 0.7, prompts: int = 10, start: int = 0, **options: Any) -> Units:
    """Prompts whose search chose their sets in their own first step."""
    return searched(
        [synthetic.unit(i, accept=accept, **options) for i in range(start, start + prompts)], lambda _: True
    )


def sharing(made: Units) -> Units:
    """Change records to one search, in the first prompt, for all prompts."""
    for step in (step for records in made[1:] for step in records[1].steps):
        step.est_alpha = None
    return made


def thinned(made: Units, **skipped: Iterable[int]) -> Units:
    """Let all drafts skip these sublayers."""
    for step in (step for records in made for step in records[1].steps if step.layer_set is not None):
        step.layer_set = LayerSet.skipping(synthetic.N_LAYERS, **skipped)
    return made


def growing_context(prompts: int = 10) -> Units:
    """The full model drafts below 30 tokens of context, then always the same set."""
    made = units(prompts=prompts)
    chosen = LayerSet.skipping(synthetic.N_LAYERS, attn=[1, 2], mlp=[3])
    for step in (step for records in made for step in records[1].steps if step.layer_set is not None):
        step.searched = step.context_len >= 30
        step.layer_set = chosen if step.searched else LayerSet.full(synthetic.N_LAYERS)
    return made


def test_steps_before_the_first_search_are_no_trend_of_the_searched_sets(tmp_path: Path) -> None:
    write(tmp_path, "run", growing_context())
    found = judged(tmp_path, "knapspec/attention_with_context", by_label("method", {"KnapSpec": "run"}))
    assert found.effect == 0.0 and found.verdict == FAILS
    run = found.cells[0].run
    assert set(skipped_shares(run)["attention"]) == {2 / synthetic.N_LAYERS}
    assert main_set(run) == LayerSet.skipping(synthetic.N_LAYERS, attn=[1, 2], mlp=[3])


def test_skipped_depth_and_its_distance_between_models(tmp_path: Path) -> None:
    for name, blocks in (("early", [0, 1]), ("late", [6, 7])):
        write(tmp_path, name, thinned(units(), attn=blocks), model=PLAIN | {"name": name})
    runs = by_label("model", {"Qwen3-8B": "early", "Llama3.1-8B": "late"})
    found = judged(tmp_path, "knapspec/profiles_differ", runs)
    assert found.effect == pytest.approx(6.5 / 7 - 0.5 / 7), found.reason
    assert found.verdict == HOLDS


def test_the_speedup_of_steps_compares_equal_contexts(tmp_path: Path) -> None:
    """Steps at long contexts take twice as long in both arms: the speedup does not change."""
    made = units(0.8, prompts=12, tokens=560)
    for step in (step for records in made for record in records for step in record.steps):
        for name in ("draft_ms", "verify_ms", "policy_ms"):
            setattr(step, name, getattr(step, name) * (2 if step.context_len > 300 else 1))
    write(tmp_path, "run", made)
    found = judged(tmp_path, "knapspec/steady_with_context", by_label("method", {"KnapSpec": "run"}))
    assert found.effect == pytest.approx(1, abs=0.05) and found.verdict != FAILS


def looping(made: Units, prompts: Iterable[int]) -> Units:
    """Change the answers to some prompts to loops of one token."""
    for i in prompts:
        for record in made[i]:
            record.prompt.output_ids = [7] * len(record.prompt.output_ids)
    return made


@pytest.mark.parametrize(("loops", "verdict"), [(0, FAILS), (4, FAILS), (12, CANNOT_SAY)])
def test_looping_answers_decide_nothing(loops: int, verdict: str, tmp_path: Path) -> None:
    """Looping prompts are accepted almost always; without them the method is slow."""
    made = units(0.95, prompts=loops) + units(0.1, prompts=16 - loops, start=loops)
    write(tmp_path, "run", looping(made, range(loops)))
    found = judged(tmp_path, "swift/faster_on_code", by_label("setting", {"pass@1": "run"}))
    assert found.verdict == verdict and found.loops == loops
    if verdict == CANNOT_SAY:
        assert "answers to 12 of 16 prompts loop; 8 prompts without a loop are required" in found.reason
    else:
        assert found.n == 16 - loops and found.effect is not None and found.effect < 1
    row = verdicts.table([found]).iloc[0]
    left_out = f"{loops} prompts with looping answers left out"
    assert (left_out in verdict_texts.evidence_text(found.claim, row)) == bool(loops)


def in_seeds(folder: Path, seeds: int, runs: Callable[[int], dict[str, Units]], claim: Claim, axis: str) -> Judgement:
    """Judge a claim by runs with several seeds, each in its own folder; those already there stay."""
    for seed in (seed for seed in range(seeds) if not (folder / f"{seed}").is_dir()):
        made = runs(seed).items()
        names = {label: write(folder / f"{seed}", f"{i}-{seed}", units) for i, (label, units) in enumerate(made)}
        options = [f"seed={seed}"] if seed else []
        run = by_label(axis, names)
        indexed(folder / f"{seed}", claim.exhibit, "mini", run, own_traces=False, options=options)
    results_folder.prepare_records(run_records := results_folder.records(folder))
    (replication,) = replications(folder, run_records)
    assert len(replication.repeats) == seeds - 1
    return judge.judge_claim(claim, replication)


def gains(seed: int) -> dict[str, Units]:
    """A search that finds a good set with most seeds."""
    accept = (0.8, 0.75, 0.85, 0.8, 0.78, 0.82)[seed]
    return {"gamma=32": sharing(units(accept, prompts=12)), "gamma=16": sharing(units(0.3, prompts=12))}


def test_the_sample_of_a_shared_search_is_seeds(tmp_path: Path) -> None:
    claim = replace(named("swift/window_of_32"), needs={})
    for seeds, verdict, has_interval, reason in (
        (1, CANNOT_SAY, False, "one search; 5 seeds are required"),
        (4, CANNOT_SAY, True, "the layer sets of 4 searches"),
        (5, HOLDS, True, ""),
    ):
        found = in_seeds(tmp_path, seeds, gains, claim, "setting")
        assert (found.verdict, found.n, found.by_seed) == (verdict, seeds, True)
        assert (found.low is not None) == has_interval and reason in found.reason
        assert f"n = {seeds} seed" in verdict_texts.evidence_text(claim, verdicts.table([found]).iloc[0])


def test_an_interval_over_searches_is_as_wide_as_they_differ() -> None:
    """Sixty prompts agree to the last digit, five searches do not: over prompts alone the effect would be certain."""
    ratios = (1.3, 1.1, 0.9, 1.2, 1.05)
    pairs = [[samples([[ratio, 1]] * 60), samples([[1, 1]] * 60)] for ratio in ratios]
    found = effect(RATIO, pairs, modelled=True, by_seed=True)
    logs = np.log(ratios)
    half = 2.776445 * logs.std(ddof=1) / np.sqrt(5)  # Student's t with 4 degrees of freedom
    assert found.n == 5 and found.value == pytest.approx(np.exp(logs.mean()))
    assert found.interval() == pytest.approx((np.exp(logs.mean() - half), np.exp(logs.mean() + half)), rel=1e-5)
    over_prompts = effect(RATIO, pairs[:1], modelled=True)
    assert over_prompts.n == 60 and over_prompts.interval() == pytest.approx((1.3, 1.3))


def test_a_run_without_a_search_stands_for_all_seeds(tmp_path: Path) -> None:
    """LayerSkip's fixed exit needs no further seeds next to SWIFT's searches."""
    fixed = searched([synthetic.unit(i, accept=0.5) for i in range(12)], lambda _: False)
    for step in (step for records in fixed for step in records[1].steps):
        step.searched, step.est_alpha = None, None

    def runs(seed: int) -> dict[str, Units]:
        return {"SWIFT": gains(seed)["gamma=32"]} | ({"LayerSkip": fixed} if not seed else {})

    found = in_seeds(tmp_path, 5, runs, named("swift/near_layerskip"), "method")
    assert (found.verdict, found.n) == (HOLDS, 5)


def test_a_search_that_the_scale_cut_short_has_no_time(tmp_path: Path) -> None:
    searches = [{"name": "s", "evaluations": 100, "new": 100, "seconds": 1000.0}]
    write(tmp_path, "offline", units(0.5), searches=searches)
    write(tmp_path, "online", sharing(units(0.6)))
    runs = {"Self-SD": "offline", "SWIFT": "online"}
    claim = replace(named("swift/search_is_shorter"), needs={"sets": 1})
    for options, cut in (((), False), (("method.search.iterations=100",), True)):
        found = judged(tmp_path, claim, by_label("method", runs), options)
        assert found.verdict == CANNOT_SAY
        assert ("the scale cut the search of CNN/DM, " in found.reason) == cut
        assert cut or "5 seeds are required" in found.reason


def test_the_order_of_prompts_is_no_trace_of_its_own(tmp_path: Path) -> None:
    """A method without memory drafts the same in every order, so an effect of order is a tautology."""
    made = [synthetic.unit(i) for i in range(8)]
    mixed = [synthetic.unit(i) for i in (3, 7, 1, 0, 6, 2, 5, 4)]
    for position, records in enumerate(mixed):
        for record in records:
            record.prompt.prompt_index = position
            for step in record.steps:
                step.prompt_index = position
    runs = [synthetic.write_run(tmp_path / name, one) for name, one in (("ordered", made), ("mixed", mixed))]
    assert trace(runs[0]) == trace(runs[1])
    another = synthetic.write_run(tmp_path / "another", [synthetic.unit(i, accept=0.6) for i in range(8)])
    assert trace(another) != trace(runs[0])


def test_equal_traces_count_once_and_do_not_compare(tmp_path: Path) -> None:
    for name in ("0.0", "1.0"):
        write(tmp_path, name, timed(units(0.9), 1.0 + float(name)))

    def run(job: grid.Job) -> str | None:
        ratio = job.labels["setting"].removeprefix("mix_ratio=")
        return ratio if job.labels["method"] == "KNN-SSD" and ratio in ("0.0", "1.0") else None

    mixing = judged(tmp_path, "knn-ssd/stable_under_mixing", run)
    assert mixing.verdict == CANNOT_SAY and "duplicates the trace of KNN-SSD, mix_ratio=0.0" in mixing.reason
    faster = judged(tmp_path, "knn-ssd/faster_than_ar", run)
    assert (faster.comparisons, faster.n) == (1, 10) and faster.effect is not None


def test_a_verdict_needs_the_whole_interval_on_one_side() -> None:
    at_most = replace(RATIO, at_least=None, at_most=1.05)
    for claim, verdicts_by_interval in (
        (RATIO, {(1.06, 1.2): HOLDS, (1.01, 1.2): CANNOT_SAY, (0.9, 1.04): FAILS}),
        (at_most, {(1.06, 1.2): FAILS, (1.01, 1.2): CANNOT_SAY, (0.9, 1.04): HOLDS}),
        # at least 0.95: a loss that is small
        (named("conflayers/transfers"), {(0.96, 1.01): HOLDS, (0.94, 1.0): CANNOT_SAY, (0.85, 0.94): FAILS}),
        # a margin of 3 % around no effect
        (named("swift/search_beats_uniform"), {(0.98, 1.02): EQUIVALENT, (1.001, 1.02): EQUIVALENT}),
        (named("swift/search_beats_uniform"), {(1.06, 1.2): HOLDS, (0.98, 1.06): CANNOT_SAY, (0.96, 1.02): FAILS}),
    ):
        for interval, verdict in verdicts_by_interval.items():
            assert judge._verdict(claim, interval, interval) == verdict, (claim.id, interval)


def test_consistently_faster_is_tested_on_every_task(tmp_path: Path) -> None:
    for name, accept in (("fast", 0.95), ("slow", 0.3)):
        write(tmp_path, name, synthetic.thin(units(accept, prompts=20)))
    claim = named("swift/faster_than_ar")
    assert claim.every and named("knapspec/fastest").every
    tasks = {"CNN/DM": "fast", "GSM8K": "fast", "TinyStories": "slow"}

    def run(job: grid.Job) -> str | None:
        return tasks[job.labels["task"]] if job.labels["method"] == "SWIFT" else None

    worst, mean = (judged(tmp_path, replace(claim, every=every), run) for every in (True, False))
    assert worst.verdict == FAILS
    assert mean.effect is not None and worst.effect is not None and mean.effect > 1.1 > worst.effect


def counted(folder: Path, factor: float, **changes: Any) -> Judgement:
    """Judge by a real model's record with counted work; its measured times are multiplied."""
    made = thinned(timed(units(0.97, prompts=20), factor), attn=range(7), mlp=range(7))
    write(folder, "run", made, **{"model": {"name": "real"}} | changes)
    return judged(folder, "swift/faster_on_code", by_label("setting", {"pass@1": "run"}))


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Judgement:
    """A claim that holds on a real model."""
    return counted(tmp_path_factory.mktemp("fast"), 0.5)


@pytest.mark.parametrize(
    ("factor", "changes", "verdict"),
    [(4.0, {}, DEPENDS), (4.0, {"model": PLAIN}, HOLDS), (0.5, {"others_share": 0.5}, CANNOT_SAY)],
)
def test_on_a_real_model_both_times_must_agree(
    factor: float, changes: dict[str, Any], verdict: str, tmp_path: Path, fast: Judgement
) -> None:
    assert fast.verdict == HOLDS
    found = counted(tmp_path, factor, **changes)
    assert found.verdict == verdict, (found.effect, found.low, found.high, found.reason)
    if verdict == DEPENDS:
        assert found.reason == "holds by modelled times, fails by the times measured here"
        frame = verdicts.table([found])
        assert "measured here: " in verdict_texts.times_text(found.claim, frame.iloc[0])
        assert verdict_texts.undecided_claims(frame) == 0
        assert verdict_texts.verdict_counts(frame) == "1 depends on the machine"
    if verdict == CANNOT_SAY:
        assert found.reason.startswith("holds by modelled times; the times measured here decide nothing: ")


def test_scales_of_one_model_have_columns_of_their_own(fast: Judgement) -> None:
    frame = verdicts.table([fast, replace(fast, scale="long", verdict=CANNOT_SAY, reason="it loops")])
    assert verdict_texts.class_counts(frame) == {
        "the paper's model": "no runs",
        "another real model, real, size not recorded, scale mini": "1 holds",
        "another real model, real, size not recorded, scale long": "1 cannot say",
        "toy model": "no runs",
    }
    assert len(verdicts.merge_verdicts(frame.iloc[:1], frame)) == 2


def test_a_verdict_from_a_file_says_that_its_records_are_missing(fast: Judgement, tmp_path: Path) -> None:
    frame = verdicts.table([fast])
    assert "records are not" not in verdict_texts.evidence_text(fast.claim, frame.iloc[0])
    (tmp_path / "verdicts").mkdir()
    frame.to_csv(tmp_path / "verdicts" / "file.csv", index=False)
    row = verdicts.read_verdicts(tmp_path).iloc[0]
    assert verdict_texts.evidence_text(fast.claim, row).endswith("the records are not in the folder of runs")


def test_the_number_of_verdicts_that_chance_makes_wrong_is_said(fast: Judgement) -> None:
    frame = verdicts.table([fast] * 40 + [replace(fast, verdict=CANNOT_SAY, reason="r")])
    expected = (
        "40 verdicts follow from an interval, other decided ones count mismatches. Each interval is wrong in at most "
        "2.5 % of samples, so up to 1.0 of them"
    )
    assert verdict_texts.expected_errors(frame).startswith(expected)
    assert expected in verdict_texts.document(frame)
