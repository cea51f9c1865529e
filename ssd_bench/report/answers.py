"""The first screen: what the records are, which claims hold, which method to use, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from ssd_bench.metrics.text import ABSENT, END_TO_END, TOY, spread
from ssd_bench.papers import grid
from ssd_bench.papers.cells import Cell, Replication
from ssd_bench.papers.claims import Claim, claims
from ssd_bench.papers.figures_shared import cells
from ssd_bench.papers.judge import CANNOT_SAY, FAILS, HOLDS, NOT_RUN
from ssd_bench.papers.match import ordered
from ssd_bench.papers.ran import named
from ssd_bench.papers.rooms import name_of, papers
from ssd_bench.papers.ssd_bench.figures import COMPARISON
from ssd_bench.records.schema import device_name
from ssd_bench.report import verdicts
from ssd_bench.report.exhibits import stem

MARKS = {HOLDS: ("✓", "holds"), FAILS: ("✗", "fails"), CANNOT_SAY: ("?", "unsure"), NOT_RUN: ("–", "none")}


@dataclass(frozen=True)
class Said:
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
class Line:
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
    said: Sequence[Said]


@dataclass(frozen=True)
class Card:
    """The claims of a paper; `counts` in words."""

    paper: str
    name: str
    counts: Sequence[str]
    lines: Sequence[Line]


def standing(replications: Sequence[Replication], results: int) -> str:
    """Return sentences on what the records are: runs, distinct results, scale, models and machine.

    Args:
        results: distinct ones of ours that stand behind numbers of the papers.
    """
    made = {cell.path: (cell, one.scale) for one in replications for cell in one.where()}
    if not made:
        return "There are no runs of the papers' experiments here yet."
    models = list(dict.fromkeys(cell.ran for cell, _ in made.values()))
    machines = dict.fromkeys(device_name(cell.header) for cell, _ in made.values())
    count = sum(1 for one in replications for _ in one.where())
    scales = ordered(dict.fromkeys(scale for _, scale in made.values()))
    said = (
        f"{len(made)} runs of {named(models)}, at scale {', '.join(scales)} on {', '.join(machines)}. They stand "
        f"behind {count} cells of {len(replications)} experiments: one run behind several where one model stands for "
        f"several of a paper's. {results} distinct results are compared with the papers' numbers."
    )
    toys = [model for model in models if model.toy]
    if not toys:
        return said
    which = "" if len(toys) == len(models) else f"Those of {named(toys)}: "
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
    for paper in papers():
        own = [claim for claim in claims() if claim.id.partition("/")[0] == paper]
        if own:
            rows = frame[frame["claim"].isin([claim.id for claim in own])]
            by_model = rows[rows["verdict"] != NOT_RUN].groupby("model", sort=False)
            counted = [f"{verdicts.model_ran(group.iloc[0])}: {verdicts.counts(group)}" for _, group in by_model]
            lines = [_line(claim, rows[rows["claim"] == claim.id]) for claim in own]
            found.append(Card(paper, name_of(paper), counted or ["not run"], lines))
    return found


def _line(claim: Claim, rows: pd.DataFrame) -> Line:
    ran = rows[rows["verdict"] != NOT_RUN]
    order = ordered(dict.fromkeys((ran if len(ran) else rows.iloc[:1])["scale"]))
    said = []
    for _, row in (
        (ran if len(ran) else rows.iloc[:1]).sort_values("scale", key=lambda s: s.map(order.index)).iterrows()
    ):
        mark, style = MARKS[row["verdict"]]
        effect, evidence = verdicts.effect(claim, row), verdicts.evidence(claim, row)
        text = ", ".join(filter(None, (verdicts.text(row), verdicts.model_ran(row))))
        why = str(row["reason"]) if effect == ABSENT else ""
        said.append(Said(mark, style, text, effect, evidence, why))
    experiment = grid.load(claim.exhibit)
    anchor = stem(experiment.paper, experiment.exhibit)
    return Line(claim, anchor, verdicts.threshold(claim), verdicts.measured(claim), said)


# --- which method -----------------------------------------------------------------------------------------------------


def comparison(replications: Sequence[Replication]) -> Replication | None:
    """The runs of all methods on one model, at the scale nearest to the papers' that there is."""
    there = {
        one.scale: one for one in replications
        if one.experiment.name == COMPARISON and any(cell.record and not cell.record.error for cell in one.cells)
    }  # fmt: skip
    return there[ordered(there)[0]] if there else None


def advice(replication: Replication) -> Iterator[str]:
    """Which method to use on which task, by these records, and under which conditions they say so."""
    drawn = [cell for cell in cells(replication) if not cell.void and cell.summary["speedup_e2e"] is not None]
    for task in dict.fromkeys(cell["task"] for cell in drawn):
        own = sorted((cell for cell in drawn if cell["task"] == task), key=lambda cell: -cell.summary["speedup_e2e"])
        best = own[0]
        if not _faster(best):
            yield f"{task}: plain decoding. None is surely faster; the best is {best['method']}, {_end_to_end(best)}."
            continue
        near = [cell for cell in own[1:] if _high(cell) >= best.summary["speedup_e2e"]]
        level = [cell["method"] for cell in near if cell.summary["speedup_e2e"] >= 1]
        beside = f". Not to be told from it: {', '.join(level)}" if level else ""
        yield f"{task}: {best['method']}, {_end_to_end(best)}{beside}."


def conditions(replication: Replication) -> str:
    """Under which the advice holds."""
    one = next(cell for cell in cells(replication) if cell.record)
    summary, decode = one.summary, one.header.get("decode") or {}
    sampled = decode.get("mode", "greedy") != "greedy"
    how = f"sampling at temperature {decode['temperature']}" if sampled else "greedy"
    methods = len({cell["method"] for cell in cells(replication)})
    return (
        f"Of {one.ran.text} ({summary['dtype']}) on {summary['device']}, {how}, one prompt at a time, "
        f"n = {summary['n_prompts']} prompts a cell, the time of a search before the run left out. The best of "
        f"{methods} is chosen by these numbers, which its interval does not count."
    )


def _end_to_end(cell: Cell) -> str:
    return f"{spread(cell.summary, 'speedup_e2e')}× {END_TO_END.partition(', ')[2]}"


def _faster(cell: Cell) -> bool:
    low = cell.summary["speedup_e2e_lo"]
    return low is not None and low > 1


def _high(cell: Cell) -> float:
    high = cell.summary["speedup_e2e_hi"]
    return math.inf if high is None else float(high)
