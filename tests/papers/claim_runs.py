"""Made-up records behind claims, and the claims' verdicts on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ssd_bench.papers.claims import judge
from ssd_bench.papers.claims.claims import Claim, claims
from ssd_bench.papers.claims.comparisons import ClaimComparison, Side
from ssd_bench.papers.claims.effect import ClaimEffect, SampledComparison
from ssd_bench.papers.claims.judge import Judgement
from ssd_bench.papers.claims.statistics import StatisticSample
from ssd_bench.papers.ours.cells import replications
from ssd_bench.papers.runs import grid
from ssd_bench.records.schema import PromptRecord
from ssd_bench.results.quantity import ratio_of_sums
from tests import synthetic
from tests.exhibit_runs import MINIATURE, indexed

Units = list[list[PromptRecord]]
Runs = Callable[[grid.Job], str | None]
PLAIN = {"name": "miniature_plain", "toy": True}


def named(name: str) -> Claim:
    return next(claim for claim in claims() if claim.id == name)


def timed(units: Units, factor: float) -> Units:
    """The same trace with the method's times multiplied."""
    for method in (record for unit in units for record in unit if record.prompt.arm == "method"):
        for row in (method.prompt, *method.steps):
            for name in ("decode_ms", "draft_ms", "verify_ms", "policy_ms"):
                if hasattr(row, name):
                    setattr(row, name, getattr(row, name) * factor)
    return units


def searched(units: Units, when: Callable[[int], bool] = lambda step: step > 2) -> Units:
    """Add a search at the first step of each prompt; `when` says which steps draft with its set."""
    for step in (step for unit in units for record in unit for step in record.steps if record.prompt.arm == "method"):
        step.searched = when(step.step) if step.draft_len else None
        if step.step == 1 and when(10):
            step.est_alpha, step.est_draft_len, step.est_tokens_per_s = 0.8, 4, 150.0
    return units


def write(folder: Path, name: str, units: Units, **changes: Any) -> str:
    synthetic.write_record(folder / name, units, **{"run_id": name, "model": MINIATURE} | changes)
    return name


def make(
    folder: Path, name: str, accept: float, factor: float = 1.0, search: bool = True, prompts: int = 20, **changes: Any
) -> str:
    units = searched([synthetic.unit(i, accept=accept) for i in range(prompts)], lambda step: search and step > 2)
    return write(folder, name, timed(units, factor), **changes)


def by_label(axis: str, runs: Mapping[str, str]) -> Runs:
    return lambda job: runs.get(job.labels[axis])


def ablation(own: str = "own", uniform: str = "uniform") -> Runs:
    """The runs behind two cells of SWIFT's ablation."""
    return by_label("setting", {"ablation=none": own, "ablation=w/o dynamic ver.": uniform})


def judged(folder: Path, claim: str | Claim, runs: Runs, options: Sequence[str] = ()) -> Judgement:
    """The verdict on a claim by the records that `runs` names for its exhibit's jobs, with further options."""
    claim = named(claim) if isinstance(claim, str) else claim
    indexed(folder, claim.exhibit, "mini", runs, own_traces=False, options=options)
    (made,) = [replication for replication in replications(folder) if replication.experiment.name == claim.exhibit]
    return judge.judge_claim(claim, made)


def verdict_of(
    folder: Path, own: str = "own", uniform: str = "uniform", claim: str | Claim = "swift/more_candidates_help"
) -> Judgement:
    """The verdict on a claim that compares two cells of SWIFT's ablation; 1.05 times is asked."""
    return judged(folder, claim, ablation(own, uniform))


def samples(values: Sequence[Sequence[float]], name: str = "p") -> StatisticSample:
    """The columns of a ratio of sums, a row for each prompt, whose names begin with `name`."""
    columns = np.array(values, dtype=float)
    return StatisticSample(np.array([f"{name}{i}" for i in range(len(columns))]), columns, ratio_of_sums)


def effect(
    claim: Claim, places: Sequence[Sequence[StatisticSample]], modelled: bool = False, by_seed: bool = False
) -> ClaimEffect:
    """The effect of comparisons with these sides; with `by_seed`, one for each seed."""
    side = Side((), {}, claim.statistic)
    compared = [ClaimComparison(side, (side,), seed=i if by_seed else 0) for i in range(len(places))]
    sampled = [SampledComparison(*pair) for pair in zip(compared, map(tuple, places))]
    return ClaimEffect(claim, sampled, modelled, by_seed)
