"""Bootstrap intervals over prompts: 95 % BCa, the repeats of a prompt kept together by adding them up first."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

RESAMPLES, LEVEL, SEED = 9999, 0.95, 0

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """A number with its interval.

    Attributes:
        value: the point estimate; None if undefined.
        low, high: its 95 % interval; both None for fewer than two prompts or when all prompts agree.
        n: prompts it rests on.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0


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
    """`statistic` of the columns and its interval.

    Args:
        statistic: takes the columns and `axis`.
        columns: one entry per prompt each; prompts are resampled as a whole.
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
        result = stats.bootstrap(
            columns,
            statistic,
            paired=True,
            vectorized=True,
            n_resamples=RESAMPLES,
            batch=max(1, 2_000_000 // n),
            confidence_level=LEVEL,
            method="BCa",
            rng=np.random.default_rng(SEED),
        )
    low, high = float(result.confidence_interval.low), float(result.confidence_interval.high)
    # BCa breaks down when all prompts agree, or when so few differ that its correction leaves the estimate outside
    usable = math.isfinite(low) and math.isfinite(high) and high - low > 1e-9 * abs(value)
    return Measured(value, low, high, n) if usable and low <= value <= high else Measured(value, n=n)
