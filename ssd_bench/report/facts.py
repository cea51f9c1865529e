"""Findings at the top of the page that need no run of the papers' models: the audit, and passes timed on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ssd_bench.papers.audit import audit
from ssd_bench.papers.printed.catalogue import version_name
from ssd_bench.predict.gpu_results import imposed_speedups, speedup_over_hf

ENGINE_PAPER, ENGINE_TABLE = "knapspec", "Table 2"
"""Table whose acceptance is imposed on the largest model that was timed: it compares three of the papers' methods."""


@dataclass(frozen=True)
class Fact:
    """A finding, with its evidence.

    Attributes:
        number: the number that a reader should remember.
        says: sentence that explains it.
        basis: what was measured or computed, and on which machine.
        command: command that gives the number.
    """

    number: str
    says: str
    basis: str
    command: str


def facts(checks: pd.DataFrame, results: Sequence[dict[str, Any]]) -> list[Fact]:
    """Return the findings.

    Args:
        checks: result of `audit.audit`.
        results: results of `shapes` on one GPU; empty if they are not at hand.
    """
    return [_audit_fact(checks), *_acceptance_facts(results), *_engine_facts(results)]


def _audit_fact(checks: pd.DataFrame) -> Fact:
    kinds, numbers, impossible = audit.totals(checks)
    papers = [paper for paper in audit.papers_alone() if paper in set(checks["paper"])]
    *names, last = map(version_name, papers)
    return Fact(
        f"{kinds} kinds of contradiction, {impossible} impossible numbers",
        f"in what {', '.join(names)} and {last} print: the contradictions cover {numbers} printed numbers, out of "
        f"{checks['paper'].isin(papers).sum():,} comparisons of their numbers with each other.",
        "Computed from the papers alone; no run is involved.",
        "python -m ssd_bench audit",
    )


def _acceptance_facts(results: Sequence[dict[str, Any]]) -> Iterator[Fact]:
    """Yield the speedups at the papers' acceptance, for the largest model with rows of `ENGINE_TABLE`."""
    by_size = sorted(results, key=lambda result: float(result["ar"]["bytes"]))
    with_rows = [result for result in by_size if imposed_speedups([result], ENGINE_PAPER, ENGINE_TABLE)]
    if not with_rows:
        return
    result = with_rows[-1]
    rows = imposed_speedups([result], ENGINE_PAPER, ENGINE_TABLE)
    ranges = {method: _ranges(group) for method, group in _by_method(rows).items()}
    # the methods whose acceptance gives the highest speedups; the table below has all
    (first, (ours, theirs)), *others = sorted(ranges.items(), key=lambda entry: entry[1][0][0], reverse=True)
    further = "; ".join(f"{name} {_text(ours)} ({_text(theirs)})" for name, (ours, theirs) in others)
    yield Fact(
        f"{first} {_text(ours)}",
        f"is the speedup of {rows[0]['of_model']} on a GPU at the acceptance in {version_name(ENGINE_PAPER)}'s "
        f"{ENGINE_TABLE}, which prints {_text(theirs)}. Other methods, with the printed range: {further}.",
        f"Passes measured on one {result['machine']} in {result['dtype']}, random weights, the papers' acceptance "
        "imposed, without searches: an upper bound.",
        "python -m ssd_bench shapes read=runs/reference/shapes",
    )


def _engine_facts(results: Sequence[dict[str, Any]]) -> Iterator[Fact]:
    ratios = [ratio for ratio in map(speedup_over_hf, results) if ratio is not None]
    if ratios:
        yield Fact(
            f"{min(ratios):.1f} to {max(ratios):.1f} times as fast",
            "as Hugging Face generate is plain autoregressive decoding (AR) in this engine, over which speedups are "
            "given.",
            f"Measured on one {results[0]['machine']}, {len(ratios)} sizes of models.",
            "python -m ssd_bench shapes read=runs/reference/shapes",
        )


def _by_method(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(str(row["of_method"]), []).append(row)
    return groups


Range = tuple[float, float]


def _ranges(rows: Sequence[Mapping[str, Any]]) -> tuple[Range, Range]:
    """Return smallest and largest speedup of ours, and those of the paper."""
    ours, theirs = ([float(row[name]) for row in rows] for name in ("speedup", "theirs"))
    return (min(ours), max(ours)), (min(theirs), max(theirs))


def _text(bounds: Range) -> str:
    return f"{bounds[0]:.2f} to {bounds[1]:.2f}×"
