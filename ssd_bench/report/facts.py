"""Findings that need no run of the papers' models: the audit, and passes timed on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ssd_bench.papers.audit import audit
from ssd_bench.papers.printed.catalogue import version_name
from ssd_bench.predict.gpu_results import HF_TOKENS, sheet_of, speedup_over_hf
from ssd_bench.predict.paper_speedups import MEASURED, WITHIN, count_met, errors, modelled_speedups

SCRIPTED = ("knapspec", "Table 2", "CLaSp")
"""Paper, table and method whose share of skipped blocks is stated by the authors' script only."""
HALF = 0.5


@dataclass(frozen=True)
class Fact:
    """Number to remember, with its explanation, basis (what was measured or computed, where), command and question."""

    number: str
    says: str
    basis: str
    command: str
    asks: str = ""


def facts(checks: pd.DataFrame, results: Sequence[dict[str, Any]]) -> list[Fact]:
    """Return the findings of `audit.audit` and of `shapes` on one GPU (perhaps no results)."""
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
    """Yield how many printed speedups follow from the printed α and a script's skipped blocks."""
    if not results:
        return
    gpu = results[0]["machine"]
    frame = modelled_speedups(sheet_of(gpu))
    labels = frame[["paper", "exhibit", "method"]].apply(tuple, axis=1)
    rows = frame[labels == SCRIPTED]
    error, shares, n_measured = errors(rows), rows["skipped"], rows.loc[rows["costs"] == MEASURED, "model"].nunique()
    paper, table, method = SCRIPTED
    yield Fact(
        f"{count_met(rows)} of {len(rows)} {method} speedups",
        f"of {version_name(paper)}'s {table} follow from its α within {100 * WITHIN:.0f} % if {method} skips as many "
        f"blocks as the authors' script, {100 * shares.min():.0f} to {100 * shares.max():.0f} % (median error "
        f"{100 * error.median():+.1f} %, largest {100 * max(error, key=abs):+.0f} %). A constant meets "
        f"{count_met(rows.assign(constant=rows['printed'].median()), 'constant')}; with half of the blocks skipped, "
        f"{count_met(rows, HALF) or 'none'} would. The table prints no share.",
        f"Modelled, not run: M from α by formula, no searches, costs of passes measured on one {gpu} for {n_measured} "
        f"of {rows['model'].nunique()} models, by its data sheet for the others.",
        "python -m ssd_bench shapes read=runs/reference/shapes",
    )


def _engine_facts(results: Sequence[dict[str, Any]]) -> Iterator[Fact]:
    ratios = [ratio for ratio in map(speedup_over_hf, results) if ratio is not None]
    if ratios:
        yield Fact(
            f"{min(ratios):.1f} to {max(ratios):.1f} times as fast",
            "as Hugging Face generate is plain autoregressive decoding (AR) in this engine, over which speedups are "
            "given.",
            f"Measured on one host with an {results[0]['machine']}, {len(ratios)} sizes of models, {HF_TOKENS} tokens; "
            "generate with its defaults: no compilation, no static cache.",
            "python -m ssd_bench shapes read=runs/reference/shapes",
        )
