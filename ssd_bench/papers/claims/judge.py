"""Verdict of the records on each claim: an effect with its interval, and one of four verdicts.

The rule is in `claims`. Each end of the interval is the wider of two: that of the interval over prompts, widened by the
claim's `noise`; and, if the run-to-run variation was measured, that of the interval over prompts and runs. The variance
over prompts is a jackknife as in `metrics.intervals`, stratified by groups of runs without a common prompt: a prompt is
left out of all runs at once, so that a prompt shared by two runs is not counted twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import stats

from ssd_bench import metrics
from ssd_bench.metrics import VariationLevel
from ssd_bench.metrics.intervals import LEVEL
from ssd_bench.papers.claims.claims import PARTS, STATISTIC, STATISTICS, Claim, claims
from ssd_bench.papers.claims.statistics import StatisticSample, take_sample
from ssd_bench.papers.ours import select
from ssd_bench.papers.ours.cells import TOY_MODEL, Cell, Replication
from ssd_bench.papers.ours.ran import ModelRan
from ssd_bench.papers.runs import grid

HOLDS, FAILS, CANNOT_SAY, NOT_RUN = "holds", "fails", "cannot say", "not run"
VERDICTS = (HOLDS, FAILS, CANNOT_SAY, NOT_RUN)
ROUNDING_VARIANCE = 1e-18
"""Variances up to this come from rounding and count as 0."""


@dataclass(frozen=True)
class Side:
    """Cells that together give one number.

    Attributes:
        label: labels on the axes that the claim's sides name.
        cells: several only for a statistic that pools the runs of all methods.
        part: part of their runs, as in `samples.take_sample`.
        statistic: statistic of the number.
    """

    label: tuple[str, ...]
    cells: tuple[Cell, ...]
    part: Mapping[str, str]
    statistic: str

    @property
    def identity(self) -> tuple[object, ...]:
        """Key that is equal for sides of the same runs: at a small scale one run represents several models."""
        return tuple(cell.path for cell in self.cells), tuple(self.part.items()), self.statistic

    @property
    def name(self) -> str:
        """Task, method and setting of the side, for a sentence."""
        return _cell_name(self.cells[0])


@dataclass(frozen=True)
class ClaimComparison:
    """Sides that are equal in all labels except those that the claim's sides name.

    Attributes:
        subject: the side that the claim is about.
        references: the sides that it is compared with, of which the best counts; empty for a value.
    """

    subject: Side
    references: tuple[Side, ...]

    @property
    def sides(self) -> tuple[Side, ...]:
        """Subject and references."""
        return (self.subject, *self.references)

    @property
    def cells(self) -> list[Cell]:
        """Cells of all sides."""
        return [cell for side in self.sides for cell in side.cells]


SampledSide = tuple[Side, StatisticSample]
"""A side with the sample of its statistic."""


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
    indexed_labels = {tuple(cell.labels.values()) for cell in replication.cells}
    jobs = (job for job in replication.experiment.jobs if tuple(job.labels.values()) not in indexed_labels)
    planned = list(_comparisons(claim, [*replication.cells, *(Cell(job.labels, job.overrides) for job in jobs)]))
    complete = [comparison for comparison in planned if all(cell.record for cell in comparison.cells)]
    # comparisons of the same runs count once: at a small scale one run represents several models
    distinct = {tuple(side.identity for side in comparison.sides): comparison for comparison in complete}
    comparisons = list(distinct.values())
    cells = tuple({cell.path: cell for comparison in comparisons for cell in comparison.cells}.values())
    if not comparisons:
        failed = sorted({cell.error for comparison in planned for cell in comparison.cells if cell.error})
        reason = f"a run failed: {failed[0]}" if failed else "no comparison has all of its runs yet"
        return Judgement(claim, replication.scale, NOT_RUN, reason, planned=len(planned))
    record_error = next((cell.record.error for cell in cells if cell.record and cell.record.error), None)
    if record_error:
        return Judgement(
            claim, replication.scale, CANNOT_SAY, f"a record cannot be read: {record_error}", planned=len(planned)
        )
    models = tuple(dict.fromkeys(cell.model_ran for cell in cells))
    toy = any(cell.setup == TOY_MODEL for cell in cells)
    undecided = Judgement(
        claim,
        replication.scale,
        CANNOT_SAY,
        comparisons=len(comparisons),
        planned=len(planned),
        models=models,
        toy=toy,
        cells=cells,
    )
    if reason := _exclusion(claim, comparisons):
        return replace(undecided, reason=reason)
    sampled: list[list[SampledSide]] = []
    for comparison in comparisons:
        sides = _samples(claim, comparison)
        if isinstance(sides, str):
            return replace(undecided, reason=sides)
        sampled.append(sides)
    effect = _Effect(claim, sampled)
    judgement = replace(undecided, effect=effect.value, n=effect.n, variation=effect.variation, reason=effect.lacking)
    if judgement.reason:
        return judgement
    low, high = effect.interval()
    verdict = _verdict(claim, effect.value, low, high)
    return replace(
        judgement,
        verdict=verdict,
        low=low,
        high=high,
        reason=_undecided_reason(claim, effect.value) if verdict == CANNOT_SAY else "",
    )


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


# --- comparisons ------------------------------------------------------------------------------------------------------


def _comparisons(claim: Claim, cells: Sequence[Cell]) -> Iterator[ClaimComparison]:
    """Yield every comparison of the claim in the exhibit, whether or not it was run."""
    # an axis that one side names and the other does not is the same on both
    over = {axis: labels for axis, labels in claim.of.items() if axis in grid.AXES} | dict(claim.over)
    subject_cells = [cell for cell in cells if _within(cell, claim.cells) and _within(cell, claim.of)]
    reference_cells = (
        [cell for cell in cells if _within(cell, claim.cells) and _within(cell, over)] if claim.over else []
    )
    named_axes = [axis for axis in grid.AXES if axis in claim.of or axis in claim.over]
    pooled = ["method"] if STATISTICS[claim.statistic].pooled else []
    equal_axes = [axis for axis in grid.AXES if axis not in (*named_axes, *pooled)]
    subjects = _sides(
        subject_cells, claim.of, named_axes, equal_axes, {cell["task"] for cell in reference_cells}, claim.statistic
    )
    references = _sides(
        reference_cells,
        over,
        named_axes,
        equal_axes,
        {cell["task"] for cell in subject_cells},
        *claim.over.get(STATISTIC, [claim.statistic]),
    )
    for key, sides in subjects.items():
        if not claim.over:
            yield from (ClaimComparison(side, ()) for side in sides)
        elif key in references:
            yield from (ClaimComparison(side, tuple(references[key])) for side in sides)


def _within(cell: Cell, side: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a cell has a label of the side on each axis that the side names."""
    return all(cell[axis] in labels for axis, labels in side.items() if axis in grid.AXES)


