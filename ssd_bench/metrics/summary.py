"""Summary of a run as one flat dictionary, with warnings; check that two runs are comparable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ssd_bench.errors import ConfigError
from ssd_bench.metrics import definitions as d
from ssd_bench.metrics import quality as q
from ssd_bench.metrics.evidence import (
    RunTiming,
    RunVariation,
    VariationLevel,
    contamination,
    contamination_warning,
    decode_seconds,
    machine,
    searched_share,
    steadiness,
    trace,
    widen_speed_intervals,
)
from ssd_bench.metrics.intervals import Measured, divide
from ssd_bench.metrics.repetition import repetition, speedup_without_loops
from ssd_bench.records.reader import Run
from ssd_bench.records.schema import PAIR

OVER_HF = ("hf", "method")
"""Arms of a speedup over Hugging Face's `generate`: divisor, dividend."""

FEW_PROMPTS = 20
"""Smallest number of prompts without the warning that intervals are uncertain."""


@dataclass(frozen=True)
class Digest:
    """Numbers of a run that every report needs, in plain types, so that they can be cached as a line of JSON.

    Attributes:
        summary, domains: results of `summarise` and `summarise_domains`, without warnings and run-to-run variation.
        facts: result of `_facts`, for warnings.
        timing: facts for run-to-run variation.
        conditions: hash of `conditions`; equal for two comparable runs.
        ar_emitted: tokens that AR's steps emitted.
        ar_steps: number of AR's steps.
    """

    summary: Mapping[str, Any]
    facts: Mapping[str, Any]
    domains: list[dict[str, Any]]
    timing: RunTiming
    conditions: str
    ar_emitted: int
    ar_steps: int

    @classmethod
    def of(cls, run: Run) -> Digest:
        """Compute the digest of a run."""
        summary, ar = _numbers(run), d.arm_rows(run.steps, "ar")
        speedup, rate = summary["speedup"], summary["method_tokens_per_s"]
        timing = RunTiming(machine(run), trace(run), decode_seconds(run), speedup, rate, bool(contamination(summary)))
        conditions_sha = hashlib.sha256(repr(conditions(run)).encode()).hexdigest()
        digest = cls(summary, _facts(run), _domains(run), timing, conditions_sha, int(ar["emitted"].sum()), len(ar))
        return cls.read(digest.text)  # through JSON, so that a new digest has the same types as a cached one

    @property
    def text(self) -> str:
        """The digest as JSON."""
        return json.dumps(asdict(self), default=lambda value: value.item())  # item: NumPy scalars are not JSON

    @classmethod
    def read(cls, text: str) -> Digest:
        """Read a digest from its `text`.

        Raises:
            ValueError, TypeError, KeyError: the text is not a digest.
        """
        content = json.loads(text)
        return cls(**content | {"timing": RunTiming(**content["timing"])})

    def summarise(self, path: Path, variation: RunVariation | None = None) -> dict[str, Any]:
        """Return what the function `summarise` returns for the run, without reading its tables.

        Args:
            path: folder of the run; it may have been moved since the digest was computed.
        """
        level = self._level(variation)
        summary = {**self.summary, "run_dir": str(path)}
        if level is not None:
            summary = widen_speed_intervals(summary, level) | {"noise": level.speedup.sigma}
        return _add_warnings(summary, self.facts)

    def summarise_domains(self, variation: RunVariation | None = None) -> list[dict[str, Any]]:
        """Return what the function `summarise_domains` returns for the run, without reading its tables."""
        level = self._level(variation)
        return self.domains if level is None else [widen_speed_intervals(row, level) for row in self.domains]

    def _level(self, variation: RunVariation | None) -> VariationLevel | None:
        """Return the variation for runs of this length; None if it was not measured on this model and machine."""
        return variation.at(self.timing.seconds) if variation is not None and variation.holds_for(self.timing) else None


