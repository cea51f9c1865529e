"""What the records say of each claim: an effect with its interval, and one of four verdicts.

The rule is that of `claims`. The interval is the wider of two at each end: the one that the claim asks for, over
prompts and then by its `noise` at both ends; and the one over prompts and moments, where the noise floor was measured.
Prompts are left out one at a time, in all runs that have them at once, so that what two runs share is not counted
twice: a jackknife like that of `metrics.intervals`, stratified by runs without a common prompt.
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
from ssd_bench.papers import grid, select
from ssd_bench.papers.cells import REHEARSAL, Cell, Replication
from ssd_bench.papers.claims import PARTS, STATISTIC, STATISTICS, Claim, claims
from ssd_bench.papers.ran import ModelRan
from ssd_bench.papers.samples import Sample, sample

HOLDS, FAILS, CANNOT_SAY, NOT_RUN = "holds", "fails", "cannot say", "not run"
VERDICTS = (HOLDS, FAILS, CANNOT_SAY, NOT_RUN)
SAME = 1e-18
"""A variance below this is of rounding."""


@dataclass(frozen=True)
class Side:
    """Cells that give one number.

    Attributes:
        label: on the axes that the claim's sides name.
        cells: several where a statistic takes the runs of all methods together.
        part: of their runs, as `samples.sample` takes it.
        statistic: of them.
    """

    label: tuple[str, ...]
    cells: tuple[Cell, ...]
    part: Mapping[str, str]
    statistic: str

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for sides of the same runs: at a small scale one run stands for several models."""
        return tuple(cell.path for cell in self.cells), tuple(self.part.items()), self.statistic

    @property
    def name(self) -> str:
        """For a sentence."""
        return _named(self.cells[0])


@dataclass(frozen=True)
class Place:
    """Where all is equal but what the sides name.

    Attributes:
        own: the side that the claim is about.
        others: what it is compared with, whose best counts; none of a value.
    """

    own: Side
    others: tuple[Side, ...]

    @property
    def sides(self) -> tuple[Side, ...]:
        return (self.own, *self.others)

    @property
    def cells(self) -> list[Cell]:
        return [cell for side in self.sides for cell in side.cells]


Taken = tuple[Side, Sample]
"""A side with what it says."""


@dataclass(frozen=True)
class Judged:
    """A claim and what the records of one scale say of it.

    Attributes:
        verdict: one of `VERDICTS`.
        reason: why it cannot be said, or was not run; "" otherwise.
        effect, low, high: in the claim's unit, with its 95 % interval; None where there is none.
        n: distinct prompts behind it (searches, of a number that a run has once).
        places: that it is pooled over; asked: that the exhibit has.
        floor: relative standard deviation of the effect between moments; None where no floor was measured, or none
            bears on it.
        models: that ran.
        rehearsal: whether one of these was trained by this project.
        cells: behind it.
    """

    claim: Claim
    scale: str
    verdict: str
    reason: str = ""
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    places: int = 0
    asked: int = 0
    floor: float | None = None
    models: tuple[ModelRan, ...] = ()
    rehearsal: bool = False
    cells: tuple[Cell, ...] = field(default=(), repr=False)


def judge(replications: Sequence[Replication], paper: str | None = None) -> list[Judged]:
    """Every claim, or those of a paper, at every scale that there is of its exhibit; "not run" where there is none."""
    found = []
    for claim in (one for one in claims() if paper in (None, one.id.partition("/")[0])):
        own = [one for one in replications if one.experiment.name == claim.exhibit]
        found += [judged(claim, one) for one in own] or [Judged(claim, "", NOT_RUN, "none of its runs was made")]
    return found