def _sides(
    cells: Sequence[Cell],
    side: Mapping[str, Sequence[str]],
    named_axes: Sequence[str],
    equal_axes: Sequence[str],
    tasks: set[str],
    statistic: str,
) -> dict[tuple[str, ...], list[Side]]:
    """Return the sides, keyed by their labels on the axes that both sides of a comparison share.

    Args:
        side: axis or part -> labels, as in a claim.
        named_axes: axes that the sides name.
        equal_axes: axes on which both sides must be equal.
        tasks: tasks of the other side; a stream is split into its parts if these are its parts.
    """
    part = {axis: labels[0] for axis, labels in side.items() if axis in PARTS}
    groups: dict[tuple[tuple[str, ...], tuple[str, ...], str], list[Cell]] = {}
    for cell in cells:
        for task, stream_part in _split(cell, tasks):
            labels = {**cell.labels, "task": task}
            key, label = (tuple(labels[axis] for axis in axes) for axes in (equal_axes, named_axes))
            groups.setdefault((key, label, stream_part), []).append(cell)
    sides: dict[tuple[str, ...], list[Side]] = {}
    for (key, label, stream_part), members in groups.items():
        run_part = part | ({"part": stream_part} if stream_part else {})
        cell_groups = [tuple(members)] if STATISTICS[statistic].pooled else [(cell,) for cell in members]
        sides.setdefault(key, []).extend(
            Side(label, cells_of_side, run_part, statistic) for cells_of_side in cell_groups
        )
    return sides


def _split(cell: Cell, tasks: set[str]) -> list[tuple[str, str]]:
    """Return the task of a cell and ""; for a stream, the tasks of the other side that are its parts.

    Returns:
        Pairs of task and part of the stream; "" for the whole run.
    """
    parts = select.stream_parts(grid.choice(cell.overrides, "task"))
    if not parts or not tasks or cell["task"] in tasks:
        return [(cell["task"], "")]
    choices = select.task_choices()
    return [(task, choices[task]) for task in sorted(tasks) if choices.get(task) in parts]


