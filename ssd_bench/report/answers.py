"""Top of the page: a description of the records, the claims that hold, and the method to use, with the evidence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from ssd_bench.metrics.summary import Summary
from ssd_bench.metrics.text import ABSENT, END_TO_END, TOY, format_measured
from ssd_bench.papers.claims.claims import Claim, claims
from ssd_bench.papers.claims.judge import CANNOT_SAY, FAILS, HOLDS, NOT_RUN
from ssd_bench.papers.ours.cells import Record, Replication
from ssd_bench.papers.ours.match import order_scales
from ssd_bench.papers.ours.ran import model_names
from ssd_bench.papers.printed.catalogue import paper_versions, version_name
from ssd_bench.papers.runs import grid
from ssd_bench.papers.ssd_bench.families import FAMILIES
from ssd_bench.papers.ssd_bench.figures import COMPARISON
from ssd_bench.report import verdicts
from ssd_bench.report.numbers import file_stem

MARKS = {HOLDS: ("✓", "holds"), FAILS: ("✗", "fails"), CANNOT_SAY: ("?", "unsure"), NOT_RUN: ("–", "none")}


@dataclass(frozen=True)
class ModelVerdict:
    """Verdict of one model's records on a claim.

    Attributes:
        verdict: verdict with the model that ran and its size.
        times: whether the times of the effect are modelled or measured, and the measured effect next to a modelled one.
        why: reason why the effect is undefined; else "".
    """

    mark: str
    style: str
    verdict: str
    effect: str
    times: str
    evidence: str
    why: str


@dataclass(frozen=True)
class ClaimLine:
    """A claim on a card.

    Attributes:
        exhibit: anchor of the table or figure that decides it.
        threshold: threshold of the effect.
        measured: statistic of the effect, in words.
        verdicts: one verdict per model, in the order of the scales, the nearest to the paper's first.
    """

    claim: Claim
    exhibit: str
    threshold: str
    measured: str
    verdicts: Sequence[ModelVerdict]


@dataclass(frozen=True)
class Card:
    """Claims of a paper; `counts` has the verdicts in words, per model."""

    paper: str
    name: str
    counts: Sequence[str]
    lines: Sequence[ClaimLine]


def describe_records(replications: Sequence[Replication], results: int) -> str:
    """Return sentences on the records: runs, distinct results, scale, models and machine.

    Args:
        results: number of our distinct results that are compared with numbers of the papers.
    """
    by_path = {
        cell.path: (cell, replication.scale) for replication in replications for cell in replication.recorded_cells()
    }
    if not by_path:
        return "There are no runs of the papers' experiments in this folder yet."
    models = list(dict.fromkeys(cell.model_ran for cell, _ in by_path.values()))
    machines = dict.fromkeys(cell.header.device_name for cell, _ in by_path.values())
    count = sum(1 for replication in replications for _ in replication.recorded_cells())
    scales = order_scales(dict.fromkeys(scale for _, scale in by_path.values()))
    text = (
        f"This page shows {len(by_path)} runs of {model_names(models)}, at scale {', '.join(scales)}, on "
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


def cards(frame: pd.DataFrame) -> list[Card]:
    """Return one card per paper with claims.

    Args:
        frame: verdicts of all scales and models, as from `verdicts.table`.
    """
    cards_of_papers = []
    for paper in paper_versions():
        paper_claims = [claim for claim in claims() if claim.id.partition("/")[0] == paper]
        if paper_claims:
            rows = frame[frame["claim"].isin([claim.id for claim in paper_claims])]
            by_model = rows[rows["verdict"] != NOT_RUN].groupby("model", sort=False)
            counts = [
                f"{verdicts.model_text(group.iloc[0])}: {verdicts.verdict_counts(group)}" for _, group in by_model
            ]
            lines = [_line(claim, rows[rows["claim"] == claim.id]) for claim in paper_claims]
            cards_of_papers.append(Card(paper, version_name(paper), counts or ["not run"], lines))
    return cards_of_papers


def _line(claim: Claim, rows: pd.DataFrame) -> ClaimLine:
    ran = rows[rows["verdict"] != NOT_RUN]
    order = order_scales(dict.fromkeys((ran if len(ran) else rows.iloc[:1])["scale"]))
    model_verdicts = []
    for _, row in (
        (ran if len(ran) else rows.iloc[:1]).sort_values("scale", key=lambda s: s.map(order.index)).iterrows()
    ):
        mark, style = MARKS[row["verdict"]]
        effect, evidence = verdicts.effect_text(claim, row), verdicts.evidence_text(claim, row)
        text = ", ".join(filter(None, (verdicts.verdict_text(row), verdicts.model_text(row))))
        reason = str(row["reason"]) if effect == ABSENT else ""
        times = verdicts.times_text(claim, row)
        model_verdicts.append(ModelVerdict(mark, style, text, effect, times, evidence, reason))
    experiment = grid.load(claim.exhibit)
    anchor = file_stem(experiment.paper, experiment.exhibit)
    return ClaimLine(claim, anchor, verdicts.threshold_text(claim), verdicts.statistic_text(claim), model_verdicts)


# --- which method -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MethodResult:
    """Result of a method on a task, from one run.

    Attributes:
        method: name in the comparison; for a run outside the comparison, the name in `method=NAME`.
        summary: `metrics.summarise` of the run.
    """

    method: str
    summary: Summary


def comparison(replications: Sequence[Replication], name: str = COMPARISON) -> Replication | None:
    """Return the runs of an experiment that compares methods, at the available scale nearest to the papers' scale."""
    by_scale = {
        replication.scale: replication
        for replication in replications
        if replication.experiment.name == name and any(cell.is_readable for cell in replication.cells)
    }
    return by_scale[order_scales(by_scale)[0]] if by_scale else None


