"""Summaries with warnings, and a run's digest, which gives them without its tables."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ssd_bench.errors import ConfigError, one_line
from ssd_bench.records.reader import Run
from ssd_bench.results import definitions as d
from ssd_bench.results.evidence import RunTiming, VariationLevel, widen_speed_intervals
from ssd_bench.results.numbers import domain_numbers, run_numbers
from ssd_bench.results.row import read_json
from ssd_bench.results.summary import DomainSummary, Summary
from ssd_bench.results.warnings import bound_warning, summary_warnings

UNCOMPUTABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors raised by the values of a damaged record."""


@dataclass(frozen=True)
class Digest:
    """Numbers of a run that every report needs, in plain types, so that JSON can cache them.

    Attributes:
        summary, domains: results of `summarise` and `domain_numbers`.
        timing: for run-to-run variation.
        conditions: hash of `conditions`; equal for comparable runs.
        ar_emitted, ar_steps: tokens emitted by AR's steps, and their number.
    """

    summary: Summary
    domains: Sequence[DomainSummary]
    timing: RunTiming
    conditions: str
    ar_emitted: int
    ar_steps: int

    @classmethod
    def of(cls, run: Run) -> Digest:
        """Compute the digest of a run.

        Raises:
            ConfigError: a number cannot be computed; names the record's path.
        """
        try:
            summary, ar = summarise(run), d.steps_of(run, "ar")
            speeds = summary.speedup.value, summary.method_tokens_per_s.value
            timing = RunTiming.with_numbers(run, *speeds, summary.steadiness)
            conditions_sha = hashlib.sha256(repr(conditions(run)).encode()).hexdigest()
            counts = int(ar["emitted"].sum()), len(ar)
            digest = cls(summary, domain_numbers(run), timing, conditions_sha, *counts)
            return cls.read(digest.text)  # through JSON, so that a new digest has the same types as a cached one
        except UNCOMPUTABLE as error:
            expected = f"values from which all numbers can be computed ({one_line(error)})"
            raise ConfigError("record", str(run.path), expected) from error

    @property
    def text(self) -> str:
        return json.dumps(asdict(self), default=lambda value: value.item())  # item: NumPy scalars are not JSON

    @classmethod
    def read(cls, text: str) -> Digest:
        """Read a digest from its `text`.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: the text is not a digest.
        """
        return read_json(cls, json.loads(text))

    def summarise(self, path: Path, level: VariationLevel | None = None) -> Summary:
        """Return the run's `summarise`, without reading its tables; the folder may have moved to `path`.

        Run-to-run variation widens the intervals of speeds, which may explain a speedup above M.
        """
        summary = replace(self.summary, run_dir=str(path))
        if level is None:
            return summary
        numbers = widen_speed_intervals(summary.numbers, level, summary.n_prompts)
        widened = replace(summary, numbers=numbers, noise=level.speedup.sigma)
        explained = {*bound_warning(summary)} - {*bound_warning(widened)}
        return replace(widened, warnings=[text for text in summary.warnings if text not in explained])

    def summarise_domains(self, level: VariationLevel | None = None) -> Sequence[DomainSummary]:
        """Return the run's `domain_numbers`, without reading its tables; intervals as in `summarise`."""
        if level is None:
            return self.domains
        return [
            replace(domain, numbers=widen_speed_intervals(domain.numbers, level, domain.n_prompts))
            for domain in self.domains
        ]


def summarise(run: Run) -> Summary:
    """Return every number of a run; intervals are over prompts alone."""
    summary = run_numbers(run)
    return replace(summary, warnings=summary_warnings(summary, run))


def conditions(run: Run) -> dict[str, Any]:
    """Return what comparable runs share: task, prompts, model, hardware and decoding settings."""
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
