"""Warnings on the numbers of a run, as sentences."""

from __future__ import annotations

from ssd_bench.records.reader import Run
from ssd_bench.records.schema import PAIR
from ssd_bench.results.rows import UNIT, pair_positions
from ssd_bench.results.summary import Summary

FEW_PROMPTS = 20
"""Number of prompts below which a warning says that intervals are uncertain."""


def summary_warnings(s: Summary, run: Run) -> list[str]:
    """Return the method's caveat and the recorded warnings, then those that follow from the run and its numbers `s`."""
    warnings = [run.header.caveat] if run.header.caveat else []
    warnings += run.header.warnings
    if s.steadiness.warning:
        warnings.append(s.steadiness.warning)
    if s.searched_share == 0:
        warnings.append("no search ran: every draft used the method's initial layer set")
    if s.lossless_bug and s.first_divergence is not None:
        first = s.first_divergence
        position = f"{first['prompt_id']}, token {first['index']}, AR's top-2 logit gap {first['gap']}"
        warnings.append(
            f"not lossless: outputs that differ from AR's beyond rounding: {s.lossless_bug}; the first: {position}"
        )
    warnings += bound_warning(s)
    units = len(run.prompts[UNIT].drop_duplicates())
    if not s.n_pairs:
        warnings.append("no baseline: speedup and losslessness are unknown; run with baseline=paired")
    elif s.n_pairs < units:
        warnings.append(f"only {s.n_pairs} of {units} outputs have a baseline; the speedup is over these")
    if s.n_pairs and s.n_prompts < FEW_PROMPTS:
        warnings.append(
            f"few prompts: n = {s.n_prompts}, fewer than {FEW_PROMPTS}; the intervals themselves are uncertain"
        )
    lengths = [run.prompts["new_tokens"].to_numpy()[rows] for rows in pair_positions(run.prompts)]
    if uneven := int((lengths[0] != lengths[1]).sum()):
        warnings.append(f"{uneven} of {s.n_pairs} pairs of outputs differ in length; speedup_matched excludes them")
    exact = s.hf_output_exact if s.has_hf else None
    if exact is not None and exact < 1:
        warnings.append(
            f"{1 - exact:.1%} of Hugging Face's outputs differ from AR's, because of rounding or because of a fault"
        )
    if s.finish_context:
        warnings.append(
            f"{s.finish_context} of {s.n_answers} outputs stopped at the model's context length "
            "(finish_reason=context), before max_new_tokens"
        )
    if s.other_share is not None and s.other_share < -0.01:
        warnings.append(f"the time spans add up to {1 - s.other_share:.0%} of the decode time: some of them overlap")
    if not _adds_up(run):
        warnings.append("the emitted tokens of the steps do not add up to the lengths of the outputs")
    return warnings


def bound_warning(s: Summary) -> list[str]:
    """Return the warning on a speedup above M, if any.

    M is an upper bound of the speedup: a step emits M tokens on average and takes at least as long as a step of AR. It
    is compared with the lower end of the interval, so that variation over prompts causes no warning.
    """
    m, speedup = s.M.value, s.speedup.value
    bound = speedup if s.speedup.low is None else s.speedup.low
    if bound is None or m is None or bound <= m:
        return []
    return [f"the speedup {speedup:.2f} exceeds M = {m:.2f}, its upper bound: check the timings"]


def _adds_up(run: Run) -> bool:
    """Return whether the steps' emitted tokens add up to every output's length."""
    emitted = run.steps.groupby([*UNIT, "arm"])["emitted"].sum()
    engine_rows = run.prompts[run.prompts["arm"].isin(PAIR)]  # Hugging Face's arm has no steps
    expected = engine_rows.set_index([*UNIT, "arm"])["new_tokens"] - 1  # the prefill emits the first token
    return bool((emitted.reindex(expected.index, fill_value=0) == expected.clip(lower=0)).all())
