"""Summary of a run and of a domain: the numbers in tables, CSVs and frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ssd_bench.results.evidence import Steadiness
from ssd_bench.results.quantity import Measured
from ssd_bench.results.row import COLUMNS, SummaryRow


@dataclass(frozen=True)
class Summary(SummaryRow):
    """Every number of a run; `docs/glossary.md` explains the columns.

    Attributes:
        numbers: key of `QUANTITIES` -> number; without the Hugging Face arm's if the run lacks it.
        first_divergence: as `quality.lossless_counts` returns it.
        repetition: `ARM_repetition` -> share of repeated n-grams in an arm's outputs.
        task_scores: `ARM_NAME` -> score over an arm's answers, and pass@k for each k with enough repeats.
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
    numbers: Mapping[str, Measured] = field(metadata=COLUMNS)
    tpt_estimated_n: int
    modelled_on: str
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
    n_scored: int
    n_answers: int
    output_rouge2: float | None
    repetition: Mapping[str, Measured] = field(metadata=COLUMNS)
    scores: Sequence[str]
    task_scores: Mapping[str, float] = field(metadata=COLUMNS)
    searched_share: float | None
    steadiness: Steadiness = field(metadata=COLUMNS)
    noise: float | None = None
    warnings: Sequence[str] = field(default_factory=list)

    @property
    def has_hf(self) -> bool:
        return "speedup_hf" in self.numbers


@dataclass(frozen=True)
class DomainSummary(SummaryRow):
    """Main numbers of one domain of a run."""

    domain: str
    n_prompts: int
    numbers: Mapping[str, Measured] = field(metadata=COLUMNS)
    n_scored: int
    n_answers: int
    output_rouge2: float | None
