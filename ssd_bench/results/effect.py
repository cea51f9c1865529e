"""Effects of one run over another, by a jackknife over prompts; pooled, with interval and verdict.

The variance of an effect has several independent sources, such as prompts and repeated runs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ssd_bench.results.quantity import (
    EQUIVALENCE_LEVEL,
    LEVEL,
    Array,
    Measured,
    Quantity,
    Spread,
    t_quantile,
    without_each,
)

Item = TypeVar("Item")
EQUIVALENT, INCONCLUSIVE = "equivalent", "inconclusive"
ROUNDING = 1e-9
"""Deviations of an effect up to this are rounding and count as 0."""


@dataclass(frozen=True)
class Effect:
    """Number with the variances of its independent sources.

    Attributes:
        value: positive if `on_logarithm`.
        variances: variance of each source, with its degrees of freedom.
        on_logarithm: the variances are of the logarithm, as for ratios.
    """

    value: float
    variances: tuple[tuple[float, float], ...]
    on_logarithm: bool = True

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the Student's t confidence interval; without variance, the number itself twice."""
        total = sum(variance for variance, _ in self.variances)
        if not total:
            return self.value, self.value
        # Welch-Satterthwaite: dof = (Σ v)² / Σ (v² / dof)
        dof = total**2 / sum(variance**2 / dof for variance, dof in self.variances)
        half_width = t_quantile(dof, level) * math.sqrt(total)
        if self.on_logarithm:
            return self.value * math.exp(-half_width), self.value * math.exp(half_width)
        return self.value - half_width, self.value + half_width

    def __str__(self) -> str:
        low, high = self.interval()
        return f"{self.value:.2f} [{low:.2f}, {high:.2f}]"


def strata(sets: Iterable[Set[Item]]) -> list[set[Item]]:
    """Join sets that share an item, such as prompts of comparisons, to make independent strata."""
    joined: list[set[Item]] = []
    for items in sets:
        sharing = [stratum for stratum in joined if stratum & items]
        joined = [*(stratum for stratum in joined if stratum not in sharing), set(items).union(*sharing)]
    return joined


def widen(number: Measured, spread: Spread) -> Measured:
    """Widen a number's interval, if it has one, by run-to-run variation."""
    if not number.value or not number.low or not number.high:
        return number
    # the interval is exp(log value ± t s): its half width on the logarithm over t is s
    sd = math.log(number.high / number.low) / 2 / t_quantile(number.n - 1)
    effect = Effect(number.value, ((sd**2, number.n - 1), (spread.sigma**2, spread.dof)))
    return Measured(number.value, *effect.interval(), number.n)


@dataclass(frozen=True)
class PairEffect:
    """Effect of a quantity on one pair.

    Attributes:
        a, b: numbers of the sides.
        value: logarithm of b over a, or the difference; NaN if undefined.
        deviations: prompt -> deviation of `value` without this prompt from the mean; NaN if undefined. Their squares
            sum to the variance of `value` over prompts.
    """

    a: float
    b: float
    value: float
    deviations: Mapping[str, float]


def pair_effect(quantity: Quantity, prompts: Sequence[str], sides: Iterable[Sequence[Array]]) -> PairEffect:
    """Return the effect of a quantity on a pair: a jackknife leaves each prompt out of both sides.

    The variance is that of `quantity.measure`: n / (n - 1) times the usual jackknife variance.

    Args:
        prompts: [n] hashes.
        sides: for a and b, the columns of the quantity, [n] each.
    """
    (a, b), n = sides, len(prompts)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # undefined values become NaN
        values = float(quantity(*a)), float(quantity(*b))
        effect = float(_effect(quantity, *map(np.asarray, values)))
        deviations = np.full(n, math.nan)
        if n > 1 and math.isfinite(effect):
            left_one_out = _effect(quantity, *(without_each(quantity, side) for side in (a, b)))
            deviations = left_one_out - left_one_out.mean()
    deviations[np.abs(deviations) < ROUNDING] = 0.0
    by_prompt: dict[str, float] = {}
    for prompt, deviation in zip(prompts, deviations.tolist()):
        by_prompt[prompt] = by_prompt.get(prompt, 0.0) + deviation  # a stream may have a prompt twice
    return PairEffect(*values, effect, by_prompt)


def _effect(quantity: Quantity, a: Array, b: Array) -> Array:
    if quantity.difference:
        return b - a
    return np.where((a > 0) & (b > 0), np.log(b / a), math.nan)


def pooled_effect(
    quantity: Quantity, effects: Sequence[PairEffect], timings: Sequence[Mapping[Spread, float]]
) -> tuple[Effect | None, str]:
    """Return the mean effect of pairs with its variances, and why it has no interval (else "").

    Args:
        timings: for each pair, spread of one timing -> sum over sides of 1 / number of timings.
    """
    count = len(effects)
    value = float(np.mean([effect.value for effect in effects]))
    if not math.isfinite(value):
        return None, "undefined: one side is 0"
    spreads: dict[Spread, float] = {}
    for timing in timings:
        for spread, weight in timing.items():
            spreads[spread] = spreads.get(spread, 0.0) + weight / count**2
    variances = [(spread.sigma**2 * weight, float(spread.dof)) for spread, weight in spreads.items() if spread.sigma]
    reason = ""
    for prompts in strata(effect.deviations.keys() for effect in effects):
        # a prompt that several pairs share is left out of all of them at once
        deviations = [sum(effect.deviations.get(prompt, 0.0) for effect in effects) for prompt in sorted(prompts)]
        if len(deviations) < 2:
            reason = "no interval: only one prompt"
        elif not all(map(math.isfinite, deviations)):
            reason = "no interval: one prompt alone determines the number"
        elif variance := sum((deviation / count) ** 2 for deviation in deviations):
            variances.append((variance, len(deviations) - 1))
    logs = not quantity.difference
    return Effect(math.exp(value) if logs else value, tuple(variances), logs), reason


def equivalence_bounds(margin: float, none: float, is_ratio: bool) -> tuple[float, float]:
    """Return the effects within a margin, relative for a ratio, around `none`, the value of no effect."""
    return (none / (1 + margin), none * (1 + margin)) if is_ratio else (none - margin, none + margin)


def is_equivalent(interval: tuple[float, float], bounds: tuple[float, float]) -> bool:
    """Return the outcome of two one-sided tests at 5 % by the interval at `EQUIVALENCE_LEVEL`."""
    return bounds[0] <= interval[0] and interval[1] <= bounds[1]


def verdict(quantity: Quantity, effect: Effect, margin: float) -> str:
    """Return the first verdict that applies to an effect.

    * equivalent: the 90 % interval lies inside the margin around no effect (two one-sided tests at 5 %);
    * faster or slower (for other numbers, higher or lower): the 95 % interval excludes no effect;
    * inconclusive: neither.

    Args:
        margin: relative; absolute for a difference.
    """
    none = 1.0 if effect.on_logarithm else 0.0
    if is_equivalent(effect.interval(EQUIVALENCE_LEVEL), equivalence_bounds(margin, none, effect.on_logarithm)):
        return EQUIVALENT
    low, high = effect.interval()
    above, below = quantity.words
    return above if low > none else below if high < none else INCONCLUSIVE
