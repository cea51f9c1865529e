"""Summaries of a run and its domains from the tables, without warnings and run-to-run variation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from ssd_bench.records.reader import Run
from ssd_bench.results import definitions as d
from ssd_bench.results import quality as q
from ssd_bench.results.evidence import Steadiness, searched_share
from ssd_bench.results.modelled import reference_of
from ssd_bench.results.prompt_table import PromptTable
from ssd_bench.results.quantity import QUANTITIES, Measured
from ssd_bench.results.repetition import repetition
from ssd_bench.results.rows import arm_rows, pair_positions
from ssd_bench.results.summary import DomainSummary, Summary


def run_numbers(run: Run) -> Summary:
    table, header = PromptTable.of(run), run.header
    return Summary(
        run_id=header.run_id,
        run_dir=str(run.path),
        task=header.task.name,
        metric=header.task.metric,
        model=header.model.name,
        toy=header.model.toy,
        dtype=header.model.dtype,
        device=header.device_name,
        method=header.method,
        seed=header.seed,
        n_prompts=int(run.prompts["prompt_index"].nunique()),
        n_repeats=int(run.prompts["repeat"].nunique()),
        n_pairs=len(pair_positions(run.prompts)[0]),
        numbers=numbers(run, table),
        tpt_estimated_n=d.estimated_tpt(d.steps_of(run))[1],
        modelled_on=reference_of(header),
        **_quality(run),
        searched_share=searched_share(run),
        steadiness=Steadiness.of(run),
    )


def numbers(run: Run, table: PromptTable) -> dict[str, Measured]:
    """Return every quantity of a run, in the order of the catalogue."""
    values = {key: table.number(key) for key in table.defined}
    values |= {key: Measured(value) for key, value in _other_numbers(run, table, values).items()}
    return {key: values[key] for key in QUANTITIES if key in values}


def prompt_numbers(run: Run, table: PromptTable, keys: Iterable[str]) -> pd.DataFrame:
    """Return quantities and TPT, predicted and estimated, of each prompt (index: prompt_index); NaN if undefined."""
    values = {key: table.by_prompt(key) for key in keys}
    values["tpt_predicted"] = pd.Series(d.predicted_tpt_by_prompt(run), dtype=float)
    values["tpt_estimated"] = d.steps_of(run).groupby("prompt_index")["est_tokens_per_s"].mean()
    return pd.DataFrame(values).astype(float).replace([np.inf, -np.inf], np.nan)


def _other_numbers(run: Run, table: PromptTable, values: Mapping[str, Measured]) -> dict[str, float | None]:
    steps, prepare_ms = d.steps_of(run), run.header.prepare_ms
    m, m_call, alpha = (values[key].value for key in ("M", "M_call", "alpha"))
    # E(speedup) counts all drafted tokens, so its r includes tokens that no layers drafted; skip_ratio leaves them out
    skip_of_all = d.skip_ratio_of_all(run)
    rates = [values[f"{arm}_tokens_per_s"].value for arm in ("ar", "method")]
    modelled_ms = table.modelled_prepare_ms
    modelled_rates = [table.modelled.value(f"{arm}_tokens_per_s") for arm in ("ar", "method")]
    others = {
        "alpha_macro": d.alpha_macro(steps),
        "expected_speedup": d.expected_speedup(m, alpha, skip_of_all),
        "expected_speedup_call": d.expected_speedup(m_call, alpha, skip_of_all),
        "tpt_predicted": d.predicted_tpt(run),
        "tpt_predicted_ar": d.predicted_tpt(run, "ar"),
        "tpt_estimated": d.estimated_tpt(steps)[0],
        "prepare_ms": prepare_ms,
        "break_even_tokens": d.break_even_tokens(prepare_ms, *rates),
        "modelled_prepare_ms": modelled_ms,
        "modelled_break_even_tokens": d.break_even_tokens(modelled_ms, *modelled_rates),
        "output_exact": q.same_token_share(run.prompts),
    }
    if "hf" in set(run.prompts["arm"]):
        # sampled outputs of two implementations differ even if both are right
        exact = q.same_token_share(run.prompts, ("ar", "hf")) if run.header.decode.greedy else None
        others |= {"hf_output_exact": exact, "hf_weight_bytes": run.header.hf.get("weight_bytes")}
    return others


def _quality(run: Run) -> dict[str, Any]:
    prompts = run.prompts
    method, lossless = d.answers_of(run), q.lossless_counts(prompts)
    ends = {f"finish_{end}": int((method["finish_reason"] == end).sum()) for end in ("eos", "length", "context")}
    arms, task_scores = dict.fromkeys(prompts["arm"]), _task_scores(run)
    return {
        **{f"lossless_{key}": lossless[key] for key in ("identical", "tie", "bug", "unchecked")},
        "first_divergence": lossless["first"],
        **ends,
        "peak_bytes": int(method["peak_bytes"].max()) if len(method) else None,
        "clipped": int(prompts[prompts["clipped_tokens"] > 0]["prompt_index"].nunique()),
        **_scores(prompts),
        "repetition": {f"{arm}_repetition": repetition(d.answers_of(run, arm)) for arm in arms},
        "scores": sorted({name.partition("_")[2] for name in task_scores}),
        "task_scores": task_scores,
    }


def _scores(prompts: pd.DataFrame) -> dict[str, Any]:
    return {**q.score_counts(arm_rows(prompts, "method")), "output_rouge2": q.output_rouge2(prompts)}


def _task_scores(run: Run) -> dict[str, float]:
    """Return the task's scores over an arm's answers as `ARM_NAME`, and pass@k for each k with enough repeats."""
    by_arm = run.header.scores
    scores = {f"{arm}_{name}": value for arm, arm_scores in by_arm.items() for name, value in arm_scores.items()}
    if run.header.task.metric == "pass@1":
        pass_rates = {f"{arm}_pass@{k}": q.pass_at(d.answers_of(run, arm), k) for arm in by_arm for k in (1, 10)}
        scores |= {name: value for name, value in pass_rates.items() if value is not None}
    return scores


def domain_numbers(run: Run) -> list[DomainSummary]:
    """Return the summary of each domain, in order of appearance; empty for a single domain."""
    domains = list(dict.fromkeys(run.prompts.sort_values(["repeat", "prompt_index"])["domain"]))
    table = PromptTable.of(run)
    return [_domain(run, table, domain) for domain in domains] if len(domains) > 1 else []


def _domain(run: Run, table: PromptTable, domain: str) -> DomainSummary:
    prompts = run.prompts[run.prompts["domain"] == domain]
    of_domain = table.restrict(prompts["prompt_index"])
    values = {}
    for key in table.defined:
        if kind := QUANTITIES[key].by_domain:
            values[key] = Measured(of_domain.value(key)) if kind == "value" else of_domain.number(key)
    return DomainSummary(domain, int(prompts["prompt_index"].nunique()), values, **_scores(prompts))
