"""Verdict of the records on each claim: an effect with its interval, and one of six verdicts.

The rule is in `claims`, the interval in `effect`. A claim about speed is judged by modelled times; the judgement by
measured times is kept next to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from ssd_bench.papers.claims.claims import RULE_WRITTEN, SEARCHES, STATISTICS, Claim, claims
from ssd_bench.papers.claims.comparisons import ClaimComparison, cell_name, comparisons
from ssd_bench.papers.claims.effect import ClaimEffect, SampledComparison, sample_comparison
from ssd_bench.papers.claims.scope import Lack, model_lack, planted_lack, rests_on_searches, run_scope, split_scope
from ssd_bench.papers.ours.cells import OTHER_MODEL, TOY_MODEL, Cell, Replication
from ssd_bench.papers.runs.scale import scaled_settings
from ssd_bench.results.effect import EQUIVALENT, is_equivalent
from ssd_bench.results.models import ModelRan
from ssd_bench.results.quantity import EQUIVALENCE_LEVEL

HOLDS, FAILS = "holds", "fails"
DEPENDS, CANNOT_SAY, NOT_RUN = "depends on the machine", "cannot say", "not run"
DECIDED = (HOLDS, FAILS, EQUIVALENT)
VERDICTS = (*DECIDED, DEPENDS, CANNOT_SAY, NOT_RUN)
PAPERS_MODEL, REAL_MODEL, TOY = "the paper's model", "another real model", TOY_MODEL
EVIDENCE_CLASSES = (PAPERS_MODEL, REAL_MODEL, TOY)


@dataclass(frozen=True)
class Judgement:
    """A claim and the verdict of the records of one scale; docs/glossary.md explains most fields.

    Attributes:
        reason: why verdict or run is missing, or "".
        effect, low, high: effect in the claim's unit, with its 95 % interval; None if undefined.
        n: distinct prompts, or seeds if these are the sample.
        by_seed: whether seeds are the sample (prompts share a search, or a run gives one number).
        comparisons, planned: numbers of pooled comparisons and of all in the exhibit.
        evidence_class: of `EVIDENCE_CLASSES`, for the run least similar to the paper's; "" without runs.
        decided_by: runs that would decide an undecided claim, if known without its effect, or "".
        cells: from which the effect is computed.
        references: reference machines of modelled times; empty for a claim not about times.
        measured: judgement by measured times, next to one by modelled times.
    """

    claim: Claim
    scale: str
    verdict: str
    reason: str = ""
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    by_seed: bool = False
    loops: int = 0
    scaled: tuple[str, ...] = ()
    comparisons: int = 0
    planned: int = 0
    out_of_scope: int = 0
    variation: float | None = None
    models: tuple[ModelRan, ...] = ()
    toy: bool = False
    evidence_class: str = ""
    decided_by: str = ""
    after_runs: bool = False
    cells: tuple[Cell, ...] = field(default=(), repr=False)
    references: tuple[str, ...] = ()
    measured: Judgement | None = None


def judge(replications: Sequence[Replication], paper: str | None = None) -> list[Judgement]:
    """Return the verdicts on all claims, or a paper's, at every scale of their exhibits with runs.

    A claim without runs is "not run".
    """
    judgements = []
    for claim in claims():
        if paper in (None, claim.id.partition("/")[0]):
            judged = [judge_claim(claim, made) for made in replications if made.experiment.name == claim.exhibit]
            judgements += judged or [Judgement(claim, "", NOT_RUN, "no runs yet")]
    return judgements


def judge_claim(claim: Claim, replication: Replication) -> Judgement:
    """Return the verdict on a claim by the records of one experiment and scale."""
    indexed_labels = {tuple(cell.labels.values()) for cell in replication.cells}
    jobs = [job for job in replication.experiment.jobs if tuple(job.labels.values()) not in indexed_labels]
    planned = [*comparisons(claim, [*replication.cells, *(Cell(job.labels, job.overrides) for job in jobs)])]
    complete = [comparison for comparison in planned if all(cell.record for cell in comparison.cells)]
    undecided = Judgement(claim, replication.scale, CANNOT_SAY, planned=len(planned))
    if reason := STATISTICS[claim.statistic].unrecorded:
        return replace(undecided, verdict=NOT_RUN, reason=reason, decided_by="records that have it")
    if not complete:
        failed = sorted({cell.error for comparison in planned for cell in comparison.cells if cell.error})
        reason = f"a run failed: {failed[0]}" if failed else "no comparison has all of its runs yet"
        return replace(undecided, verdict=NOT_RUN, reason=reason)
    if errors := [cell.record.error for cell in _cells(complete) if cell.record and cell.record.error]:
        return replace(undecided, reason=f"a record cannot be read: {errors[0]}")
    if lack := model_lack(claim, _models(complete)):
        return replace(undecided, verdict=NOT_RUN, reason=lack.reason, decided_by=f"runs of {lack.decided_by}")
    # comparisons of equal traces count once, the first of them: at a small scale one run represents several models, and
    # a setting may make no difference
    distinct = list({comparison.identity: comparison for comparison in reversed(complete)}.values())[::-1]
    in_scope, lack = split_scope(claim, distinct)
    counted = in_scope or distinct
    setups = {cell.setup for cell in _cells(counted)}
    undecided = replace(
        undecided,
        comparisons=len(counted),
        out_of_scope=len(distinct) - len(in_scope),
        models=_models(counted),
        toy=TOY_MODEL in setups,
        evidence_class=TOY if TOY_MODEL in setups else REAL_MODEL if OTHER_MODEL in setups else PAPERS_MODEL,
    )
    by_seed = rests_on_searches(claim, counted)
    if by_seed:
        counted = [*counted, *_repeated_comparisons(claim, replication, counted)]
    cells = _cells(counted)
    undecided = replace(
        undecided,
        by_seed=by_seed,
        after_runs=any(_started_before(cell, max(claim.written, RULE_WRITTEN)) for cell in cells),
        cells=cells,
        loops=0 if STATISTICS[claim.statistic].any_answer else sum(run_scope(cell).loops for cell in cells),
        scaled=tuple(
            dict.fromkeys(text for cell in cells for text in scaled_settings(cell.overrides, cell.paper_overrides))
        ),
    )
    exclusions = {cell: reason for made in replication.of_all_seeds for cell, reason in made.exclusions.items()}
    lack = None if in_scope else lack
    measured = _decide(undecided, counted, exclusions, lack)
    if not STATISTICS[claim.statistic].timed:
        return measured
    references = tuple(dict.fromkeys(cell.summary.modelled_on for cell in cells))
    modelled = _decide(replace(undecided, references=references, measured=measured), counted, exclusions, lack)
    return modelled if undecided.toy else _agreed(modelled, measured)


def _repeated_comparisons(
    claim: Claim, replication: Replication, counted: Sequence[ClaimComparison]
) -> Iterator[ClaimComparison]:
    """Yield the counted comparisons of each further seed that has all of them.

    A run whose prompts share no search stands for all seeds: its side need not run again.
    """
    own = {tuple(cell.labels.values()): cell for cell in replication.cells if cell.is_readable}
    counted_labels = {comparison.labels for comparison in counted}
    for seed, repeat in enumerate(replication.repeats, 1):
        cells = []
        for cell in repeat.cells:
            same = own.get(tuple(cell.labels.values())) if cell.record is None else None
            cells.append(cell if same is None or run_scope(same).shares_search else same)
        complete = [
            comparison
            for comparison in comparisons(claim, cells)
            if comparison.labels in counted_labels and all(cell.is_readable for cell in comparison.cells)
        ]
        in_scope, _ = split_scope(claim, complete)
        if {comparison.labels for comparison in in_scope} == counted_labels:
            yield from (replace(comparison, seed=seed) for comparison in in_scope)


def _agreed(modelled: Judgement, measured: Judgement) -> Judgement:
    """Return the judgement by modelled times if measured times agree; else what they disagree on."""
    if modelled.verdict not in DECIDED or modelled.verdict == measured.verdict:
        return modelled
    if measured.verdict in DECIDED:
        reason = f"{modelled.verdict} by modelled times, {measured.verdict} by the times measured here"
        return replace(modelled, verdict=DEPENDS, reason=reason)
    reason = f"{modelled.verdict} by modelled times; the times measured here decide nothing: {measured.reason}"
    return replace(modelled, verdict=CANNOT_SAY, reason=reason, decided_by="the same runs on an idle machine")


def _started_before(cell: Cell, time: str) -> bool:
    """Return whether a run started before a time (UTC, ISO 8601); without a recorded time it counts as older."""
    started = cell.header.provenance.started_at
    return not started or datetime.fromisoformat(started) < datetime.fromisoformat(time)


def _cells(comparisons: Sequence[ClaimComparison]) -> tuple[Cell, ...]:
    return tuple({cell.path: cell for comparison in comparisons for cell in comparison.cells}.values())


def _models(comparisons: Sequence[ClaimComparison]) -> tuple[ModelRan, ...]:
    return tuple(dict.fromkeys(cell.model_ran for cell in _cells(comparisons)))


def _decide(
    undecided: Judgement, comparisons: Sequence[ClaimComparison], exclusions: Mapping[Cell, str], lack: Lack | None
) -> Judgement:
    """Return the judgement with the comparisons' effect and verdict, or why it has none.

    Args:
        undecided: "cannot say", with the comparisons' cells; times are modelled if it has references.
        lack: why the comparisons cannot decide the claim, whatever their effect, or None.
    """
    claim, modelled = undecided.claim, bool(undecided.references)
    if "gpus" in claim.needs and lack is not None:  # the number itself has no meaning
        return replace(undecided, **lack._asdict())
    if exclusion := _exclusion(undecided, comparisons, exclusions):
        return replace(undecided, **exclusion._asdict())
    seeds = len({comparison.seed for comparison in comparisons})
    if undecided.by_seed and lack is None and seeds < SEARCHES:
        searches = "one search" if seeds == 1 else f"{seeds} searches"
        reason = f"its prompts share the layer sets of {searches}; {SEARCHES} seeds are required"
        lack = Lack(reason, f"the same runs with {SEARCHES} seeds (`seed=N runs_dir=DIR/N`)")
    sampled: list[SampledComparison] = []
    for comparison in comparisons:
        sample = sample_comparison(claim, comparison, modelled)
        if isinstance(sample, str):
            return replace(undecided, **(lack or Lack(sample, ""))._asdict())
        sampled += [] if sample is None else [sample]
    if not sampled:
        return replace(undecided, reason=f"no reference reaches the {claim.given} of the side that the claim is about")
    effect = ClaimEffect(claim, sampled, modelled, undecided.by_seed)
    places = len({pair.comparison.subject.labels for pair in sampled})
    undecided = replace(undecided, effect=effect.value, n=effect.n, variation=effect.variation, comparisons=places)
    if not effect.lacking:
        low, high = effect.interval()
        undecided = replace(undecided, low=low, high=high)
    if lack := lack or _few_prompts(claim, sampled) or planted_lack(claim, undecided.models):
        return replace(undecided, **lack._asdict())
    if undecided.low is None or undecided.high is None:
        return replace(undecided, reason=effect.lacking)
    verdict = _verdict(claim, (undecided.low, undecided.high), effect.interval(EQUIVALENCE_LEVEL))
    reason = f"the interval contains the threshold {claim.threshold:g}" if verdict == CANNOT_SAY else ""
    return replace(undecided, verdict=verdict, reason=reason)


def _few_prompts(claim: Claim, sampled: Sequence[SampledComparison]) -> Lack | None:
    """Return which side has too few prompts; None if all have enough."""
    for side, sample in (part for pair in sampled for part in zip(pair.comparison.sides, pair.samples)):
        is_single = STATISTICS[side.statistic].once_per_run  # the run's prompts count, which all share the number
        prompts = min(cell.summary.n_prompts for cell in side.cells) if is_single else len(set(sample.prompts))
        if prompts < claim.prompts:
            reason = f"{side.name}: the compared part has {prompts} prompts; {claim.prompts} are required"
            return Lack(reason, f"at least {claim.prompts} prompts")
    return None


def _verdict(claim: Claim, interval: tuple[float, float], narrower_interval: tuple[float, float]) -> str:
    """Return the verdict, by the rule in `claims`, on an effect's 95 % interval and `EQUIVALENCE_LEVEL` interval."""
    low, high = interval
    if high <= claim.threshold if claim.at_most is not None else low >= claim.threshold:
        return HOLDS
    if claim.equivalence and is_equivalent(narrower_interval, claim.equivalence):
        return EQUIVALENT
    fails = low > claim.threshold if claim.at_most is not None else high < claim.threshold
    return FAILS if fails else CANNOT_SAY


