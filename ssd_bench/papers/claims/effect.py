"""Effect of a claim, pooled over its comparisons, with its 95 % interval.

Each end of the interval is the wider of two: of the interval over prompts and searches, widened by the claim's `noise`;
and, if run-to-run variation was measured, of the interval over prompts, searches and runs. The variance over prompts is
a jackknife as in `results.quantity`, stratified by groups of runs without a common prompt: a prompt is left out of all
runs at once, so that shared prompts are not counted twice. If prompts share one search's layer sets, comparisons are
made with several seeds, and the variance of their effects over seeds is added. Modelled times do not vary between runs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy import stats

from ssd_bench.papers.claims.claims import STATISTICS, Claim
from ssd_bench.papers.claims.comparisons import ClaimComparison
from ssd_bench.papers.claims.statistics import StatisticSample, take_sample
from ssd_bench.results.effect import ROUNDING, Effect, strata
from ssd_bench.results.evidence import VariationLevel
from ssd_bench.results.quantity import LEVEL


@dataclass(frozen=True)
class SampledComparison:
    """Comparison of the subject with the best reference, if any, and the sample of each side's statistic."""

    comparison: ClaimComparison
    samples: tuple[StatisticSample, ...]

    @property
    def prompts(self) -> set[str]:
        return {str(prompt) for sample in self.samples for prompt in sample.prompts}

    def effect(self, kind: str, without: str | None = None) -> float:
        """Return the effect, a kind of `claims.EFFECTS`, of all prompts, or all but one; NaN if undefined."""
        value, *references = (sample.value(without) for sample in self.samples)
        if not references:
            return value
        (reference,) = references
        if kind in ("difference", "distance"):
            return abs(value - reference) if kind == "distance" else value - reference
        return value / reference if reference else math.nan


def sample_comparison(
    claim: Claim, comparison: ClaimComparison, modelled: bool = False
) -> SampledComparison | str | None:
    """Return the samples of the subject and the best reference, or why a side lacks one.

    None if each reference has less of the statistic `given` than the subject.
    """
    samples: list[StatisticSample] = []
    given: list[float] = []
    for side in comparison.sides:
        sample = take_sample(side.cells, side.statistic, side.part, modelled)
        condition = take_sample(side.cells, claim.given, side.part, modelled) if claim.given else sample
        if isinstance(sample, str) or isinstance(condition, str):
            return f"{side.name}: {sample if isinstance(sample, str) else condition}"
        if not math.isfinite(sample.value()):
            return f"{side.name}: {side.statistic} is undefined ({STATISTICS[side.statistic].meaning})"
        samples.append(sample)
        given.append(condition.value())
    if not comparison.references:
        return SampledComparison(comparison, tuple(samples))
    references = [i for i in range(1, len(samples)) if not claim.given or given[i] >= given[0]]
    if not references:
        return None
    sign = 1 if STATISTICS[comparison.references[0].statistic].lower_is_better else -1
    best = min(references, key=lambda i: sign * samples[i].value())
    compared = replace(comparison, references=(comparison.references[best - 1],))
    return SampledComparison(compared, (samples[0], samples[best]))