def judged(claim: Claim, replication: Replication) -> Judged:
    """A claim by the records of one experiment and scale."""
    listed = {tuple(cell.labels.values()) for cell in replication.cells}
    jobs = (job for job in replication.experiment.jobs if tuple(job.labels.values()) not in listed)
    asked = list(_places(claim, [*replication.cells, *(Cell(job.labels, job.overrides) for job in jobs)]))
    complete = [place for place in asked if all(cell.record for cell in place.cells)]
    distinct = {tuple(side.identity for side in place.sides): place for place in complete}
    places = list(distinct.values())
    cells = tuple({cell.path: cell for place in places for cell in place.cells}.values())
    if not places:
        failed = sorted({cell.error for place in asked for cell in place.cells if cell.error})
        why = f"a run failed: {failed[0]}" if failed else "none of its places has all of its runs"
        return Judged(claim, replication.scale, NOT_RUN, why, asked=len(asked))
    broken = next((cell.record.error for cell in cells if cell.record and cell.record.error), None)
    if broken:
        return Judged(claim, replication.scale, CANNOT_SAY, f"a record cannot be read: {broken}", asked=len(asked))
    models = tuple(dict.fromkeys(cell.ran for cell in cells))
    rehearsal = any(cell.setup == REHEARSAL for cell in cells)
    unsure = Judged(
        claim, replication.scale, CANNOT_SAY, places=len(places), asked=len(asked), models=models,
        rehearsal=rehearsal, cells=cells,
    )  # fmt: skip
    if why := _undecided(claim, places):
        return replace(unsure, reason=why)
    taken: list[list[Taken]] = []
    for place in places:
        own = _samples(claim, place)
        if isinstance(own, str):
            return replace(unsure, reason=own)
        taken.append(own)
    effect = _Effect(claim, taken)
    found = replace(unsure, effect=effect.value, n=effect.n, floor=effect.floor, reason=effect.lacking)
    if found.reason:
        return found
    low, high = effect.interval()
    verdict = _verdict(claim, effect.value, low, high)
    return replace(
        found,
        verdict=verdict,
        low=low,
        high=high,
        reason=_between(claim, effect.value) if verdict == CANNOT_SAY else "",
    )


def _verdict(claim: Claim, effect: float, low: float, high: float) -> str:
    if claim.at_most is not None:
        return HOLDS if high <= claim.at_most else FAILS if low > claim.at_most else CANNOT_SAY
    assert claim.at_least is not None, "a claim has one of the two"
    if high < claim.at_least:
        return FAILS
    none = _none(claim)
    above = low > none if claim.at_least >= none else low >= claim.at_least
    return HOLDS if effect >= claim.at_least and above else CANNOT_SAY


def _none(claim: Claim) -> float:
    """What no effect would be."""
    return claim.none if claim.none is not None else 1.0 if claim.effect == "ratio" else 0.0


def _between(claim: Claim, effect: float) -> str:
    if claim.at_most is not None:
        return f"the interval lies on both sides of {claim.at_most:g}"
    assert claim.at_least is not None, "a claim has one of the two"
    if effect < claim.at_least:
        return f"the effect is below {claim.at_least:g}, the interval reaches above it"
    return f"the interval reaches to {min(_none(claim), claim.at_least):g}"


# --- places -----------------------------------------------------------------------------------------------------------


def _places(claim: Claim, cells: Sequence[Cell]) -> Iterator[Place]:
    """Every place that the exhibit has, whether or not it was run."""
    # an axis that one side names and the other does not is the same on both
    over = {axis: labels for axis, labels in claim.of.items() if axis in grid.AXES} | dict(claim.over)
    own = [cell for cell in cells if _within(cell, claim.cells) and _within(cell, claim.of)]
    other = [cell for cell in cells if _within(cell, claim.cells) and _within(cell, over)] if claim.over else []
    named = [axis for axis in grid.AXES if axis in claim.of or axis in claim.over]
    pooled = ["method"] if STATISTICS[claim.statistic].pooled else []
    free = [axis for axis in grid.AXES if axis not in (*named, *pooled)]
    owns = _sides(own, claim.of, named, free, {cell["task"] for cell in other}, claim.statistic)
    others = _sides(
        other, over, named, free, {cell["task"] for cell in own}, *claim.over.get(STATISTIC, [claim.statistic])
    )
    for key, sides in owns.items():
        if not claim.over:
            yield from (Place(side, ()) for side in sides)
        elif key in others:
            yield from (Place(side, tuple(others[key])) for side in sides)


def _within(cell: Cell, side: Mapping[str, Sequence[str]]) -> bool:
    return all(cell[axis] in labels for axis, labels in side.items() if axis in grid.AXES)