def _exclusion(claim: Claim, comparisons: Sequence[ClaimComparison]) -> str:
    """Return the reason why the cells decide nothing, whatever their numbers; "" if they can decide."""
    is_timed = STATISTICS[claim.statistic].variation
    cells = {cell.path: cell for comparison in comparisons for cell in comparison.cells}
    for cell in cells.values():
        if cell.exclusion:
            return f"excluded: {_cell_name(cell)}: {cell.exclusion}"
        if cell.summary.n_prompts < claim.prompts:
            return f"{_cell_name(cell)} has {cell.summary.n_prompts} prompts; {claim.prompts} are required"
        if is_timed and (warning := cell.summary.steadiness.warning):
            return f"{_cell_name(cell)}: {warning}"
    if is_timed and any(len({cell.timing.machine for cell in comparison.cells}) > 1 for comparison in comparisons):
        return "the two sides were timed on different machines"
    return ""


def _cell_name(cell: Cell) -> str:
    """Return task, method and setting of a cell."""
    return ", ".join(filter(None, (cell["task"], cell["method"], cell["setting"])))


def _samples(claim: Claim, comparison: ClaimComparison) -> list[SampledSide] | str:
    """Return the subject and the best reference with their samples, or the reason why one of them lacks a sample."""
    sampled: list[SampledSide] = []
    for side in comparison.sides:
        sample = take_sample(side.cells, side.statistic, side.part)
        if isinstance(sample, str):
            return f"{side.name}: {sample}"
        if not math.isfinite(sample.value()):
            return f"{side.name}: {side.statistic} is undefined ({STATISTICS[side.statistic].meaning})"
        prompts = len(set(sample.prompts))
        if prompts < claim.prompts and not STATISTICS[side.statistic].once_per_run:
            return f"{side.name}: the compared part has {prompts} prompts; {claim.prompts} are required"
        sampled.append((side, sample))
    subject, *references = sampled
    if not references:
        return [subject]
    sign = 1 if STATISTICS[comparison.references[0].statistic].lower_is_better else -1
    return [subject, min(references, key=lambda sampled_side: sign * sampled_side[1].value())]


# --- the effect and its interval --------------------------------------------------------------------------------------


