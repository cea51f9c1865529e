"""Each number against its definition: by hand, brute force, and identities between them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from scipy import stats

from ssd_bench.cost.tpt import tpt
from ssd_bench.records.reader import Run
from ssd_bench.results.definitions import alpha_macro, expected_speedup, predicted_tpt
from ssd_bench.results.digest import conditions, summarise
from ssd_bench.results.numbers import domain_numbers
from ssd_bench.results.prompt_table import PromptTable, of_steps
from ssd_bench.results.quality import output_rouge2, pass_at, same_token_share
from ssd_bench.results.quantity import QUANTITIES, Measured, ratio
from ssd_bench.results.rows import arm_rows, paired_rows
from tests.synthetic import N_LAYERS, unit, with_hf, write_run


def steps_of(drafts: Sequence[tuple[int, int]], prompt_index: int = 0) -> pd.DataFrame:
    """Full steps of (k, m): each emits its m accepted tokens and the bonus."""
    frame = pd.DataFrame(drafts, columns=["draft_len", "accepted_len"])
    return frame.assign(emitted=frame["accepted_len"] + 1, prompt_index=prompt_index, repeat=0, turn=0, arm="method")


def prompts_of(rows: Sequence[tuple[int, float, int, float]], repeat: int = 0) -> pd.DataFrame:
    """One pair per row of (AR tokens, AR ms, method tokens, method ms); a prefill of 10 ms gives one token more."""
    made: list[dict[str, Any]] = []
    for i, (ar_tokens, ar_ms, method_tokens, method_ms) in enumerate(rows):
        for arm, tokens, spent in (("ar", ar_tokens, ar_ms), ("method", method_tokens, method_ms)):
            row: dict[str, Any] = {"prompt_index": i, "repeat": repeat, "turn": 0, "arm": arm, "new_tokens": tokens + 1}
            made.append(row | {"decode_ms": float(spent), "prefill_ms": 10.0})
    return pd.DataFrame(made)


DRAFTS = st.lists(st.integers(0, 6).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k))), min_size=1)
FEWER = settings(max_examples=25, deadline=None)

PAIRS = st.lists(
    st.tuples(st.integers(5, 99), st.floats(50, 500), st.integers(5, 99), st.floats(50, 500)), min_size=1, max_size=12
)


@FEWER
@given(DRAFTS)
def test_acceptance_identities(drafts: list[tuple[int, int]]) -> None:
    steps = steps_of(drafts)
    m, alpha, k = of_steps("M", steps), of_steps("alpha", steps), of_steps("mean_draft_len", steps)
    assert m == pytest.approx(1 + (alpha or 0) * k)
    assert (alpha is None) == (k == 0)
    conditional = of_steps("hazard", steps)
    if alpha is not None and conditional is not None:
        assert alpha <= conditional + 1e-12 <= 1 + 1e-12
        assert alpha_macro(steps) == pytest.approx(alpha)  # one prompt


def test_acceptance_by_hand() -> None:
    steps = pd.concat([steps_of([(4, 2), (3, 3)]), steps_of([(2, 0)], prompt_index=1), steps_of([(0, 0)], 2)])
    assert of_steps("M", steps) == (3 + 4 + 1 + 1) / 4
    assert of_steps("alpha", steps) == 5 / 9
    assert alpha_macro(steps) == (5 / 7 + 0) / 2
    assert of_steps("hazard", steps) == 5 / (3 + 3 + 1)
    assert of_steps("mean_draft_len", steps) == 9 / 4
    answers = {"prompt_index": [0, 1, 2], "repeat": 0, "turn": 0, "arm": "method", "new_tokens": [8, 2, 2]}
    assert PromptTable(pd.DataFrame(answers), steps.assign(turn=0, arm="method")).value("M_call") == 12 / (4 + 3)


def test_speed_by_hand() -> None:
    prompts = prompts_of([(10, 100, 10, 50), (20, 400, 30, 200)])
    for name, value in {
        "ar_tokens_per_s": 1000 * 30 / 500,
        "method_tokens_per_s_e2e": 1000 * 42 / 270,
        "speedup": (40 / 250) / (30 / 500),
        "speedup_e2e": (42 / 270) / (32 / 520),
        "speedup_mean": (2 + 3) / 2,
        "speedup_rates": (10 / 50 + 30 / 200) / (10 / 100 + 20 / 400),
        "speedup_rates_e2e": (11 / 60 + 31 / 210) / (11 / 110 + 21 / 410),
        "speedup_wall": (110 + 410) / (60 + 210),
        "speedup_matched": 2,
    }.items():
        assert PromptTable(prompts).value(name) == pytest.approx(value), name
    assert PromptTable(prompts).number("speedup_matched").n == 1
    nothing = pd.concat([prompts, prompts_of([(0, 0, 0, 0)]).assign(prompt_index=2)])  # an EOS in the prefill
    assert PromptTable(nothing).number("speedup_rates") == PromptTable(prompts).number("speedup_rates")
    assert PromptTable(nothing).number("speedup_rates_e2e").n == 3


def test_an_interval_is_a_jackknifes_on_the_logarithm() -> None:
    rng = np.random.default_rng(3)
    prompts = prompts_of([(10, float(rng.uniform(90, 110)), 12, float(rng.uniform(40, 60))) for _ in range(15)])
    rates = {
        arm: PromptTable(prompts).frame(QUANTITIES[f"{arm}_tokens_per_s"]).eval("tokens / ms")
        for arm in ("method", "ar")
    }
    others = [rates["method"].drop(i).mean() / rates["ar"].drop(i).mean() for i in range(15)]
    reach = stats.t.ppf(0.975, 14) * np.sqrt(14) * np.std(np.log(others), ddof=1)
    value = rates["method"].mean() / rates["ar"].mean()
    expected = value, value * np.exp(-reach), value * np.exp(reach)
    assert PromptTable(prompts).number("speedup_rates") == Measured(*map(pytest.approx, expected), 15)


def test_speedups_over_a_third_arm_are_those_over_ar_with_its_times() -> None:
    rows = [(10, 100.0, 10, 50.0), (20, 400.0, 30, 200.0), (15, 200.0, 15, 90.0)]
    prompts = prompts_of(rows)
    slower = [(tokens - 2, 3 * ms, *method) for tokens, ms, *method in rows]
    hf = arm_rows(prompts_of(slower), "ar").assign(arm="hf")
    three, two = pd.concat([prompts, hf.iloc[:2]]), prompts_of(slower[:2])
    both, plain, slow = PromptTable(three), PromptTable(prompts), PromptTable(two)
    for name in ("speedup", "speedup_e2e", "speedup_mean", "speedup_rates", "speedup_rates_e2e", "speedup_wall"):
        assert both.number(name) == plain.number(name)  # AR and the method are as they were
        # on the prompts that both have
        assert both.number(name.replace("speedup", "speedup_hf")) == slow.number(name)


def test_answers_are_paired_in_any_order_and_the_first_of_two_counts() -> None:
    prompts = prompts_of([(10, 100.0, 10, 50.0), (20, 400.0, 30, 200.0), (15, 200.0, 15, 90.0)])
    again = prompts.iloc[[0]].assign(decode_ms=1.0)  # a damaged record has an answer twice
    mixed = pd.concat([prompts.iloc[::-1], again], ignore_index=True)
    assert PromptTable(mixed).number("speedup") == PromptTable(prompts).number("speedup")
    assert paired_rows(mixed)["decode_ms"].tolist() == prompts["decode_ms"].tolist()[::-1]


def test_only_pairs_count_and_repeats_stay_with_their_prompt() -> None:
    rows = [(10, 100.0, 10, 50.0), (10, 100.0, 12, 80.0), (10, 110.0, 11, 70.0)]
    once, twice = prompts_of(rows), pd.concat([prompts_of(rows), prompts_of(rows, repeat=1)])
    single, double = PromptTable(once).number("speedup"), PromptTable(twice).number("speedup")
    # no new prompts, no new certainty
    assert (single.low, single.high, single.n) == (double.low, double.high, double.n)
    alone = prompts_of([*rows, (10, 1.0, 10, 1.0)]).iloc[:-1]
    assert PromptTable(alone).number("speedup") == single


@settings(max_examples=12, deadline=None)
@given(PAIRS)
def test_an_interval_contains_its_estimate_or_is_absent(rows: list[tuple[int, float, int, float]]) -> None:
    prompts = prompts_of(rows)
    for name in ("speedup", "speedup_mean", "method_tokens_per_s"):
        measured = PromptTable(prompts).number(name)
        assert math.isfinite(measured.value or math.nan) and measured.n == len(rows)
        assert (measured.low is None) == (measured.high is None) and (len(rows) > 1 or measured.low is None)
        if measured.low is not None:
            assert measured.low <= measured.value <= measured.high
    swapped = prompts.assign(arm=prompts["arm"].map({"ar": "method", "method": "ar"}))
    forth, back = PromptTable(prompts).number("speedup"), PromptTable(swapped).number("speedup")
    assert back.value == pytest.approx(1 / (forth.value or math.nan))
    if forth.low is not None and back.high is not None:
        assert back.high == pytest.approx(1 / forth.low)


def test_an_interval_is_absent_where_prompts_agree_and_a_shares_ends_at_one() -> None:
    same = PromptTable(prompts_of([(10, 100, 10, 50)] * 5)).number("speedup")
    assert (same.value, same.low, same.high, same.n) == (2, None, None, 5)
    assert PromptTable(prompts_of([(10, 100, 10, 50)])[:0]).value("speedup") is None
    one = ratio(np.array([0.0, 0.0, 3.0]), np.array([9.0, 9.0, 9.0]))  # without the third there is none
    assert (one.value, one.low, one.high) == (pytest.approx(1 / 9), None, None)
    share = ratio(np.array([100.0, 99.0, 70.0]), np.full(3, 100.0), at_most=1.0)
    assert share.high == 1.0 and share.low is not None and share.low < 0.8


@pytest.mark.parametrize("n", [4, 8, 20])
def test_intervals_cover_what_they_say(n: int) -> None:
    """Speedups of prompts that differ in length, time per token and gain."""
    rng = np.random.default_rng(1)
    tokens, slow, gain = (rng.lognormal(mean, spread, (400, n)) for mean, spread in ((6, 0.3), (0, 0.1), (0.3, 0.2)))
    truth = math.exp(0.3 - 0.2**2 / 2)  # of the population, in which these do not depend on each other
    found = [QUANTITIES["speedup"].measure(t, t * s / g, t, t * s) for t, s, g in zip(tokens, slow, gain)]
    covered = sum(m.low is not None and m.high is not None and m.low <= truth <= m.high for m in found)
    assert 0.93 <= covered / 400 <= 0.975


@given(st.floats(0, 1), st.integers(0, 12))
def test_tpt_is_the_sum_that_eq_4_abbreviates(alpha: float, draft_len: int) -> None:
    expected = 1000 * sum(alpha**i for i in range(draft_len + 1)) / (draft_len * 3 + 10)
    assert tpt(alpha, draft_len, 3, 10) == pytest.approx(expected, rel=1e-9)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 20))
def test_tpt_grows_with_alpha_and_takes_real_lengths(a: float, b: float, draft_len: float) -> None:
    low, high = (tpt(alpha, draft_len, 3, 10) for alpha in sorted((a, b)))
    assert low <= high * (1 + 1e-9)
    assert tpt(1, draft_len, 3, 10) == pytest.approx(1000 * (draft_len + 1) / (draft_len * 3 + 10))
    assert tpt(1 - 1e-15, draft_len, 3, 10) == pytest.approx(tpt(1, draft_len, 3, 10))
    assert tpt(a, 0, 3, 10) == pytest.approx(100)  # nothing drafted: plain decoding


def test_expected_speedup_is_m_over_the_cost_of_a_cycle() -> None:
    drafts, skip = [(4, 2), (3, 3), (2, 0)], 0.4
    steps = steps_of(drafts)
    m, alpha = of_steps("M", steps), of_steps("alpha", steps)
    cycle = 1 + (1 - skip) * 9 / 3  # one verification and three drafted tokens per pass
    assert expected_speedup(m, alpha, skip) == pytest.approx(m / cycle)
    assert expected_speedup(1.0, 0.0, 0.4) is None
    assert expected_speedup(m, None, skip) is None


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_run(tmp_path_factory.mktemp("metrics") / "run", [unit(i, r) for r in range(2) for i in range(24)])


def test_predicted_tpt_by_brute_force(run: Run) -> None:
    steps = run.steps[run.steps["arm"] == "method"]
    t_attn = 0.001 * steps["context_len"].mean() + 0.4
    costs: list[float] = []
    for _, step in steps.iterrows():
        if step["draft_len"]:
            sets = run.layer_sets.iloc[step["layer_set_id"]]
            n_attn, n_mlp = N_LAYERS - len(sets["skip_attn"]), N_LAYERS - len(sets["skip_mlp"])
            costs += [n_attn * t_attn + n_mlp * 0.75] * step["draft_len"]
    tested = [min(step["draft_len"], step["accepted_len"] + 1) for _, step in steps.iterrows()]
    alpha, k = steps["accepted_len"].sum() / sum(tested), steps["draft_len"].mean()
    expected = tpt(alpha, k, float(np.mean(costs)), N_LAYERS * (t_attn + 0.75))
    assert predicted_tpt(run) == pytest.approx(expected)
    ar = arm_rows(run.steps, "ar")
    assert (of_steps("M", ar), of_steps("alpha", ar)) == (1, None)
    plain = 1000 / (N_LAYERS * (0.001 * ar["context_len"].mean() + 0.4 + 0.75))
    assert predicted_tpt(run, "ar") == pytest.approx(plain)
    assert predicted_tpt(replace(run, header=replace(run.header, latency=None))) is None
    assert PromptTable.of(run).value("skip_ratio") == pytest.approx(3 / (2 * N_LAYERS))
    assert [PromptTable.of(run).value(f"skipped_{kind}") for kind in ("attn", "mlp")] == pytest.approx([2, 1])


def test_summary_of_a_run(run: Run) -> None:
    summary = summarise(run).row
    method = run.steps[run.steps["arm"] == "method"]
    assert summary["M"] == pytest.approx(method["emitted"].sum() / len(method))
    assert summary["M_lo"] < summary["M"] < summary["M_hi"]
    assert summary["speedup_lo"] < summary["speedup"] < summary["speedup_hi"]
    assert summary["speedup"] == pytest.approx(summary["method_tokens_per_s"] / summary["ar_tokens_per_s"])
    assert summary["speedup_matched"] == pytest.approx(summary["speedup"])
    assert (summary["n_prompts"], summary["n_repeats"], summary["n_pairs"]) == (24, 2, 48)
    shares = [summary[f"{name}_share"] for name in ("draft", "verify", "policy", "other")]
    assert sum(shares) == pytest.approx(1)
    assert shares[3] == pytest.approx(1 - 1 / 1.02)
    assert summary["overhead"] == summary["policy_share"]
    assert (summary["lossless_identical"], summary["lossless_bug"], summary["finish_length"]) == (48, 0, 48)
    assert summary["tpt_estimated"] == 150
    assert summary["tpt_estimated_n"] == run.steps["est_alpha"].notna().sum()
    assert summary["method_score"] == 0.5
    assert summary["device"] == "Imaginary 9000"
    per_token = 1000 / summary["ar_tokens_per_s"] - 1000 / summary["method_tokens_per_s"]
    assert summary["break_even_tokens"] == pytest.approx(5000 / per_token)
    assert summary["warnings"] == []
    assert not any(isinstance(value, float) and math.isnan(value) for value in summary.values())


def test_summary_warns_of_what_cannot_be_or_weakens_a_claim(tmp_path: Path) -> None:
    bug: dict[str, Any] = {"lossless": "bug", "divergence_index": 7, "divergence_gap": 2.5, "clipped_tokens": 3}
    fast = write_run(tmp_path / "run", [unit(0, decode_ms=1.0), unit(1, decode_ms=1.2, **bug)])
    summary = summarise(fast).row
    text = "\n".join(summary["warnings"])
    for said in (
        *("exceeds M", "not lossless: outputs that differ from AR's beyond rounding: 1;", "toy-1, token 7"),
        *("few prompts: n = 2, fewer than 20", "some of them overlap"),
    ):
        assert said in text
    assert summary["clipped"] == 1
    where = {"prompt_id": "toy-1", "repeat": 0, "index": 7}
    assert summary["first_divergence"] == where | {"gap": 2.5, "lossless": "bug"}
    longer = unit(1)
    longer[1].prompt.new_tokens += 1
    text = "\n".join(summarise(write_run(tmp_path / "longer", [unit(0), longer])).warnings)
    assert "1 of 2 pairs of outputs differ in length" in text
    assert "do not add up" in text
    told = write_run(tmp_path / "told", [unit(0)], warnings=["a process was busy"])
    assert summarise(told).warnings[0] == "a process was busy"


def test_summary_without_a_baseline_or_without_layers(tmp_path: Path) -> None:
    alone = summarise(write_run(tmp_path / "alone", [unit(0)[1:], unit(1)[1:]])).row
    assert (alone["n_pairs"], alone["speedup"], alone["ar_tokens_per_s"]) == (0, None, None)
    assert alone["method_tokens_per_s"] > 0
    assert any("no baseline" in text for text in alone["warnings"])
    baseline = summarise(write_run(tmp_path / "baseline", [unit(0)[:1]])).row
    assert (baseline["M"], baseline["alpha"], baseline["skip_ratio"], baseline["tpt_predicted"]) == (None,) * 4


def test_summary_with_a_third_arm(tmp_path: Path) -> None:
    units = [with_hf(unit(i), slower=5.0) for i in range(20)]
    other = units[0][2].prompt
    other.output_ids = [*other.output_ids[:-1], other.output_ids[-1] + 1]
    run = write_run(tmp_path / "run", units, hf={"weight_bytes": 2**30})
    summary = summarise(run).row
    for way in ("", "_e2e", "_rates", "_rates_e2e", "_wall", "_mean"):
        assert summary[f"speedup_hf{way}"] == pytest.approx(5 * summary[f"speedup{way}"])
        assert summary[f"speedup_hf{way}_lo"] < summary[f"speedup_hf{way}"] < summary[f"speedup_hf{way}_hi"]
    assert (summary["ar_over_hf"], summary["ar_over_hf_e2e"]) == pytest.approx((5, 5))
    assert summary["hf_tokens_per_s"] == pytest.approx(summary["ar_tokens_per_s"] / 5)
    assert (summary["hf_output_exact"], summary["hf_weight_bytes"]) == (19 / 20, 2**30)
    assert summary["warnings"] == [
        "5.0% of Hugging Face's outputs differ from AR's, because of rounding or because of a fault"
    ]
    sampled = write_run(tmp_path / "sampled", units, decode={"mode": "sample"})
    assert summarise(sampled).row["hf_output_exact"] is None
    assert not {key for key in summarise(write_run(tmp_path / "pair", [unit(0)])).row if "hf" in key}


def test_comparable_runs_share_all_conditions_but_the_method(run: Run, tmp_path: Path) -> None:
    units = [unit(i) for i in range(24)]
    same = write_run(tmp_path / "same", units, method="swift", seed=1, decode={"reuse_prefix": True})
    assert conditions(run) == conditions(same)
    different: list[tuple[str, list[Any], dict[str, Any]]] = [
        ("prompts", units[1:], {}),
        ("model", units, {"model": {"dtype": "bfloat16"}}),
        ("hardware", units, {"provenance": {"device": {"cpu": "Other", "cores": 2, "gpus": []}}}),
        ("decode", units, {"decode": {"temperature": 1.0}}),
    ]
    for i, (what, chosen, changes) in enumerate(different):
        other = conditions(write_run(tmp_path / str(i), chosen, **changes))
        assert {key for key, value in conditions(run).items() if other[key] != value} == {what}


def answered(rows: Sequence[tuple[str, str, list[int], list[int]]]) -> pd.DataFrame:
    """One pair per row of AR's text, the method's, and their tokens."""
    made: list[dict[str, Any]] = []
    for i, (ar_text, text, ar_ids, ids) in enumerate(rows):
        keys = {"prompt_index": i, "repeat": 0, "turn": 0}
        made.append({**keys, "arm": "ar", "text": ar_text, "output_ids": ar_ids})
        made.append({**keys, "arm": "method", "text": text, "output_ids": ids})
    return pd.DataFrame(made)


def test_outputs_against_ar_are_rouge_2_and_equal_tokens() -> None:
    scorer = RougeScorer(["rouge2"], use_stemmer=True)
    ar, other = "the ferry left the harbour at noon", "the ferry left the port at noon"
    rows = answered([(ar, other, [1, 2], [1, 3]), ("yes", "yes", [4], [4]), ("", "no", [], [5])])
    expected = scorer.score(ar, other)["rouge2"].fmeasure
    assert 0 < expected < 1
    assert output_rouge2(rows) == pytest.approx((expected + 1 + 0) / 3)
    assert same_token_share(rows) == pytest.approx(1 / 3)
    alone = rows[rows["arm"] == "ar"]
    assert output_rouge2(alone) is same_token_share(alone) is None


@pytest.mark.parametrize("seed", range(5))
def test_pass_at_k_is_the_share_of_draws_of_k_that_hold_a_pass(seed: int) -> None:
    rng, n, k = np.random.default_rng(seed), 6, 3
    scores = rng.integers(0, 2, (4, n)).astype(float)
    rows = pd.DataFrame([{"prompt_index": i, "repeat": j, "score": scores[i, j]} for i in range(4) for j in range(n)])
    draws = list(itertools.combinations(range(n), k))
    brute = np.mean([[scores[i, list(draw)].any() for draw in draws] for i in range(4)])
    assert pass_at(rows, k) == pytest.approx(brute)
    assert pass_at(rows, 1) == pytest.approx(scores.mean())
    assert pass_at(rows, n + 1) is None


def test_each_domain_has_the_numbers_of_its_own_prompts(tmp_path: Path) -> None:
    run = write_run(tmp_path, [unit(i) for i in range(6)])
    assert domain_numbers(run) == []
    domains = run.prompts["prompt_index"].map(lambda i: "even" if i % 2 == 0 else "odd")
    mixed = replace(run, prompts=run.prompts.assign(domain=domains))
    rows = domain_numbers(mixed)
    assert [(row.domain, row.n_prompts) for row in rows] == [("even", 3), ("odd", 3)]
    for row in rows:
        own = mixed.prompts[mixed.prompts["domain"] == row.domain]
        for name in ("speedup", "speedup_rates_e2e"):
            assert row.numbers[name] == PromptTable(own).number(name)
        steps = arm_rows(mixed.steps[mixed.steps["prompt_index"].isin(own["prompt_index"])], "method")
        assert row.alpha.value == of_steps("alpha", steps)