class ClaimEffect:
    """Effect of a claim pooled over its comparisons, and its variances over prompts, searches and runs.

    Variances are on the scale where the interval is symmetric: of logarithms, or of values for differences.

    Args:
        modelled: the samples' times are modelled.
        by_seed: seeds are the sample, because prompts share a search or a run gives one number.
    """

    def __init__(
        self, claim: Claim, comparisons: Sequence[SampledComparison], modelled: bool = False, by_seed: bool = False
    ) -> None:
        self._claim, self._comparisons, self._modelled = claim, comparisons, modelled
        self._statistic, self._by_seed = STATISTICS[claim.statistic], by_seed
        self._effects = [comparison.effect(claim.effect) for comparison in comparisons]
        self.seeds = sorted({sampled.comparison.seed for sampled in comparisons})
        self._counted = self._counted_comparisons()
        self.value = self._pooled(self._effects)
        self._logs = claim.effect not in ("difference", "distance") and not self._statistic.is_count and self.value > 0
        self._strata, self._runs, self._seeds = self._prompt_strata(), self._run_variances(), self._seed_variances()

    def _counted_comparisons(self) -> list[int]:
        """Return the indices of the comparisons that count: all, or with `every` the worst."""
        if not self._claim.every:
            return [*range(len(self._effects))]
        by_labels: dict[tuple[str, ...], list[int]] = {}  # equal labels: one comparison with several seeds
        for i, sampled in enumerate(self._comparisons):
            by_labels.setdefault(sampled.comparison.subject.labels, []).append(i)
        worst = min if self._claim.at_least is not None else max
        return worst(by_labels.values(), key=lambda indices: self._mean([self._effects[i] for i in indices]))

    def _pooled(self, effects: Sequence[float]) -> float:
        """Return the mean of the effects that count; with `every`, the worst comparison's."""
        if self._claim.every and len(self.seeds) == 1:
            return min(effects) if self._claim.at_least is not None else max(effects)
        return self._mean([effects[i] for i in self._counted])

    def _mean(self, effects: Sequence[float]) -> float:
        if self._claim.effect == "ratio":
            return float(np.exp(np.mean(np.log(effects)))) if min(effects) > 0 else math.nan
        return float(np.sum(effects) if self._statistic.is_count else np.mean(effects))

    @property
    def n(self) -> int:
        """Number of distinct prompts, or of seeds if these are the sample."""
        return len(self.seeds) if self._by_seed else sum(n for _, n in self._strata)

    @property
    def variation(self) -> float | None:
        """Relative standard deviation between runs, if measured."""
        return math.sqrt(sum(variance for variance, _ in self._runs)) if self._runs else None

    @property
    def lacking(self) -> str:
        """Reason why the interval is missing; else ""."""
        if not math.isfinite(self.value):
            return "the effect is undefined"
        if self._statistic.is_count or self._shares() is not None:
            return ""
        if self._by_seed and len(self.seeds) < 2:
            return "no interval: one search says nothing of how much others differ"
        if any(n < 2 or not math.isfinite(variance) for variance, n in self._strata):
            return "no interval: a part of the effect has only one prompt"
        return ""

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the interval of the module's docstring; the effect itself, without `noise`, if all prompts agree."""
        if self._statistic.is_count:
            return self.value, self.value
        noise = 0.0 if self._modelled else self._claim.noise
        if (shares := self._shares()) is not None:
            # exact binomial interval of a share, pooled over runs (Clopper and Pearson, 1934)
            exact = stats.binomtest(*shares).proportion_ci(level)
            return max(float(exact.low) - noise, 0.0), min(float(exact.high) + noise, 1.0)
        sampled = [(variance, n - 1) for variance, n in (*self._strata, *self._seeds) if variance > ROUNDING**2]
        over_prompts, over_runs = (
            Effect(self.value, tuple(variances), self._logs).interval(level)
            for variances in (sampled, [*sampled, *self._runs])
        )
        return min(over_prompts[0] - noise, over_runs[0]), max(over_prompts[1] + noise, over_runs[1])

    def _shares(self) -> tuple[int, int] | None:
        """Return the prompts that count and all prompts, for a share of prompts; else None."""
        if not self._statistic.is_share or self._claim.effect != "value":
            return None
        successes, total = np.sum([sampled.samples[0].columns.sum(axis=0) for sampled in self._comparisons], axis=0)
        return int(successes), int(total)

    def _prompt_strata(self) -> list[tuple[float, int]]:
        """Return the variance over the n prompts of each stratum, and n; strata share no prompt."""
        if self._statistic.once_per_run:
            return []
        prompt_sets = [comparison.prompts for comparison in self._comparisons]
        return [(self._variance(sorted(prompts), prompt_sets), len(prompts)) for prompts in strata(prompt_sets)]

    def _variance(self, prompts: Sequence[str], prompt_sets: Sequence[Set[str]]) -> float:
        if len(prompts) < 2:
            return math.nan
        left_out = []
        for prompt in prompts:
            effects = [
                comparison.effect(self._claim.effect, prompt) if prompt in prompt_set else full_effect
                for full_effect, comparison, prompt_set in zip(self._effects, self._comparisons, prompt_sets)
            ]
            left_out.append(self._scaled(self._pooled(effects) if all(map(math.isfinite, effects)) else math.nan))
        # Σ (θ_i - mean θ)² with θ_i the effect without prompt i: n / (n - 1) times the usual jackknife variance, as
        # in `results.quantity`
        return float(((np.array(left_out) - np.mean(left_out)) ** 2).sum())

    def _scaled(self, value: float) -> float:
        """Return a value on the scale of the variances; NaN outside its domain."""
        if not self._logs:
            return value
        return math.log(value) if value > 0 else math.nan

    def _seed_variances(self) -> list[tuple[float, int]]:
        """Return the variance of the mean over n seeds, and n; empty if seeds are not the sample, or for one seed."""
        count = len(self.seeds)
        if not self._by_seed or count < 2:
            return []
        by_seed = [
            self._mean([self._effects[i] for i in self._counted if self._comparisons[i].comparison.seed == seed])
            for seed in self.seeds
        ]
        # s² / n, with s² the sample variance over n seeds
        return [(float(np.var([self._scaled(value) for value in by_seed], ddof=1)) / count, count)]

    def _run_variances(self) -> list[tuple[float, float]]:
        """Return variance and degrees of freedom of the effect's logarithm between runs, by level of variation.

        Empty if run-to-run variation does not apply, or was not measured for a run.
        """
        if self._modelled or not self._statistic.variation or not self._logs:
            return []
        # weight: derivative of log(effect) by the logarithm of the run's number; ±1 / n for a geometric mean of n
        # ratios, value / (n mean) for a mean of n values
        weights = defaultdict[Path, float](float)
        levels: dict[Path, VariationLevel] = {}
        for i in self._counted:
            share = self._effects[i] / self.value if self._claim.effect == "value" else 1.0
            for side, sign in zip(self._comparisons[i].comparison.sides, (1.0, -1.0)):
                for cell in side.cells:
                    if cell.variation is None:
                        return []
                    levels[cell.path] = cell.variation
                    weights[cell.path] += sign * share / len(self._counted)
        # runs vary independently, each with its level's sigma: var = Σ over levels of sigma² Σ weight²
        squares = defaultdict[VariationLevel, float](float)
        for path, weight in weights.items():
            squares[levels[path]] += weight**2
        spreads = {level: getattr(level, self._statistic.variation) for level in squares}
        return [(spreads[level].sigma ** 2 * square, spreads[level].dof) for level, square in squares.items()]
