"""Summaries of a run and of its domains, computed from the tables, without warnings and run-to-run variation."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ssd_bench.records.reader import Run
from ssd_bench.records.schema import PAIR
from ssd_bench.results import definitions as d
from ssd_bench.results import quality as q
from ssd_bench.results.evidence import Steadiness, searched_share
from ssd_bench.results.intervals import Measured, divide
from ssd_bench.results.modelled import modelled_numbers
from ssd_bench.results.repetition import repetition, speedup_without_loops
from ssd_bench.results.speed import TIMES, Pairs, arm_rows, tokens_per_s
from ssd_bench.results.summary import DomainOverHF, DomainSummary, HFSummary, Quality, Summary

OVER_HF = ("hf", "method")
"""Arms of a speedup over Hugging Face's `generate`: divisor, dividend."""


def run_numbers(run: Run) -> Summary:
    """Return the summary of a run."""
    return Summary(
        **_identity(run),
        **_acceptance(run),
        **_speed(run),
        modelled=modelled_numbers(run),
        hf=_third_arm(run),
        **_cost(run),
        **_quality(run),
        searched_share=searched_share(run),
        steadiness=Steadiness.of(run),
    )


def _identity(run: Run) -> dict[str, Any]:
    """Return the numbers that say what was run, and on how many prompts, repeats and pairs of answers."""
    header = run.header
    return {
        "run_id": header.run_id,
        "run_dir": str(run.path),
        "task": header.task.name,
        "metric": header.task.metric,
        "model": header.model.name,
        "toy": header.model.toy,
        "dtype": header.model.dtype,
        "device": header.device_name,
        "method": header.method,
        "seed": header.seed,
        "n_prompts": int(run.prompts["prompt_index"].nunique()),
        "n_repeats": int(run.prompts["repeat"].nunique()),
        "n_pairs": len(Pairs.of(run.prompts)),
    }


def _acceptance(run: Run) -> dict[str, Any]:
    prompts, steps = d.answers_of(run), d.steps_of(run)
    m, m_call, acceptance = d.mean_acceptance_length(steps), d.tokens_per_call(prompts, steps), d.alpha(steps)
    tpt_estimate, n_search_events = d.estimated_tpt(steps)
    skipped_attn, skipped_mlp = d.skipped_sublayers(run)
    # E(speedup) counts all drafted tokens, so its r includes tokens that no layers drafted; skip_ratio leaves them out
    skip_of_all = d.skip_ratio_of_all(run)
    return {
        "M": m,
        "M_call": m_call,
        "alpha": acceptance,
        "alpha_macro": d.alpha_macro(steps),
        "alpha_conditional": d.alpha_conditional(steps),
        "mean_draft_len": d.mean_draft_len(steps),
        "skip_ratio": d.skip_ratio(run),
        "skipped_attn": skipped_attn,
        "skipped_mlp": skipped_mlp,
        "expected_speedup": d.expected_speedup(m.value, acceptance.value, skip_of_all),
        "expected_speedup_call": d.expected_speedup(m_call, acceptance.value, skip_of_all),
        "tpt_predicted": d.predicted_tpt(run),
        "tpt_predicted_ar": d.predicted_tpt(run, "ar"),
        "tpt_estimated": tpt_estimate,
        "tpt_estimated_n": n_search_events,
    }


def _speed(run: Run) -> dict[str, Any]:
    """Return tokens per second of AR and the method, and the speedups between them."""
    pairs = Pairs.of(run.prompts)
    return {
        **_rates(run, "ar"),
        **_rates(run, "method"),
        **_speedups(pairs, "speedup"),
        "speedup_matched": pairs.matched.speedup(),
        "speedup_without_loops": speedup_without_loops(run.prompts),
    }


def _rates(run: Run, arm: str) -> dict[str, Any]:
    """Return the tokens per second of an arm, decoding alone and end to end, and the mean time of a prefill."""
    rows = d.answers_of(run, arm)
    return {
        f"{arm}_tokens_per_s": tokens_per_s(rows),
        f"{arm}_tokens_per_s_e2e": tokens_per_s(rows, end_to_end=True),
        f"{arm}_prefill_ms": divide(*rows["prefill_ms"].agg(["sum", "count"])),
    }


def _speedups(pairs: Pairs, name: str) -> dict[str, Any]:
    """Return the speedup of one arm over another by every statistic that a paper uses (`counts` in its paper.yaml).

    Args:
        name: name of the speedup, with which all names begin.
    """
    return {
        name: pairs.speedup(),
        f"{name}_e2e": pairs.speedup(end_to_end=True),
        f"{name}_mean": pairs.speedup_mean(),
        f"{name}_rates": pairs.speedup_rates(),
        **_domain_speedups(pairs, name),
    }


def _domain_speedups(pairs: Pairs, name: str) -> dict[str, Measured]:
    """Return those of the speedups in `_speedups` that papers also report by domain."""
    return {
        f"{name}_rates_e2e": pairs.speedup_rates(end_to_end=True),
        f"{name}_wall": pairs.speedup_wall(),
    }