class _Effect:
    """Effect of a claim pooled over its comparisons, and its variances over prompts and runs.

    Variances are on the scale on which the interval is symmetric: of logarithms, or of the values for differences.
    """

    def __init__(self, claim: Claim, comparisons: Sequence[Sequence[SampledSide]]) -> None:
        self._claim = claim
        self._samples = [[sample for _, sample in comparison] for comparison in comparisons]
        self._sides = [[side for side, _ in comparison] for comparison in comparisons]
        self._statistic = STATISTICS[claim.statistic]
        self._effects = [self._effect(samples) for samples in self._samples]
        self.value = self._pooled(self._effects)
        self._logs = claim.effect != "difference" and self.value > 0
        self._prompts, self._runs = self._strata(), self._run_variances()

    def _effect(self, samples: Sequence[StatisticSample], without: str | None = None) -> float:
        """Return the effect in one comparison, of all prompts or of all but one."""
        value, *references = (sample.value(without) for sample in samples)
        if not references:
            return value
        if self._claim.effect == "difference":
            return value - references[0]
        return value / references[0] if references[0] else math.nan

    def _pooled(self, effects: Sequence[float]) -> float:
        """Return the geometric mean of ratios, or the arithmetic mean of differences and values."""
        if self._claim.effect == "ratio":
            return float(np.exp(np.mean(np.log(effects)))) if min(effects) > 0 else math.nan
        return float(np.mean(effects))

    @property
    def n(self) -> int:
        """Number of distinct prompts; of comparisons, for a statistic with one number per run."""
        return len(self._samples) if self._statistic.once_per_run else sum(n for _, n in self._prompts)

    @property
    def variation(self) -> float | None:
        """Relative standard deviation between runs, where it was measured."""
        return math.sqrt(sum(v for v, _ in self._runs)) if self._runs else None

    @property
    def lacking(self) -> str:
        """Reason why the interval is missing; "" if it is not."""
        if not math.isfinite(self.value):
            return "the effect is undefined"
        if self._statistic.once_per_run or self._counts() is not None:
            return ""
        if any(n < 2 or not math.isfinite(v) for v, n in self._prompts):
            return "no interval: a part of the effect has only one prompt"
        return "" if any(v > ROUNDING_VARIANCE for v, _ in self._prompts) else "no interval: all prompts agree"

    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval that the module describes."""
        noise, prompts = self._claim.noise, [(v, n - 1) for v, n in self._prompts if v > ROUNDING_VARIANCE]
        if (counted := self._counts()) is not None:
            # exact binomial interval of a share (Clopper and Pearson, 1934)
            exact = stats.binomtest(*counted).proportion_ci(LEVEL)
            return max(float(exact.low) - noise, 0.0), min(float(exact.high) + noise, 1.0)
        over_prompts, over_runs = self._t_interval(prompts), self._t_interval([*prompts, *self._runs])
        return min(over_prompts[0] - noise, over_runs[0]), max(over_prompts[1] + noise, over_runs[1])

    def _counts(self) -> tuple[int, int] | None:
        """Return the prompts that count and all prompts, for a share of prompts in one comparison; None otherwise."""
        if self._claim.statistic != "routing" or len(self._samples) > 1:
            return None
        successes, total = self._samples[0][0].columns.sum(axis=0)
        return int(successes), int(total)

    def _t_interval(self, variances: Sequence[tuple[float, float]]) -> tuple[float, float]:
        """Return the t-interval of the effect from independent variances with their degrees of freedom."""
        return metrics.Effect(self.value, tuple(variances), on_logarithm=self._logs).interval

    def _strata(self) -> list[tuple[float, int]]:
        """Return variance and number of prompts of each stratum.

        Comparisons that share a prompt, directly or through others, are in one stratum; strata are independent.
        """
        if self._statistic.once_per_run:
            return []
        strata: list[set[str]] = []
        for samples in self._samples:
            prompts = {str(prompt) for sample in samples for prompt in sample.prompts}
            joined = [stratum for stratum in strata if stratum & prompts]
            strata = [*(stratum for stratum in strata if stratum not in joined), prompts.union(*joined)]
        return [(self._variance(sorted(stratum)), len(stratum)) for stratum in strata]

    def _variance(self, prompts: Sequence[str]) -> float:
        """Return the jackknife variance of the pooled effect over the prompts of one stratum."""
        if len(prompts) < 2:
            return math.nan
        left_out = []
        for prompt in prompts:
            effects = [
                self._effect(samples, prompt)
                if any((sample.prompts == prompt).any() for sample in samples)
                else full_effect
                for full_effect, samples in zip(self._effects, self._samples)
            ]
            value = self._pooled(effects) if all(map(math.isfinite, effects)) else math.nan
            left_out.append(math.log(value) if self._logs and value > 0 else math.nan if self._logs else value)
        # Σ (θ_i - mean θ)² with θ_i the effect without prompt i: n / (n - 1) times the usual jackknife variance, as
        # in `metrics.intervals`
        return float(((np.array(left_out) - np.mean(left_out)) ** 2).sum())

    def _run_variances(self) -> list[tuple[float, float]]:
        """Return variance and degrees of freedom of the effect's logarithm between runs, by level of the variation.

        Empty if run-to-run variation does not apply, or was not measured for one of the runs.
        """
        if not self._statistic.variation or not self._logs:
            return []
        # weight: derivative of log(effect) by the logarithm of the run's number; ±1 / n for a geometric mean of n
        # ratios, value / (n mean) for a mean of n values
        weights: dict[object, tuple[VariationLevel, float]] = {}
        for effect, sides in zip(self._effects, self._sides):
            share = effect / self.value if self._claim.effect == "value" else 1.0
            for side, sign in zip(sides, (1.0, -1.0)):
                for cell in side.cells:
                    if cell.variation is None:
                        return []
                    level, weight = weights.get(cell.path, (cell.variation, 0.0))
                    weights[cell.path] = level, weight + sign * share / len(self._sides)
        # runs vary independently, each with its level's sigma: var = Σ over levels of sigma² Σ weight²
        squares: dict[VariationLevel, float] = {}
        for level, weight in weights.values():
            squares[level] = squares.get(level, 0.0) + weight**2
        spreads = {level: getattr(level, self._statistic.variation) for level in squares}
        return [(spreads[level].sigma ** 2 * square, spreads[level].dof) for level, square in squares.items()]