def _sides(
    cells: Sequence[Cell], side: Mapping[str, Sequence[str]], named: Sequence[str], free: Sequence[str],
    tasks: set[str], statistic: str,
) -> dict[tuple[str, ...], list[Side]]:  # fmt: skip
    """By what must be equal, the sides that there are.

    Args:
        tasks: of the other side; a stream is taken apart where these are its parts.
    """
    part = {axis: labels[0] for axis, labels in side.items() if axis in PARTS}
    groups: dict[tuple[tuple[str, ...], tuple[str, ...], str], list[Cell]] = {}
    for cell in cells:
        for task, piece in _split(cell, tasks):
            labels = {**cell.labels, "task": task}
            key, label = (tuple(labels[axis] for axis in axes) for axes in (free, named))
            groups.setdefault((key, label, piece), []).append(cell)
    found: dict[tuple[str, ...], list[Side]] = {}
    for (key, label, piece), members in groups.items():
        own = part | ({"part": piece} if piece else {})
        split = [tuple(members)] if STATISTICS[statistic].pooled else [(cell,) for cell in members]
        found.setdefault(key, []).extend(Side(label, each, own, statistic) for each in split)
    return found


def _split(cell: Cell, tasks: set[str]) -> list[tuple[str, str]]:
    """The task of a cell and "", or of a stream those of its parts that the other side has, with their names."""
    parts = select.parts_of(grid.choice(cell.overrides, "task"))
    if not parts or not tasks or cell["task"] in tasks:
        return [(cell["task"], "")]
    choices = select.task_choices()
    return [(task, choices[task]) for task in sorted(tasks) if choices.get(task) in parts]


def _undecided(claim: Claim, places: Sequence[Place]) -> str:
    """Why the cells decide nothing, whatever their numbers."""
    timed = STATISTICS[claim.statistic].noise
    cells = {cell.path: cell for place in places for cell in place.cells}
    for cell in cells.values():
        if cell.void:
            return f"void: {_named(cell)}: {cell.void}"
        if cell.summary["n_prompts"] < claim.prompts:
            return f"{_named(cell)} has {cell.summary['n_prompts']} prompts, {claim.prompts} are needed"
        if timed and (why := metrics.contamination(cell.summary)):
            return f"{_named(cell)}: a busy machine spoiled the times: {why}"
    if timed and any(len({cell.moment.machine for cell in place.cells}) > 1 for place in places):
        return "other machine: its two sides were timed on different ones"
    return ""


def _named(cell: Cell) -> str:
    return ", ".join(filter(None, (cell["task"], cell["method"], cell["setting"])))


def _samples(claim: Claim, place: Place) -> list[Taken] | str:
    """Of the own side, and of the best of the others, or why one has none."""
    found: list[Taken] = []
    for side in place.sides:
        one = sample(side.cells, side.statistic, side.part)
        if isinstance(one, str):
            return f"{side.name}: {one}"
        if not math.isfinite(one.value()):
            return f"{side.name}: {STATISTICS[side.statistic].says} is not defined"
        prompts = len(set(one.prompts))
        if prompts < claim.prompts and not STATISTICS[side.statistic].once:
            return f"{side.name}: what is compared of it rests on {prompts} prompts, {claim.prompts} are needed"
        found.append((side, one))
    own, *others = found
    if not others:
        return [own]
    sign = 1 if STATISTICS[place.others[0].statistic].lower else -1
    return [own, min(others, key=lambda taken: sign * taken[1].value())]


# --- the effect and its interval --------------------------------------------------------------------------------------