def _third_arm(run: Run) -> HFSummary | None:
    """Return the numbers of the Hugging Face arm; None without this arm."""
    if "hf" not in set(run.prompts["arm"]):
        return None
    ar_over_hf = Pairs.of(run.prompts, ("hf", "ar"))
    return HFSummary(
        **_rates(run, "hf"),
        **_speedups(Pairs.of(run.prompts, OVER_HF), "speedup_hf"),
        ar_over_hf=ar_over_hf.speedup(),
        ar_over_hf_e2e=ar_over_hf.speedup(end_to_end=True),
        # sampled outputs of two implementations differ even if both are right
        hf_output_exact=q.same_token_share(run.prompts, ("ar", "hf")) if run.header.decode.greedy else None,
        hf_weight_bytes=run.header.hf.get("weight_bytes"),
    )


def _cost(run: Run) -> dict[str, Any]:
    """Return where the method spends its time and memory, and when an offline search has paid for itself."""
    method = d.answers_of(run)
    shares = d.decode_time_shares(method)
    rates = [tokens_per_s(d.answers_of(run, arm)).value for arm in PAIR]
    prepare_ms = run.header.prepare_ms
    return {
        "overhead": shares["policy"],
        **{f"{name}_share": share for name, share in shares.items()},
        "prepare_ms": prepare_ms,
        "break_even_tokens": d.break_even_tokens(prepare_ms, *rates),
        "peak_bytes": int(method["peak_bytes"].max()) if len(method) else None,
    }


def _quality(run: Run) -> dict[str, Any]:
    """Return losslessness, reasons for the ends of outputs, number of truncated prompts, scores and repetition."""
    prompts = run.prompts
    method, lossless = d.answers_of(run), q.lossless_counts(prompts)
    ends = {f"finish_{end}": int((method["finish_reason"] == end).sum()) for end in ("eos", "length", "context")}
    arms, task_scores = dict.fromkeys(prompts["arm"]), _task_scores(run)
    return {
        **{f"lossless_{key}": lossless[key] for key in ("identical", "tie", "bug", "unchecked")},
        "first_divergence": lossless["first"],
        **ends,
        "clipped": int(prompts[prompts["clipped_tokens"] > 0]["prompt_index"].nunique()),
        "quality": _scores(prompts),
        "repetition": {f"{arm}_repetition": repetition(d.answers_of(run, arm)) for arm in arms},
        "scores": sorted({name.partition("_")[2] for name in task_scores}),
        "task_scores": task_scores,
    }


def _scores(prompts: pd.DataFrame) -> Quality:
    method = arm_rows(prompts, "method")
    counts: dict[str, Any] = {**q.score_counts(method), **q.agreement(prompts)}
    return Quality(q.mean_score(arm_rows(prompts, "ar")), q.mean_score(method), **counts)


def _task_scores(run: Run) -> dict[str, float]:
    """Return the task's scores over all answers of an arm as `ARM_NAME`, and pass@k for each k with enough repeats."""
    by_arm = run.header.scores
    scores = {f"{arm}_{name}": value for arm, arm_scores in by_arm.items() for name, value in arm_scores.items()}
    if run.header.task.metric == "pass@1":
        pass_rates = {f"{arm}_pass@{k}": q.pass_at(d.answers_of(run, arm), k) for arm in by_arm for k in (1, 10)}
        scores |= {name: value for name, value in pass_rates.items() if value is not None}
    return scores


def domain_numbers(run: Run) -> list[DomainSummary]:
    """Return the summary of each domain, in the order in which domains appear; empty for a run of one domain."""
    domains = list(dict.fromkeys(run.prompts.sort_values(["repeat", "prompt_index"])["domain"]))
    return [_domain(run, domain) for domain in domains] if len(domains) > 1 else []


def _domain(run: Run, domain: str) -> DomainSummary:
    prompts = run.prompts[run.prompts["domain"] == domain]
    times = prompts[TIMES]
    steps = d.steps_of(run)
    steps = steps[steps["prompt_index"].isin(prompts["prompt_index"])]
    method, ar, pairs = arm_rows(times, "method"), arm_rows(times, "ar"), Pairs.of(times)
    has_hf = "hf" in set(prompts["arm"])
    return DomainSummary(
        domain=domain,
        n_prompts=int(prompts["prompt_index"].nunique()),
        M=d.mean_acceptance_length(steps),
        M_call=d.tokens_per_call(method, steps),
        alpha=d.alpha(steps),
        ar_tokens_per_s=tokens_per_s(ar).value,
        method_tokens_per_s=tokens_per_s(method).value,
        ar_tokens_per_s_e2e=tokens_per_s(ar, end_to_end=True).value,
        method_tokens_per_s_e2e=tokens_per_s(method, end_to_end=True).value,
        speedup=pairs.speedup(),
        speedup_e2e=pairs.speedup(end_to_end=True),
        **_domain_speedups(pairs, "speedup"),
        hf=DomainOverHF(**_domain_speedups(Pairs.of(times, OVER_HF), "speedup_hf")) if has_hf else None,
        quality=_scores(prompts),
    )
