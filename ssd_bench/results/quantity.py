"""Quantities, defined in `quantities.yaml`, and their intervals over prompts.

A prompt's repeats are summed first, to count as one observation. The interval is a jackknife t-interval on the
logarithm, with n / (n - 1) times the usual jackknife variance: with 8 prompts it covers a speedup in 95 % of samples,
93 % without the factor (docs/evidence.md). No interval covers a number determined by one prompt of sixty.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from types import CodeType

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit  # scipy.stats takes twice as long to import, in every process

from ssd_bench.conf import read_yaml

LEVEL = 0.95
EQUIVALENCE_LEVEL = 2 * LEVEL - 1
"""Level of an equivalence test's interval: two one-sided tests at 5 % each."""
BASE = "base_"
"""Beginning of the columns of the paired arm."""
MODELLED = "modelled"

Array = NDArray[np.float64]
Statistic = Callable[..., Array]
"""Function of columns, reduced over the last axis."""


@dataclass(frozen=True)
class Measured:
    """Number with its interval.

    Attributes:
        value: None if undefined.
        low, high: 95 % interval; None for fewer than two prompts, if all agree, or if the value is undefined without
            one.
        n: number of prompts.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0


@dataclass(frozen=True)
class Spread:
    """Run-to-run variation over repeated timings of one trace: standard deviation of the logarithm, and its dof."""

    sigma: float
    dof: int


@dataclass(frozen=True)
class Quantity:
    """Row of `quantities.yaml`, which explains the fields; `key` is its name in summaries, files and options."""

    key: str
    label: str
    unit: str
    digits: int
    better: str
    note: str
    formula: str = ""
    arms: Sequence[str] = ("method",)
    pairs: str = ""
    times: str = ""
    needs: Sequence[str] = ()
    positive: bool = False
    at_most: float = math.inf
    interval: bool = True
    variation: str = ""
    counted: bool = False
    by_domain: bool | str = False
    compare: str = ""
    difference: bool = False

    @cached_property
    def _code(self) -> CodeType:
        return compile(self.formula, self.key, "eval")

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Columns of a prompt table that the formula reads."""
        names = [name for name in self._code.co_names if name not in ("sum", "mean", "quantile")]
        return tuple(dict.fromkeys((*names, *self.needs)))

    def __call__(self, *columns: Array) -> Array:
        """Return the value of `columns`, in order, reduced over prompts, the last axis."""
        functions = {"sum": lambda a: a.sum(-1), "mean": lambda a: a.mean(-1), "quantile": quantile}
        names = functions | dict(zip(self.columns, columns, strict=True))
        # a formula is a line of this package's own file
        return np.asarray(eval(self._code, {"__builtins__": {}}, names))

    def measure(self, *columns: Array, interval: bool = True) -> Measured:
        """Return the value with its interval, if any; undefined if a needed column sums to 0."""
        given = dict(zip(self.columns, columns, strict=True))
        if not all(given[name].any() for name in self.needs):
            return Measured(None, n=len(columns[0]))
        return measure(self, *columns, at_most=self.at_most, interval=interval and self.interval)

    @property
    def words(self) -> tuple[str, str]:
        """Verdicts on b if above and if below a."""
        if not (self.variation or self.times):
            return "higher", "lower"
        return ("faster", "slower") if self.better == "higher" else ("slower", "faster")


def quantile(values: Sequence[Array], share: float) -> float:
    """Return a quantile of the values of all prompts; NaN without one."""
    pooled = np.concatenate([np.zeros(0), *np.ravel(np.asarray(values, dtype=object))])
    return float(np.quantile(pooled, share)) if len(pooled) else math.nan


def _read() -> dict[str, Quantity]:
    rows = read_yaml(Path(__file__).with_name("quantities.yaml"))
    known = {part.name for part in fields(Quantity)}
    assert all(known >= row.keys() for row in rows.values()), "a key of quantities.yaml that Quantity lacks"
    return {key: Quantity(key, **({"interval": "formula" in row} | row)) for key, row in rows.items()}


QUANTITIES: Mapping[str, Quantity] = _read()
"""Key -> quantity, in the order of the file."""


def divide(numerator: float, denominator: float) -> float | None:
    """Return numerator / denominator; None if not finite."""
    if denominator == 0 or not (math.isfinite(numerator) and math.isfinite(denominator)):
        return None
    return float(numerator) / float(denominator)


def t_quantile(dof: float, level: float = LEVEL) -> float:
    """Return the quantile of Student's t for a two-sided interval of this level."""
    return float(stdtrit(dof, (1 + level) / 2))


def ratio_of_sums(a: Array, b: Array) -> Array:
    return np.asarray(a.sum(-1) / b.sum(-1))


def ratio(numerator: Array, denominator: Array, at_most: float = math.inf) -> Measured:
    """Return a ratio of totals with its interval; one array entry per prompt."""
    return measure(ratio_of_sums, numerator, denominator, at_most=at_most)


def without_each(statistic: Statistic, columns: Sequence[Array]) -> Array:
    """Return `statistic` without each prompt in turn, [n], from columns [n]."""
    n = len(columns[0])
    kept = ~np.eye(n, dtype=bool)
    return statistic(*(np.broadcast_to(column, (n, n))[kept].reshape(n, n - 1) for column in columns))


def measure(statistic: Statistic, *columns: Array, at_most: float = math.inf, interval: bool = True) -> Measured:
    """Return `statistic` of the columns with its interval.

    Args:
        statistic: positive.
        columns: one entry per prompt; the jackknife leaves a prompt out of all columns.
        at_most: largest possible value, at which the interval ends.
    """
    n = len(columns[0])
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # undefined values are handled below
        value = float(statistic(*columns)) if n else math.nan
        if not math.isfinite(value):
            return Measured(None, n=n)
        if n < 2 or not interval:
            return Measured(value, n=n)
        logs = np.log(without_each(statistic, columns))
        # jackknife on the logarithm (Efron & Tibshirani, An Introduction to the Bootstrap, Eq. 11.5): with l_i the
        # logarithm without prompt i, var = (n - 1) / n sum (l_i - mean l)^2, here times n / (n - 1); t_{n-1} quantile
        half_width = t_quantile(n - 1) * np.sqrt(((logs - logs.mean()) ** 2).sum())
        low, high = value * float(np.exp(-half_width)), min(value * float(np.exp(half_width)), at_most)
    usable = math.isfinite(low) and math.isfinite(high) and high - low > 1e-9 * abs(value)
    return Measured(value, low, high, n) if usable else Measured(value, n=n)