class _Effect:
    """The pooled effect of places, and how it varies with prompts and moments.

    Numbers are on the scale on which an interval is symmetric: logarithms, but of differences.
    """

    def __init__(self, claim: Claim, places: Sequence[Sequence[Taken]]) -> None:
        self._claim, self._places = claim, [[one for _, one in place] for place in places]
        self._sides = [[side for side, _ in place] for place in places]
        self._statistic = STATISTICS[claim.statistic]
        self._alone = [self._of(place) for place in self._places]
        self.value = self._pooled(self._alone)
        self._logs = claim.effect != "difference" and self.value > 0
        self._prompts, self._moments = self._strata(), self._levels()

    def _of(self, place: Sequence[Sample], without: str | None = None) -> float:
        """At one place."""
        value, *others = (one.value(without) for one in place)
        if not others:
            return value
        if self._claim.effect == "difference":
            return value - others[0]
        return value / others[0] if others[0] else math.nan

    def _pooled(self, effects: Sequence[float]) -> float:
        """Geometric mean of ratios, mean of differences and values."""
        if self._claim.effect == "ratio":
            return float(np.exp(np.mean(np.log(effects)))) if min(effects) > 0 else math.nan
        return float(np.mean(effects))

    @property
    def n(self) -> int:
        """Distinct prompts, or of what a run has once the places."""
        return len(self._places) if self._statistic.once else sum(n for _, n in self._prompts)

    @property
    def floor(self) -> float | None:
        """Relative standard deviation between moments, where it was measured."""
        return math.sqrt(sum(v for v, _ in self._moments)) if self._moments else None

    @property
    def lacking(self) -> str:
        """Why there is no interval; "" where there is one."""
        if not math.isfinite(self.value):
            return "the effect is not defined"
        if self._statistic.once or self._counts() is not None:
            return ""
        if any(n < 2 or not math.isfinite(v) for v, n in self._prompts):
            return "a part of it rests on one prompt: there is no interval"
        return "" if any(v > SAME for v, _ in self._prompts) else "all prompts agree: there is no interval"

    def interval(self) -> tuple[float, float]:
        """As the module says."""
        noise, prompts = self._claim.noise, [(v, n - 1) for v, n in self._prompts if v > SAME]
        if (counted := self._counts()) is not None:
            found = stats.binomtest(*counted).proportion_ci(LEVEL)
            return max(float(found.low) - noise, 0.0), min(float(found.high) + noise, 1.0)
        asked, both = self._reaching(prompts), self._reaching([*prompts, *self._moments])
        return min(asked[0] - noise, both[0]), max(asked[1] + noise, both[1])

    def _counts(self) -> tuple[int, int] | None:
        """Of a share of prompts at one place: how many of how many."""
        if self._claim.statistic != "routing" or len(self._places) > 1:
            return None
        own, every = self._places[0][0].columns.sum(axis=0)
        return int(own), int(every)

    def _reaching(self, variances: Sequence[tuple[float, float]]) -> tuple[float, float]:
        """The interval of independent variances with their degrees of freedom, by Welch and Satterthwaite."""
        total = sum(v for v, _ in variances)
        if not total:
            return self.value, self.value
        dof = total**2 / sum(v**2 / dof for v, dof in variances)
        reach = float(stats.t.ppf((1 + LEVEL) / 2, dof)) * math.sqrt(total)
        if self._logs:
            return self.value * math.exp(-reach), self.value * math.exp(reach)
        return self.value - reach, self.value + reach

    def _strata(self) -> list[tuple[float, int]]:
        """Variance and prompts of each group of places that share prompts with each other alone."""
        if self._statistic.once:
            return []
        strata: list[set[str]] = []
        for place in self._places:
            own = {str(prompt) for one in place for prompt in one.prompts}
            joined = [stratum for stratum in strata if stratum & own]
            strata = [*(stratum for stratum in strata if stratum not in joined), own.union(*joined)]
        return [(self._variance(sorted(stratum)), len(stratum)) for stratum in strata]

    def _variance(self, prompts: Sequence[str]) -> float:
        if len(prompts) < 2:
            return math.nan
        left = []
        for prompt in prompts:
            effects = [
                self._of(place, prompt) if any((one.prompts == prompt).any() for one in place) else alone
                for alone, place in zip(self._alone, self._places)
            ]
            value = self._pooled(effects) if all(map(math.isfinite, effects)) else math.nan
            left.append(math.log(value) if self._logs and value > 0 else math.nan if self._logs else value)
        return float(((np.array(left) - np.mean(left)) ** 2).sum())

    def _levels(self) -> list[tuple[float, float]]:
        """Variance and degrees of freedom by moments, of each level of the noise floor that bears on it."""
        if not self._statistic.noise or not self._logs:
            return []
        weights: dict[object, tuple[VariationLevel, float]] = {}
        for alone, sides in zip(self._alone, self._sides):
            share = alone / self.value if self._claim.effect == "value" else 1.0
            for side, sign in zip(sides, (1.0, -1.0)):
                for cell in side.cells:
                    if cell.noise is None:
                        return []
                    level, weight = weights.get(cell.path, (cell.noise, 0.0))
                    weights[cell.path] = level, weight + sign * share / len(self._sides)
        variances: dict[VariationLevel, float] = {}
        for level, weight in weights.values():
            variances[level] = variances.get(level, 0.0) + weight**2
        spreads = {level: getattr(level, self._statistic.noise) for level in variances}
        return [(spreads[level].sigma ** 2 * weight, spreads[level].dof) for level, weight in variances.items()]
