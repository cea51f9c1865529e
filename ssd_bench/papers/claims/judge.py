"""Verdict of the records on each claim: an effect with its interval, and one of four verdicts.

The rule of the verdict is in `claims`, the interval in `effect`. A claim about speed is judged by modelled times if all
of its records count their work, and the judgement by the measured times is kept next to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ssd_bench.papers.claims.claims import STATISTICS, Claim, claims
from ssd_bench.papers.claims.comparisons import ClaimComparison, cell_name, comparisons
from ssd_bench.papers.claims.effect import ClaimEffect, SampledComparison, sample_comparison
from ssd_bench.papers.ours.cells import TOY_MODEL, Cell, Replication
from ssd_bench.papers.ours.ran import ModelRan

HOLDS, FAILS, CANNOT_SAY, NOT_RUN = "holds", "fails", "cannot say", "not run"
VERDICTS = (HOLDS, FAILS, CANNOT_SAY, NOT_RUN)


@dataclass(frozen=True)
class Judgement:
    """A claim and the verdict of the records of one scale.

    Attributes:
        verdict: one of `VERDICTS`.
        reason: why the verdict or the run is missing; "" otherwise.
        effect, low, high: effect in the claim's unit, with its 95 % interval; None if undefined.
        n: number of distinct prompts, or of searches for a statistic with one number per run.
        comparisons: number of comparisons that the effect is pooled over; planned: number that the exhibit has.
        variation: relative standard deviation of the effect between runs; None if run-to-run variation was not measured
            or does not apply.
        models: models that ran.
        toy: whether this project trained one of these.
        cells: cells that the effect is computed from.
        references: reference machines whose costs give the times of the effect; empty if they were measured, or if the
            claim is not about times.
        measured: judgement by the measured times, next to one by modelled times.
    """

    claim: Claim
    scale: str
    verdict: str
    reason: str = ""
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    comparisons: int = 0
    planned: int = 0
    variation: float | None = None
    models: tuple[ModelRan, ...] = ()
    toy: bool = False
    cells: tuple[Cell, ...] = field(default=(), repr=False)
    references: tuple[str, ...] = ()
    measured: Judgement | None = None


def judge(replications: Sequence[Replication], paper: str | None = None) -> list[Judgement]:
    """Return the verdicts on all claims, or on those of a paper, at every scale of their exhibits with runs.

    A claim without runs is "not run".
    """
    judgements = []
    for claim in (claim for claim in claims() if paper in (None, claim.id.partition("/")[0])):
        scales = [replication for replication in replications if replication.experiment.name == claim.exhibit]
        judgements += [judge_claim(claim, replication) for replication in scales] or [
            Judgement(claim, "", NOT_RUN, "no runs yet")
        ]
    return judgements


def judge_claim(claim: Claim, replication: Replication) -> Judgement:
    """Return the verdict on a claim by the records of one experiment and scale."""
    planned = _planned_comparisons(claim, replication)
    complete = [comparison for comparison in planned if all(cell.record for cell in comparison.cells)]
    # comparisons of the same runs count once: at a small scale one run represents several models
    distinct = list({tuple(side.identity for side in comparison.sides): comparison for comparison in complete}.values())
    cells = tuple({cell.path: cell for comparison in distinct for cell in comparison.cells}.values())
    undecided = Judgement(claim, replication.scale, CANNOT_SAY, planned=len(planned))
    if not distinct:
        failed = sorted({cell.error for comparison in planned for cell in comparison.cells if cell.error})
        reason = f"a run failed: {failed[0]}" if failed else "no comparison has all of its runs yet"
        return replace(undecided, verdict=NOT_RUN, reason=reason)
    record_error = next((cell.record.error for cell in cells if cell.record and cell.record.error), None)
    if record_error:
        return replace(undecided, reason=f"a record cannot be read: {record_error}")
    undecided = replace(
        undecided,
        comparisons=len(distinct),
        models=tuple(dict.fromkeys(cell.model_ran for cell in cells)),
        toy=any(cell.setup == TOY_MODEL for cell in cells),
        cells=cells,
    )
    measured = _decide(undecided, distinct, replication.exclusions)
    if not (references := _references(claim, cells)):
        return measured
    return _decide(replace(undecided, references=references, measured=measured), distinct, replication.exclusions)


def _references(claim: Claim, cells: Sequence[Cell]) -> tuple[str, ...]:
    """Return the reference machines of a claim's records; empty if times play no role or a record lacks its work."""
    modelled = [cell.summary.modelled for cell in cells]
    if not STATISTICS[claim.statistic].timed or None in modelled:
        return ()
    return tuple(dict.fromkeys(numbers.modelled_on for numbers in modelled if numbers is not None))


