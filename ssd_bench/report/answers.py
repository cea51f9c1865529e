"""The first screen: what the records are, which claims hold, which method to use, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ssd_bench.metrics.text import ABSENT, END_TO_END, TOY, format_interval
from ssd_bench.papers import grid
from ssd_bench.papers.cells import Record, Replication
from ssd_bench.papers.claims import Claim, claims
from ssd_bench.papers.figures_shared import cells
from ssd_bench.papers.judge import CANNOT_SAY, FAILS, HOLDS, NOT_RUN
from ssd_bench.papers.match import order_scales
from ssd_bench.papers.ran import model_names
from ssd_bench.papers.rooms import paper_versions, version_name
from ssd_bench.papers.ssd_bench.families import FAMILIES
from ssd_bench.papers.ssd_bench.figures import COMPARISON
from ssd_bench.records.schema import device_name
from ssd_bench.report import verdicts
from ssd_bench.report.exhibits import file_stem

MARKS = {HOLDS: ("✓", "holds"), FAILS: ("✗", "fails"), CANNOT_SAY: ("?", "unsure"), NOT_RUN: ("–", "none")}


@dataclass(frozen=True)
class ModelVerdict:
    """What one model's records say of a claim.

    Attributes:
        verdict: with the model that ran and its size.
        why: there is no effect; "" where there is one.
    """

    mark: str
    style: str
    verdict: str
    effect: str
    evidence: str
    why: str


@dataclass(frozen=True)
class ClaimLine:
    """A claim on a card.

    Attributes:
        exhibit: anchor of the exhibit that decides it.
        asked: what the effect has to reach.
        said: a model each, the nearest to the paper's first.
    """

    claim: Claim
    exhibit: str
    asked: str
    measured: str
    said: Sequence[ModelVerdict]


@dataclass(frozen=True)
class Card:
    """The claims of a paper; `counts` in words."""

    paper: str
    name: str
    counts: Sequence[str]
    lines: Sequence[ClaimLine]


def describe_records(replications: Sequence[Replication], results: int) -> str:
    """Return sentences on what the records are: runs, distinct results, scale, models and machine.

    Args:
        results: distinct ones of ours that stand behind numbers of the papers.
    """
    made = {cell.path: (cell, one.scale) for one in replications for cell in one.recorded_cells()}
    if not made:
        return "There are no runs of the papers' experiments here yet."
    models = list(dict.fromkeys(cell.model_ran for cell, _ in made.values()))
    machines = dict.fromkeys(device_name(cell.header) for cell, _ in made.values())
    count = sum(1 for one in replications for _ in one.recorded_cells())
    scales = order_scales(dict.fromkeys(scale for _, scale in made.values()))
    said = (
        f"{len(made)} runs of {model_names(models)}, at scale {', '.join(scales)} on {', '.join(machines)}. They stand "
        f"behind {count} cells of {len(replications)} experiments: one run behind several where one model stands for "
        f"several of a paper's. {results} distinct results are compared with the papers' numbers."
    )
    toys = [model for model in models if model.toy]
    if not toys:
        return said
    which = "" if len(toys) == len(models) else f"Those of {model_names(toys)}: "
    return (
        f"{said} {which}{TOY[0].upper()}{TOY[1:]}s, of a model that this project trained: they show what the methods "
        "do and that the analysis works, and say nothing of the papers' models."
    )


def cards(frame: pd.DataFrame) -> list[Card]:
    """One a paper.

    Args:
        frame: of all scales and models, as `verdicts.table`.
    """
    found = []
    for paper in paper_versions():
        own = [claim for claim in claims() if claim.id.partition("/")[0] == paper]
        if own:
            rows = frame[frame["claim"].isin([claim.id for claim in own])]
            by_model = rows[rows["verdict"] != NOT_RUN].groupby("model", sort=False)
            counted = [
                f"{verdicts.model_text(group.iloc[0])}: {verdicts.verdict_counts(group)}" for _, group in by_model
            ]
            lines = [_line(claim, rows[rows["claim"] == claim.id]) for claim in own]
            found.append(Card(paper, version_name(paper), counted or ["not run"], lines))
    return found


def _line(claim: Claim, rows: pd.DataFrame) -> ClaimLine:
    ran = rows[rows["verdict"] != NOT_RUN]
    order = order_scales(dict.fromkeys((ran if len(ran) else rows.iloc[:1])["scale"]))
    said = []
    for _, row in (
        (ran if len(ran) else rows.iloc[:1]).sort_values("scale", key=lambda s: s.map(order.index)).iterrows()
    ):
        mark, style = MARKS[row["verdict"]]
        effect, evidence = verdicts.effect_text(claim, row), verdicts.evidence_text(claim, row)
        text = ", ".join(filter(None, (verdicts.verdict_text(row), verdicts.model_text(row))))
        why = str(row["reason"]) if effect == ABSENT else ""
        said.append(ModelVerdict(mark, style, text, effect, evidence, why))
    experiment = grid.load(claim.exhibit)
    anchor = file_stem(experiment.paper, experiment.exhibit)
    return ClaimLine(claim, anchor, verdicts.threshold_text(claim), verdicts.statistic_text(claim), said)


# --- which method -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MethodResult:
    """A method on a task, by one run.

    Attributes:
        method: as the comparison calls it; of a run outside it as `method=NAME` does.
        summary: `metrics.summarise` of the run.
    """

    method: str
    summary: Mapping[str, Any]


def comparison(replications: Sequence[Replication], name: str = COMPARISON) -> Replication | None:
    """Return the runs of an experiment that compares methods, at the nearest available scale to the papers'."""
    there = {
        one.scale: one for one in replications
        if one.experiment.name == name and any(cell.record and not cell.record.error for cell in one.cells)
    }  # fmt: skip
    return there[order_scales(there)[0]] if there else None