def summarise(run: Run, variation: RunVariation | None = None) -> dict[str, Any]:
    """Return every number of a run as a flat dictionary, a row of a table.

    A number with an interval has the keys NAME, NAME_lo, NAME_hi, and NAME_n if it may have fewer prompts than
    `n_prompts`. Undefined numbers are None. `warnings` are sentences: the caveat of the method, the warnings of the
    run, and warnings that follow from the numbers.

    Args:
        variation: run-to-run variation, by which the interval of every speed is widened if it was measured on the
            run's model and machine. None: no interval is widened.
    """
    summary = _numbers(run)
    if variation is not None and variation.holds_for(run):
        level = variation.at(decode_seconds(run))
        summary = widen_speed_intervals(summary, level) | {"noise": level.speedup.sigma}
    return _add_warnings(summary, _facts(run))


def _numbers(run: Run) -> dict[str, Any]:
    """Return the summary without warnings, before intervals are widened by run-to-run variation."""
    summary = _identity(run) | _acceptance(run) | _speed(run) | _cost(run) | _quality(run)
    return summary | {"searched_share": searched_share(run), **steadiness(run), "noise": None}


def _add_warnings(summary: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    return {**summary, "warnings": [*facts["told"], *_warnings(summary, facts)]}


def _interval_columns(name: str, number: Measured) -> dict[str, Any]:
    return {name: number.value, f"{name}_lo": number.low, f"{name}_hi": number.high}


def _identity(run: Run) -> dict[str, Any]:
    """Return the columns that say what was run, and on how many prompts, repeats and pairs of answers."""
    header = run.header
    return {
        "run_id": header.run_id,
        "run_dir": str(run.path),
        "task": header.task.name,
        "metric": header.task.metric,
        "model": header.model.name,
        "rehearsal": header.model.rehearsal,
        "dtype": header.model.dtype,
        "device": header.device_name,
        "method": header.method,
        "seed": header.seed,
        "n_prompts": int(run.prompts["prompt_index"].nunique()),
        "n_repeats": int(run.prompts["repeat"].nunique()),
        "n_pairs": len(d.paired_rows(run.prompts[d.TIMES])) // 2,  # a pair has a row of AR and one of the method
    }


def _acceptance(run: Run) -> dict[str, Any]:
    prompts, steps = d.arm_rows(run.prompts, "method"), d.arm_rows(run.steps, "method")
    m, m_call, acceptance = d.mean_acceptance_length(steps), d.tokens_per_call(prompts, steps), d.alpha(steps)
    tpt_estimate, n_search_events = d.estimated_tpt(steps)
    skipped_attn, skipped_mlp = d.skipped_sublayers(run)
    # E(speedup) counts all drafted tokens, so its r includes tokens that no layers drafted; skip_ratio leaves them out
    skip_of_all = d.skip_ratio_of_all(run)
    return {
        **_interval_columns("M", m),
        "M_call": m_call,
        **_interval_columns("alpha", acceptance),
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
    """Return tokens per second of every arm, and the speedups between arms."""
    prompts = run.prompts[d.TIMES]
    equal_length, without_loops = d.speedup_matched(prompts), speedup_without_loops(run.prompts)
    numbers = {
        **_rates(prompts, "ar"),
        **_rates(prompts, "method"),
        **_speedups(prompts, "speedup", PAIR),
        **_interval_columns("speedup_matched", equal_length),
        "speedup_matched_n": equal_length.n,
        **_interval_columns("speedup_without_loops", without_loops),
        "speedup_without_loops_n": without_loops.n,
    }
    return numbers | _third_arm(run, prompts) if "hf" in set(prompts["arm"]) else numbers


def _rates(prompts: pd.DataFrame, arm: str) -> dict[str, Any]:
    """Return the tokens per second of an arm, decoding alone and end to end, and the mean time of a prefill."""
    rows = d.arm_rows(prompts, arm)
    return {
        **_interval_columns(f"{arm}_tokens_per_s", d.tokens_per_s(rows)),
        **_interval_columns(f"{arm}_tokens_per_s_e2e", d.tokens_per_s(rows, end_to_end=True)),
        f"{arm}_prefill_ms": divide(*rows["prefill_ms"].agg(["sum", "count"])),
    }


def _speedups(prompts: pd.DataFrame, name: str, arms: tuple[str, str]) -> dict[str, Any]:
    """Return the speedup of one arm over another by every statistic that a paper uses (`counts` in its paper.yaml).

    Args:
        name: name of the speedup, with which all columns begin.
        arms: divisor, dividend.
    """
    return {
        **_interval_columns(name, d.speedup(prompts, arms=arms)),
        **_interval_columns(f"{name}_e2e", d.speedup(prompts, end_to_end=True, arms=arms)),
        **_interval_columns(f"{name}_mean", d.speedup_mean(prompts, arms=arms)),
        **_interval_columns(f"{name}_rates", d.speedup_rates(prompts, arms=arms)),
        **_interval_columns(f"{name}_rates_e2e", d.speedup_rates(prompts, end_to_end=True, arms=arms)),
        **_interval_columns(f"{name}_wall", d.speedup_wall(prompts, arms=arms)),
    }


def _third_arm(run: Run, prompts: pd.DataFrame) -> dict[str, Any]:
    """Return the numbers of the Hugging Face arm: its speed, and the speedups of the method and AR over it."""
    header = run.header
    return {
        **_rates(prompts, "hf"),
        **_speedups(prompts, "speedup_hf", OVER_HF),
        **_interval_columns("ar_over_hf", d.speedup(prompts, arms=("hf", "ar"))),
        **_interval_columns("ar_over_hf_e2e", d.speedup(prompts, end_to_end=True, arms=("hf", "ar"))),
        # sampled outputs of two implementations differ even if both are right
        "hf_output_exact": q.same_token_share(run.prompts, ("ar", "hf")) if header.decode.greedy else None,
        "hf_weight_bytes": header.hf.get("weight_bytes"),
    }


def _cost(run: Run) -> dict[str, Any]:
    """Return where the method spends its time and memory, and when an offline search has paid for itself."""
    method = d.arm_rows(run.prompts, "method")
    shares = d.decode_time_shares(method)
    rates = [d.tokens_per_s(d.arm_rows(run.prompts[d.TIMES], arm)).value for arm in ("ar", "method")]
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
    method, ar = d.arm_rows(prompts, "method"), d.arm_rows(prompts, "ar")
    lossless = q.lossless_counts(prompts)
    ends = {f"finish_{end}": int((method["finish_reason"] == end).sum()) for end in ("eos", "length", "context")}
    n_truncated = prompts[prompts["clipped_tokens"] > 0]["prompt_index"].nunique()
    return {
        **{f"lossless_{key}": lossless[key] for key in ("identical", "tie", "bug", "unchecked")},
        "first_divergence": lossless["first"],
        **ends,
        "clipped": int(n_truncated),
        "ar_score": q.mean_score(ar),
        "method_score": q.mean_score(method),
        **q.score_counts(method),
        **q.agreement(prompts),
        **_repetition(prompts),
        **_task_scores(run),
    }


def _repetition(prompts: pd.DataFrame) -> dict[str, Any]:
    """Return the share of repeated n-grams in the outputs of every arm, under `ARM_repetition`."""
    arms = dict.fromkeys(prompts["arm"])
    return {
        name: value
        for arm in arms
        for name, value in _interval_columns(f"{arm}_repetition", repetition(d.arm_rows(prompts, arm))).items()
    }


def _task_scores(run: Run) -> dict[str, Any]:
    """Return the task's scores over all answers of an arm as `ARM_NAME`, and pass@k for each k with enough repeats."""
    by_arm = run.header.scores
    columns = {f"{arm}_{name}": value for arm, arm_scores in by_arm.items() for name, value in arm_scores.items()}
    if run.header.task.metric == "pass@1":
        pass_rates = {f"{arm}_pass@{k}": q.pass_at(d.arm_rows(run.prompts, arm), k) for arm in by_arm for k in (1, 10)}
        columns |= {name: value for name, value in pass_rates.items() if value is not None}
    return {"scores": sorted({name.partition("_")[2] for name in columns}), **columns}


def summarise_domains(run: Run, variation: RunVariation | None = None) -> list[dict[str, Any]]:
    """Return the main numbers of each domain, in the order in which domains appear; empty for a run of one domain.

    Args:
        variation: as in `summarise`.
    """
    rows = _domains(run)
    if not rows or variation is None or not variation.holds_for(run):
        return rows
    return [widen_speed_intervals(row, variation.at(decode_seconds(run))) for row in rows]


def _domains(run: Run) -> list[dict[str, Any]]:
    """Return the rows of `summarise_domains`, before intervals are widened by run-to-run variation."""
    domains = list(dict.fromkeys(run.prompts.sort_values(["repeat", "prompt_index"])["domain"]))
    if len(domains) < 2:
        return []
    rows = []
    for domain in domains:
        prompts = run.prompts[run.prompts["domain"] == domain]
        steps = d.arm_rows(run.steps[run.steps["prompt_index"].isin(prompts["prompt_index"])], "method")
        method, ar = d.arm_rows(prompts, "method"), d.arm_rows(prompts, "ar")
        rows.append(
            {
                "domain": domain,
                "n_prompts": int(prompts["prompt_index"].nunique()),
                **_interval_columns("M", d.mean_acceptance_length(steps)),
                "M_call": d.tokens_per_call(method, steps),
                **_interval_columns("alpha", d.alpha(steps)),
                "ar_tokens_per_s": d.tokens_per_s(ar).value,
                "method_tokens_per_s": d.tokens_per_s(method).value,
                "ar_tokens_per_s_e2e": d.tokens_per_s(ar, end_to_end=True).value,
                "method_tokens_per_s_e2e": d.tokens_per_s(method, end_to_end=True).value,
                **_interval_columns("speedup", d.speedup(prompts)),
                **_interval_columns("speedup_e2e", d.speedup(prompts, end_to_end=True)),
                **_domain_speedups(prompts, "speedup", PAIR),
                **(_domain_speedups(prompts, "speedup_hf", OVER_HF) if "hf" in set(prompts["arm"]) else {}),
                "ar_score": q.mean_score(ar),
                "method_score": q.mean_score(method),
                **q.score_counts(method),
                **q.agreement(prompts),
            }
        )
    return rows


def _domain_speedups(prompts: pd.DataFrame, name: str, arms: tuple[str, str]) -> dict[str, Any]:
    """Return those of the speedups in `_speedups` that papers report by domain."""
    return {
        **_interval_columns(f"{name}_rates_e2e", d.speedup_rates(prompts, end_to_end=True, arms=arms)),
        **_interval_columns(f"{name}_wall", d.speedup_wall(prompts, arms=arms)),
    }


def _facts(run: Run) -> dict[str, Any]:
    """Return the facts that warnings need in addition to the summary.

    Returns:
        told: warnings that the record contains: the method's caveat and the warnings of the run.
        units: number of answers per arm.
        uneven: number of pairs of outputs that differ in length.
        outputs: number of outputs of the method.
        adds_up: whether the tokens that the steps emitted add up to the length of every output.
    """
    caveats = [run.header.caveat] if run.header.caveat else []
    lengths = d.paired_rows(run.prompts[d.TIMES]).groupby(d.UNIT)["new_tokens"].nunique()
    emitted = run.steps.groupby([*d.UNIT, "arm"])["emitted"].sum()
    engine_rows = run.prompts[run.prompts["arm"].isin(PAIR)]  # Hugging Face's arm has no steps
    expected = engine_rows.set_index([*d.UNIT, "arm"])["new_tokens"] - 1  # the prefill emits the first token
    return {
        "told": [*caveats, *run.header.warnings],
        "units": len(run.prompts[d.UNIT].drop_duplicates()),
        "uneven": int((lengths > 1).sum()),
        "outputs": len(d.arm_rows(run.prompts, "method")),
        "adds_up": bool((emitted.reindex(expected.index, fill_value=0) == expected.clip(lower=0)).all()),
    }


def _warnings(s: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """Return the warnings that follow from the numbers of a summary `s`, as sentences.

    M is an upper bound of the speedup: a step emits M tokens in the mean and takes at least as long as a step of AR,
    which emits one. The lower end of the interval is compared, so that variation over prompts causes no warning.
    """
    warnings = []
    if warning := contamination_warning(s):
        warnings.append(warning)
    if s["searched_share"] == 0:
        warnings.append("no search ran: every draft used the method's initial layer set")
    if s["lossless_bug"]:
        first = s["first_divergence"]
        position = f"{first['prompt_id']}, token {first['index']}, AR's top-2 logit gap {first['gap']}"
        warnings.append(
            f"not lossless: outputs that differ from AR's beyond rounding: {s['lossless_bug']}; the first: {position}"
        )
    bound = s["speedup_lo"] if s["speedup_lo"] is not None else s["speedup"]
    if bound is not None and s["M"] is not None and bound > s["M"]:
        warnings.append(f"the speedup {s['speedup']:.2f} exceeds M = {s['M']:.2f}, its upper bound: check the timings")
    if not s["n_pairs"]:
        warnings.append("no baseline: speedup and losslessness are unknown; run with baseline=paired")
    elif s["n_pairs"] < facts["units"]:
        warnings.append(f"only {s['n_pairs']} of {facts['units']} outputs have a baseline; the speedup is over these")
    if s["n_pairs"] and s["n_prompts"] < FEW_PROMPTS:
        warnings.append(
            f"few prompts: n = {s['n_prompts']}, fewer than {FEW_PROMPTS}; the intervals themselves are uncertain"
        )
    if facts["uneven"]:
        warnings.append(
            f"{facts['uneven']} of {s['n_pairs']} pairs of outputs differ in length; speedup_matched excludes them"
        )
    exact = s.get("hf_output_exact")
    if exact is not None and exact < 1:
        warnings.append(
            f"{1 - exact:.1%} of Hugging Face's outputs differ from AR's, because of rounding or because of a fault"
        )
    if s["finish_context"]:
        warnings.append(
            f"{s['finish_context']} of {facts['outputs']} outputs stopped at the model's context length "
            "(finish_reason=context), before max_new_tokens"
        )
    if s["other_share"] is not None and s["other_share"] < -0.01:
        warnings.append(f"the time spans add up to {1 - s['other_share']:.0%} of the decode time: some of them overlap")
    if not facts["adds_up"]:
        warnings.append("the emitted tokens of the steps do not add up to the lengths of the outputs")
    return warnings


def conditions(run: Run) -> dict[str, Any]:
    """Return the properties that comparable runs share: task, prompts, model, hardware and decoding settings."""
    header = run.header
    task, model, decode = header.task, header.model, header.decode
    hashes = run.prompts.drop_duplicates("prompt_index").sort_values("prompt_index")["prompt_sha256"]
    return {
        "task": (task.name, task.version),
        "prompts": tuple(hashes),
        "model": tuple((k, getattr(model, k)) for k in ("name", "dtype", "n_layers", "n_params", "weights")),
        "hardware": tuple(sorted((k, str(v)) for k, v in header.hardware.items())),
        "decode": tuple((k, getattr(decode, k)) for k in ("max_new_tokens", "temperature", "top_p", "top_k")),
    }


def check_comparable(a: Run, b: Run) -> None:
    """Refuse to compare two runs that differ in anything but the method.

    Raises:
        ConfigError: task, prompts, model, hardware or decoding settings differ; every difference is listed.
    """
    first, second = conditions(a), conditions(b)
    differences = []
    for key, value in first.items():
        if key == "prompts" and value != second[key]:
            shared = len(set(value) & set(second[key]))
            differences.append(f"prompts: {len(value)} and {len(second[key])}, {shared} in common")
        elif value != second[key]:
            differences.append(f"{key}: {value} and {second[key]}")
    if differences:
        raise ConfigError(
            "runs", [str(a.path), str(b.path)], reason="the runs are not comparable; " + "; ".join(differences)
        )
