"""Top of the page: description of the records, and verdicts on the papers' claims by class of evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ssd_bench.papers.claims.claims import Claim, claims
from ssd_bench.papers.claims.judge import (
    CANNOT_SAY,
    DEPENDS,
    EQUIVALENT,
    EVIDENCE_CLASSES,
    FAILS,
    HOLDS,
    NOT_RUN,
    VERDICTS,
)
from ssd_bench.papers.claims.judge import TOY as TOY_CLASS
from ssd_bench.papers.ours.cells import Replication
from ssd_bench.papers.ours.match import order_scales
from ssd_bench.papers.printed.catalogue import paper_versions, version_name
from ssd_bench.papers.runs import grid
from ssd_bench.report import verdict_texts
from ssd_bench.report.numbers import file_stem
from ssd_bench.results.models import model_names
from ssd_bench.results.text import ABSENT, TOY

HEADLINES = 2
"""Claims of each paper on the first screen; `claims.yaml` has the most important first."""


@dataclass(frozen=True)
class VerdictMark:
    """Sign for a verdict, with its CSS class and its meaning in the legend."""

    sign: str
    style: str
    meaning: str


MARKS = {
    HOLDS: VerdictMark("✓", "holds", "the whole 95 % interval reaches the threshold"),
    FAILS: VerdictMark("✗", "fails", "the whole 95 % interval is on the other side of the threshold"),
    EQUIVALENT: VerdictMark("≈", "equal", "the 90 % interval lies within the margin around no effect"),
    DEPENDS: VerdictMark("↔", "unsure", "depends on the machine: modelled and measured times decide differently"),
    CANNOT_SAY: VerdictMark("?", "unsure", "undecided; the reason and what would decide it are given"),
    NOT_RUN: VerdictMark("–", "none", "no runs"),
}
TOY_MARKS = MARKS | {  # a toy model gives no verdict on a paper, so it has no tick, no cross and no colour
    HOLDS: VerdictMark("●", "toy", "toy model: as the claim says"),
    FAILS: VerdictMark("○", "toy", "toy model: not as the claim says"),
}


def describe_records(replications: Sequence[Replication], results: int) -> str:
    """Return sentences on the records: runs, distinct results compared with the papers', scale, models and machine."""
    by_path = {
        cell.path: (cell, replication.scale) for replication in replications for cell in replication.recorded_cells()
    }
    if not by_path:
        return "There are no runs of the papers' experiments in this folder yet."
    models = list(dict.fromkeys(cell.model_ran for cell, _ in by_path.values()))
    machines = dict.fromkeys(cell.header.machine_name for cell, _ in by_path.values())
    count = sum(1 for replication in replications for _ in replication.recorded_cells())
    scales = order_scales(dict.fromkeys(scale for _, scale in by_path.values()))
    text = (
        f"The records are {len(by_path)} runs of {model_names(models)}, at scale {', '.join(scales)}, on "
        f"{', '.join(machines)}. They cover {count} combinations of model, task, method and setting in "
        f"{len(replications)} experiments; where one model replaces several models of a paper, these share a run. "
        f"{results} distinct results are compared with the papers' numbers."
    )
    toys = [model for model in models if model.toy]
    if not toys:
        return text
    subject = "All runs" if len(toys) == len(models) else f"The runs of {model_names(toys)}"
    return (
        f"{text} {subject} are {TOY}s, on a model that this project trained: they show how the methods behave and that "
        "the analysis works, and say nothing about the papers' models."
    )


def claim_lines(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return all claims, each paper's first, then each paper's second, and so on; with verdicts of `verdicts.table`.

    Keys are claim, paper, exhibit (anchor of the deciding table or figure), threshold and measured (effect, in words),
    and verdicts (class of evidence -> one verdict per model, as `_model_verdict`).
    """
    ranked: list[tuple[int, Claim]] = []
    for paper in paper_versions():
        ranked += enumerate(claim for claim in claims() if claim.id.partition("/")[0] == paper)
    return [_line(claim, frame[frame["claim"] == claim.id]) for _, claim in sorted(ranked, key=lambda entry: entry[0])]


def headline_count() -> int:
    """Return how many of the first `claim_lines` belong on the first screen."""
    return sum(
        min(HEADLINES, sum(claim.id.partition("/")[0] == paper for claim in claims())) for paper in paper_versions()
    )


def verdict_totals(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Count the claims by verdict, per model and class of evidence.

    Keys are evidence_class, model (with size and scale; "" if none ran) and counts (mark and number of claims of each
    of `VERDICTS`; without runs of the model, they are "not run").
    """
    totals = []
    for name, model, rows in verdict_texts.models_judged(frame):
        by_claim = rows["verdict"].value_counts()
        counts = {verdict: int(by_claim.get(verdict, 0)) for verdict in VERDICTS}
        counts[NOT_RUN] = len(claims()) - sum(counts[verdict] for verdict in VERDICTS if verdict != NOT_RUN)
        marked = [(_marks(name)[verdict], count) for verdict, count in counts.items()]
        totals.append({"evidence_class": name, "model": model, "counts": marked})
    return totals


def _marks(evidence_class: str) -> dict[str, VerdictMark]:
    return TOY_MARKS if evidence_class == TOY_CLASS else MARKS


def _line(claim: Claim, rows: pd.DataFrame) -> dict[str, Any]:
    ran = rows[rows["verdict"] != NOT_RUN]
    order = order_scales(dict.fromkeys(ran["scale"]))
    ran = ran.sort_values("scale", key=lambda scales: scales.map(order.index), kind="stable")
    by_class = {
        name: [_model_verdict(claim, row) for _, row in ran[ran["evidence_class"] == name].iterrows()]
        for name in EVIDENCE_CLASSES
    }
    experiment = grid.load(claim.exhibit)
    return {
        "claim": claim,
        "paper": version_name(claim.id.partition("/")[0]),
        "exhibit": file_stem(experiment.paper, experiment.exhibit),
        "threshold": verdict_texts.threshold_text(claim),
        "measured": verdict_texts.statistic_text(claim),
        "verdicts": by_class,
    }


def _model_verdict(claim: Claim, row: pd.Series) -> dict[str, Any]:
    """Return the verdict of one model's records, in words, with its mark and evidence."""
    effect = verdict_texts.effect_text(claim, row)
    return {
        "mark": _marks(row["evidence_class"])[row["verdict"]],
        "verdict": verdict_texts.verdict_text(row),
        "model": verdict_texts.model_and_scale(row),
        "effect": "" if effect == ABSENT else effect,
        "times": verdict_texts.times_text(claim, row),
        "evidence": verdict_texts.evidence_text(claim, row),
        "decided_by": row["decided_by"],
    }