def _exclusion(
    undecided: Judgement, comparisons: Sequence[ClaimComparison], exclusions: Mapping[Cell, str]
) -> Lack | None:
    """Return why the cells decide nothing, whatever their numbers, or None."""
    claim, references = undecided.claim, undecided.references
    # modelled times do not depend on the machine of the runs, nor on what else ran there
    is_measured = STATISTICS[claim.statistic].variation and not references
    for cell in undecided.cells:
        if exclusions[cell]:
            return Lack(
                f"excluded: {cell_name(cell)}: {exclusions[cell]}",
                "runs that are long enough for the search or the setting to make a difference",
            )
        if is_measured and (warning := cell.summary.steadiness.warning):
            return Lack(f"{cell_name(cell)}: {warning}", "the same runs on an idle machine")
    if len(references) > 1:
        reason = f"the runs have different reference machines: {', '.join(references)}"
        return Lack(reason, "runs with the same `hardware.costs`")
    if is_measured and any(len(_machines(claim, comparison)) > 1 for comparison in comparisons):
        return Lack("the two sides were timed on different machines", "runs of both sides on one machine")
    return None


def _machines(claim: Claim, comparison: ClaimComparison) -> set[str]:
    """Return a comparison's machines, each with its model unless the claim compares models."""
    machines = {cell.timing.machine for cell in comparison.cells}
    if "models" not in claim.needs:
        return machines
    return {json.dumps(json.loads(machine)[1:]) for machine in machines}  # its first part is the model