def _decide(undecided: Judgement, comparisons: Sequence[ClaimComparison], exclusions: Mapping[Cell, str]) -> Judgement:
    """Return the judgement with the effect of the comparisons and its verdict, or the reason why it has none.

    Args:
        undecided: "cannot say", with the cells of the comparisons; its times are modelled if it has references.
    """
    claim, modelled = undecided.claim, bool(undecided.references)
    if reason := _exclusion(undecided, comparisons, exclusions):
        return replace(undecided, reason=reason)
    sampled: list[SampledComparison] = []
    for comparison in comparisons:
        sample = sample_comparison(claim, comparison, modelled)
        if isinstance(sample, str):
            return replace(undecided, reason=sample)
        sampled.append(sample)
    effect = ClaimEffect(claim, sampled, modelled)
    undecided = replace(undecided, effect=effect.value, n=effect.n, variation=effect.variation, reason=effect.lacking)
    if undecided.reason:
        return undecided
    low, high = effect.interval()
    verdict = _verdict(claim, effect.value, low, high)
    reason = _undecided_reason(claim, effect.value) if verdict == CANNOT_SAY else ""
    return replace(undecided, verdict=verdict, low=low, high=high, reason=reason)


def _planned_comparisons(claim: Claim, replication: Replication) -> list[ClaimComparison]:
    """Return all comparisons of the claim in its exhibit, also those whose runs are not in the index."""
    indexed_labels = {tuple(cell.labels.values()) for cell in replication.cells}
    jobs = (job for job in replication.experiment.jobs if tuple(job.labels.values()) not in indexed_labels)
    return list(comparisons(claim, [*replication.cells, *(Cell(job.labels, job.overrides) for job in jobs)]))


def _verdict(claim: Claim, effect: float, low: float, high: float) -> str:
    """Return the verdict on an effect with its interval, by the rule in `claims`."""
    if claim.at_most is not None:
        return HOLDS if high <= claim.at_most else FAILS if low > claim.at_most else CANNOT_SAY
    assert claim.at_least is not None, "a claim has one of the two"
    if high < claim.at_least:
        return FAILS
    no_effect = _no_effect(claim)
    beyond_none = low > no_effect if claim.at_least >= no_effect else low >= claim.at_least
    return HOLDS if effect >= claim.at_least and beyond_none else CANNOT_SAY


def _no_effect(claim: Claim) -> float:
    """Return the value of no effect."""
    return claim.none if claim.none is not None else 1.0 if claim.effect == "ratio" else 0.0


def _undecided_reason(claim: Claim, effect: float) -> str:
    """Return the reason why an effect with its interval decides nothing."""
    if claim.at_most is not None:
        return f"the interval contains the threshold {claim.at_most:g}"
    assert claim.at_least is not None, "a claim has one of the two"
    if effect < claim.at_least:
        return f"the effect is below the threshold {claim.at_least:g}, but its interval extends above it"
    return f"the interval extends down to {min(_no_effect(claim), claim.at_least):g} or below"


def _exclusion(undecided: Judgement, comparisons: Sequence[ClaimComparison], exclusions: Mapping[Cell, str]) -> str:
    """Return the reason why the cells decide nothing, whatever their numbers; "" if they can decide."""
    claim, references = undecided.claim, undecided.references
    # modelled times do not depend on the machine of the runs, nor on what else ran there
    is_measured = STATISTICS[claim.statistic].variation and not references
    for cell in undecided.cells:
        if exclusions[cell]:
            return f"excluded: {cell_name(cell)}: {exclusions[cell]}"
        if cell.summary.n_prompts < claim.prompts:
            return f"{cell_name(cell)} has {cell.summary.n_prompts} prompts; {claim.prompts} are required"
        if is_measured and (warning := cell.summary.steadiness.warning):
            return f"{cell_name(cell)}: {warning}"
    if len(references) > 1:
        return f"the runs have different reference machines: {', '.join(references)}"
    if is_measured and any(len({cell.timing.machine for cell in comparison.cells}) > 1 for comparison in comparisons):
        return "the two sides were timed on different machines"
    return ""