def comparisons(replications: Sequence[Replication]) -> list[Replication]:
    """Return the comparisons with runs: all methods on one model, and the families of drafts."""
    return [one for name in (COMPARISON, FAMILIES) if (one := comparison(replications, name)) is not None]


def candidates(replication: Replication, records: Sequence[Record] = ()) -> dict[str, list[MethodResult]]:
    """Return task -> its methods, the fastest end to end first; runs that decide nothing are left out.

    Args:
        records: all of the folder. A method that the comparison lacks, such as one that a user added, counts where
            task, prompts, model, hardware and choice of tokens are those of a run of the comparison; by its fastest.
    """
    found: dict[str, list[MethodResult]] = {}
    tasks_of: dict[str, set[str]] = {}
    for cell in cells(replication):
        if cell.record is not None and not cell.exclusion and cell.summary["speedup_e2e"] is not None:
            found.setdefault(cell["task"], []).append(MethodResult(cell["method"], cell.summary))
            tasks_of.setdefault(cell.record.digest.conditions, set()).add(cell["task"])
    known = {cell.header["method"] for cell in cells(replication)}
    others: dict[tuple[str, str], MethodResult] = {}
    for record in records:
        summary = None if record.error else record.summary
        if summary is None or summary["method"] in known or summary["speedup_e2e"] is None:
            continue
        if summary["searched_share"] != 0:  # 0: no search ran, so it is not the method that was timed
            for task in tasks_of.get(record.digest.conditions, ()):
                candidate = MethodResult(str(summary["method"]), summary)
                best = others.setdefault((task, candidate.method), candidate)
                others[task, candidate.method] = max(best, candidate, key=lambda one: one.summary["speedup_e2e"])
    for (task, _), candidate in others.items():
        found[task].append(candidate)
    return {task: sorted(own, key=lambda one: -one.summary["speedup_e2e"]) for task, own in found.items()}


def advice(replication: Replication, records: Sequence[Record] = ()) -> Iterator[str]:
    """Yield for each task the method to use, by these records.

    Args:
        records: as in `candidates`.
    """
    for task, own in candidates(replication, records).items():
        best = own[0]
        if not _faster(best):
            yield f"{task}: plain decoding. None is surely faster; the best is {best.method}, {_end_to_end(best)}."
            continue
        near = [one for one in own[1:] if _high(one) >= best.summary["speedup_e2e"]]
        level = [one.method for one in near if one.summary["speedup_e2e"] >= 1]
        beside = f". Not to be told from it: {', '.join(level)}" if level else ""
        yield f"{task}: {best.method}, {_end_to_end(best)}{beside}."


def conditions(replication: Replication, records: Sequence[Record] = ()) -> str:
    """Return the conditions under which the advice holds.

    Args:
        records: as in `candidates`.
    """
    one = next(cell for cell in cells(replication) if cell.record)
    summary, decode = one.summary, one.header.get("decode") or {}
    sampled = decode.get("mode", "greedy") != "greedy"
    how = f"sampling at temperature {decode['temperature']}" if sampled else "greedy"
    compared = {cell["method"] for cell in cells(replication)}
    compared |= {one.method for own in candidates(replication, records).values() for one in own}
    return (
        f"Of {one.model_ran.text} ({summary['dtype']}) on {summary['device']}, {how}, one prompt at a time, "
        f"n = {summary['n_prompts']} prompts a cell, the time of a search before the run left out. The best of "
        f"{len(compared)} is chosen by these numbers, which its interval does not count."
    )


def _end_to_end(candidate: MethodResult) -> str:
    return f"{format_interval(candidate.summary, 'speedup_e2e')}× {END_TO_END.partition(', ')[2]}"


def _faster(candidate: MethodResult) -> bool:
    low = candidate.summary["speedup_e2e_lo"]
    return low is not None and low > 1


def _high(candidate: MethodResult) -> float:
    high = candidate.summary["speedup_e2e_hi"]
    return math.inf if high is None else float(high)
