"""Summary of a run and of a domain: every number that tables, CSVs and frames show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from ssd_bench.results.evidence import Steadiness
from ssd_bench.results.intervals import Measured
from ssd_bench.results.modelled import ModelledSummary
from ssd_bench.results.row import COLUMNS, COUNTED, SummaryRow


@dataclass(frozen=True)
class Quality(SummaryRow):
    """Scores of the outputs of AR and the method, and agreement of the method's outputs with AR's."""

    ar_score: float | None
    method_score: float | None
    n_scored: int
    n_answers: int
    output_rouge2: float | None
    output_exact: float | None


@dataclass(frozen=True)
class HFSummary(SummaryRow):
    """Numbers of the Hugging Face arm: its speed, and the speedups of the method and of AR over it."""

    hf_tokens_per_s: Measured
    hf_tokens_per_s_e2e: Measured
    hf_prefill_ms: float | None
    speedup_hf: Measured
    speedup_hf_e2e: Measured
    speedup_hf_mean: Measured
    speedup_hf_rates: Measured
    speedup_hf_rates_e2e: Measured
    speedup_hf_wall: Measured
    ar_over_hf: Measured
    ar_over_hf_e2e: Measured
    hf_output_exact: float | None
    hf_weight_bytes: int | None


@dataclass(frozen=True)
class Summary(SummaryRow):
    """Every number of a run; `docs/glossary.md` explains the columns.

    Attributes:
        modelled: numbers at the costs of a reference machine.
        hf: numbers of the Hugging Face arm; None without this arm.
        first_divergence: first output that differs from AR's (`quality.lossless_counts`).
        repetition: `ARM_repetition` -> share of repeated n-grams in the outputs of an arm.
        scores: names of all scores of the task.
        task_scores: `ARM_NAME` -> score over all answers of an arm, and pass@k for each k with enough repeats.
        noise: run-to-run variation that widened the intervals of speeds; None if no interval was widened.
        warnings: sentences: the caveat of the method, the warnings of the run, and warnings that follow from the
            numbers.
    """

    run_id: str
    run_dir: str
    task: str
    metric: str | None
    model: str
    toy: bool
    dtype: str
    device: str
    method: str
    seed: int | None
    n_prompts: int
    n_repeats: int
    n_pairs: int
    M: Measured
    M_call: float | None
    alpha: Measured
    alpha_macro: float | None
    alpha_conditional: float | None
    mean_draft_len: float | None
    skip_ratio: float | None
    skipped_attn: float | None
    skipped_mlp: float | None
    expected_speedup: float | None
    expected_speedup_call: float | None
    tpt_predicted: float | None
    tpt_predicted_ar: float | None
    tpt_estimated: float | None
    tpt_estimated_n: int
    ar_tokens_per_s: Measured
    ar_tokens_per_s_e2e: Measured
    ar_prefill_ms: float | None
    method_tokens_per_s: Measured
    method_tokens_per_s_e2e: Measured
    method_prefill_ms: float | None
    speedup: Measured
    speedup_e2e: Measured
    speedup_mean: Measured
    speedup_rates: Measured
    speedup_rates_e2e: Measured
    speedup_wall: Measured
    speedup_matched: Measured = field(metadata=COUNTED)
    speedup_without_loops: Measured = field(metadata=COUNTED)
    modelled: ModelledSummary = field(metadata=COLUMNS)
    hf: HFSummary | None = field(metadata=COLUMNS)
    overhead: float | None
    draft_share: float | None
    verify_share: float | None
    policy_share: float | None
    other_share: float | None
    prepare_ms: float | None
    break_even_tokens: float | None
    peak_bytes: int | None
    lossless_identical: int
    lossless_tie: int
    lossless_bug: int
    lossless_unchecked: int
    first_divergence: Mapping[str, Any] | None
    finish_eos: int
    finish_length: int
    finish_context: int
    clipped: int
    quality: Quality = field(metadata=COLUMNS)
    repetition: Mapping[str, Measured] = field(metadata=COLUMNS)
    scores: Sequence[str]
    task_scores: Mapping[str, float] = field(metadata=COLUMNS)
    searched_share: float | None
    steadiness: Steadiness = field(metadata=COLUMNS)
    noise: float | None = None
    warnings: Sequence[str] = field(default_factory=list)

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """Return the summary whose fields were stored as JSON."""
        parts = {
            "modelled": ModelledSummary.read(stored["modelled"]),
            "hf": None if stored["hf"] is None else HFSummary.read(stored["hf"]),
            "quality": Quality(**stored["quality"]),
            "repetition": {name: Measured(**number) for name, number in stored["repetition"].items()},
            "steadiness": Steadiness(**stored["steadiness"]),
        }
        return super().read({**stored, **parts})


@dataclass(frozen=True)
class DomainOverHF(SummaryRow):
    """Speedups over the Hugging Face arm that papers report by domain."""

    speedup_hf_rates_e2e: Measured
    speedup_hf_wall: Measured


@dataclass(frozen=True)
class DomainSummary(SummaryRow):
    """The main numbers of one domain of a run.

    Attributes:
        hf: speedups over the Hugging Face arm; None without this arm.
    """

    domain: str
    n_prompts: int
    M: Measured
    M_call: float | None
    alpha: Measured
    ar_tokens_per_s: float | None
    method_tokens_per_s: float | None
    ar_tokens_per_s_e2e: float | None
    method_tokens_per_s_e2e: float | None
    speedup: Measured
    speedup_e2e: Measured
    speedup_rates_e2e: Measured
    speedup_wall: Measured
    hf: DomainOverHF | None = field(metadata=COLUMNS)
    quality: Quality = field(metadata=COLUMNS)

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """Return the summary whose fields were stored as JSON."""
        over_hf = None if stored["hf"] is None else DomainOverHF.read(stored["hf"])
        return super().read({**stored, "hf": over_hf, "quality": Quality(**stored["quality"])})