def comparisons(replications: Sequence[Replication]) -> list[Replication]:
    """Return the comparisons with runs: all methods on one model, and the families of drafts."""
    return [
        replication for name in (COMPARISON, FAMILIES) if (replication := comparison(replications, name)) is not None
    ]


def candidates(replication: Replication, records: Sequence[Record] = ()) -> dict[str, list[MethodResult]]:
    """Return task -> its methods, the fastest end to end first; excluded runs are left out.

    Args:
        records: all records of the folder. A method that is not in the comparison, such as a user's method, is added
            with its fastest run if a run of the comparison has the same task, prompts, model, hardware and choice of
            tokens.
    """
    results: dict[str, list[MethodResult]] = {}
    tasks_of: dict[str, set[str]] = {}
    for cell in replication.shown_cells():
        if cell.record is not None and not cell.exclusion and cell.summary.speedup_e2e.value is not None:
            results.setdefault(cell["task"], []).append(MethodResult(cell["method"], cell.summary))
            tasks_of.setdefault(cell.record.digest.conditions, set()).add(cell["task"])
    compared = {cell.header.method for cell in replication.shown_cells()}
    added: dict[tuple[str, str], MethodResult] = {}
    for record in records:
        summary = None if record.error else record.summary
        if summary is None or summary.method in compared or summary.speedup_e2e.value is None:
            continue
        if summary.searched_share != 0:  # 0: no search ran, so the method itself was not timed
            for task in tasks_of.get(record.digest.conditions, ()):
                candidate = MethodResult(summary.method, summary)
                previous = added.setdefault((task, candidate.method), candidate)
                added[task, candidate.method] = max(previous, candidate, key=_speedup)
    for (task, _), candidate in added.items():
        results[task].append(candidate)
    return {task: sorted(methods, key=lambda result: -_speedup(result)) for task, methods in results.items()}


def _speedup(result: MethodResult) -> float:
    return result.summary.speedup_e2e.value or 0.0


def advice(replication: Replication, records: Sequence[Record] = ()) -> Iterator[str]:
    """Yield, for each task, a sentence on the method to use according to these records.

    Args:
        records: as in `candidates`.
    """
    for task, methods in candidates(replication, records).items():
        best = methods[0]
        if not _is_faster(best):
            yield (
                f"{task}: plain decoding (AR). No method is significantly faster; the fastest is {best.method}, "
                f"{_end_to_end(best)}."
            )
            continue
        # statistically indistinguishable: the interval reaches the best speedup
        near = [result for result in methods[1:] if _high(result) >= _speedup(best)]
        ties = [result.method for result in near if _speedup(result) >= 1]
        tie_text = f". Statistically indistinguishable from it: {', '.join(ties)}" if ties else ""
        yield f"{task}: {best.method}, {_end_to_end(best)}{tie_text}."


def conditions(replication: Replication, records: Sequence[Record] = ()) -> str:
    """Return the conditions under which the advice holds.

    Args:
        records: as in `candidates`.
    """
    cell_with_run = next(cell for cell in replication.shown_cells() if cell.record)
    summary, decode = cell_with_run.summary, cell_with_run.header.decode
    decoding = "greedy decoding" if decode.greedy else f"sampling at temperature {decode.temperature}"
    compared = {cell["method"] for cell in replication.shown_cells()}
    compared |= {result.method for methods in candidates(replication, records).values() for result in methods}
    return (
        f"Measured with {cell_with_run.model_ran.text} ({summary.dtype}) on {summary.device}: {decoding}, one "
        f"prompt at a time, n = {summary.n_prompts} prompts per method and task. The time of a search before the "
        f"run is not included. The best of {len(compared)} methods is chosen with the same data; its interval is not "
        "corrected for this choice."
    )


def _end_to_end(result: MethodResult) -> str:
    return f"{format_measured(result.summary.speedup_e2e)}× {END_TO_END.partition(', ')[2]}"


def _is_faster(result: MethodResult) -> bool:
    low = result.summary.speedup_e2e.low
    return low is not None and low > 1


def _high(result: MethodResult) -> float:
    high = result.summary.speedup_e2e.high
    return math.inf if high is None else high
