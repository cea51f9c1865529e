"""Intervals over prompts, the repeats of a prompt kept together by adding them up first.

A jackknife's t-interval on the logarithm, its variance n / (n - 1) times the usual one. In samples of 8 of 60 recorded
prompts of four methods it covers the speedup in 95 %, without the factor in 93 %, and the BCa bootstrap, which stood
here before, in 88 %; in samples of 4: 95, 94 and 81 %; of 20: 95 % each. What one prompt of sixty decides, such as the
share of a search that ran once, none of them covers.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL = 0.95

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """A number with its interval.

    Attributes:
        value: the point estimate; None if undefined.
        low, high: its 95 % interval; both None for fewer than two prompts, when all prompts agree, and where some of
            them are all that is not zero.
        n: prompts it rests on.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0


@dataclass(frozen=True)
class Spread:
    """How far the logarithm of a number spreads between runs that differ in nothing but their moment.

    Attributes:
        sigma: its standard deviation.
        dof: degrees of freedom that it was estimated with.
    """

    sigma: float
    dof: int


def divide(numerator: float, denominator: float) -> float | None:
    """numerator / denominator; None where that is not a finite number."""
    if denominator == 0 or not (math.isfinite(numerator) and math.isfinite(denominator)):
        return None
    return float(numerator) / float(denominator)


def ratio_of_sums(a: Array, b: Array, axis: int = -1) -> Array:
    """sum a / sum b."""
    return np.asarray(a.sum(axis) / b.sum(axis))


def ratio_of_ratios(a: Array, b: Array, c: Array, d: Array, axis: int = -1) -> Array:
    """(sum a / sum b) / (sum c / sum d): a speedup of totals."""
    return np.asarray((a.sum(axis) / b.sum(axis)) / (c.sum(axis) / d.sum(axis)))


def mean_of_ratios(a: Array, b: Array, c: Array, d: Array, axis: int = -1) -> Array:
    """Mean of (a / b) / (c / d): the mean of the prompts' own speedups."""
    return np.asarray(((a / b) / (c / d)).mean(axis))


def ratio_of_means(a: Array, b: Array, c: Array, d: Array, axis: int = -1) -> Array:
    """mean(a / b) / mean(c / d): a speedup of the prompts' mean rates."""
    return np.asarray((a / b).mean(axis) / (c / d).mean(axis))


def ratio(numerator: Array, denominator: Array) -> Measured:
    """Ratio of totals with its interval, one entry per prompt."""
    return measure(ratio_of_sums, numerator, denominator)


def measure(statistic: Callable[..., Array], *columns: Array) -> Measured:
    """`statistic` of the columns and its interval, which of a share ends at 1.

    Args:
        statistic: positive; takes the columns and `axis`.
        columns: one entry per prompt each; prompts are left out as a whole.
    """
    columns = tuple(np.asarray(column, dtype=np.float64) for column in columns)
    n = len(columns[0])
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # undefined values are looked for below
        value = float(statistic(*columns)) if n else math.nan
        if not math.isfinite(value):
            return Measured(None, n=n)
        if n < 2:
            return Measured(value, n=n)
        others = ~np.eye(n, dtype=bool)
        logs = np.log(statistic(*(np.broadcast_to(column, (n, n))[others].reshape(n, n - 1) for column in columns)))
        reach = stats.t.ppf((1 + LEVEL) / 2, n - 1) * np.sqrt(((logs - logs.mean()) ** 2).sum())
        low, high = value * float(np.exp(-reach)), value * float(np.exp(reach))
    if statistic is ratio_of_sums and (columns[0] <= columns[1]).all():
        high = min(high, 1.0)
    usable = math.isfinite(low) and math.isfinite(high) and high - low > 1e-9 * abs(value)
    return Measured(value, low, high, n) if usable else Measured(value, n=n)


def widen(number: Measured, spread: Spread) -> Measured:
    """The number with an interval over prompts and moments: variances of the logarithm added up.

    Degrees of freedom by Welch and Satterthwaite. A number without an interval over prompts has none of moments.
    """
    if not number.value or not number.low or not number.high:
        return number
    prompts = (math.log(number.high / number.low) / 2 / float(stats.t.ppf((1 + LEVEL) / 2, number.n - 1))) ** 2
    moments = spread.sigma**2
    dof = (prompts + moments) ** 2 / (prompts**2 / (number.n - 1) + moments**2 / spread.dof)
    reach = float(stats.t.ppf((1 + LEVEL) / 2, dof)) * math.sqrt(prompts + moments)
    return Measured(number.value, number.value * math.exp(-reach), number.value * math.exp(reach), number.n)
