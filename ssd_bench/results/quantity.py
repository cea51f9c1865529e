"""Quantities and their intervals over prompts; `quantities.yaml` defines each quantity once.

The repeats of a prompt are summed first, so that a prompt counts as one observation. The interval is a jackknife
t-interval on the logarithm, with n / (n - 1) times the usual jackknife variance. Its coverage of the speedup was
measured by drawing samples from 60 recorded prompts of each of four methods: in samples of 8 prompts it is 95 % (93 %
without the factor n / (n - 1), 88 % for the BCa bootstrap); in samples of 4 prompts 95, 94 and 81 %; in samples of 20
prompts 95 % each. No interval covers a number that a single prompt of sixty determines, such as the share of a search
that ran once.
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
"""Level of the interval of a test of equivalence: two one-sided tests at 5 % each."""
BASE = "base_"
"""Beginning of the columns of the arm that a quantity's arm is paired with."""
MODELLED = "modelled"

Array = NDArray[np.float64]
Statistic = Callable[..., Array]
"""Function of columns and `axis`, over which it reduces them."""


@dataclass(frozen=True)
class Measured:
    """A number with its interval.

    Attributes:
        value: the point estimate; None if undefined.
        low, high: its 95 % interval; both None for fewer than two prompts, when all prompts agree, or when it is
            undefined without one of them.
        n: number of prompts.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0


@dataclass(frozen=True)
class Spread:
    """Run-to-run variation of the logarithm of a number, over repeated timings of the same trace.

    Attributes:
        sigma: standard deviation.
        dof: degrees of freedom of the estimate of sigma.
    """

    sigma: float
    dof: int


@dataclass(frozen=True)
class Quantity:
    """A row of `quantities.yaml`, which explains the fields.

    Attributes:
        key: name in summaries, files and options.
    """

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
        """Columns of a prompt table that it is computed from."""
        names = [name for name in self._code.co_names if name not in ("sum", "mean", "quantile")]
        return tuple(dict.fromkeys((*names, *self.needs)))

    def __call__(self, *columns: Array, axis: int = -1) -> Array:
        """Return the value of `columns`, in their order, reduced over prompts."""
        functions = {"sum": lambda a: a.sum(axis), "mean": lambda a: a.mean(axis), "quantile": quantile}
        names = functions | dict(zip(self.columns, columns, strict=True))
        # a formula is a line of this package's own file
        return np.asarray(eval(self._code, {"__builtins__": {}}, names))

    def measure(self, *columns: Array, interval: bool = True) -> Measured:
        """Return the value with its interval, if it has one; undefined if a column that it needs has a sum of 0."""
        given = dict(zip(self.columns, columns, strict=True))
        if not all(given[name].any() for name in self.needs):
            return Measured(None, n=len(columns[0]))
        return measure(self, *columns, at_most=self.at_most, interval=interval and self.interval)

    @property
    def words(self) -> tuple[str, str]:
        """Verdicts on b if it is above and if it is below a."""
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
    """Return numerator / denominator; None where that is not a finite number."""
    if denominator == 0 or not (math.isfinite(numerator) and math.isfinite(denominator)):
        return None
    return float(numerator) / float(denominator)


def t_quantile(dof: float, level: float = LEVEL) -> float:
    """Return the quantile of Student's t that bounds a two-sided interval of this level."""
    return float(stdtrit(dof, (1 + level) / 2))


def ratio_of_sums(a: Array, b: Array, axis: int = -1) -> Array:
    """Return sum a / sum b."""
    return np.asarray(a.sum(axis) / b.sum(axis))


def ratio(numerator: Array, denominator: Array, at_most: float = math.inf) -> Measured:
    """Return a ratio of totals with its interval; the arrays have one entry per prompt."""
    return measure(ratio_of_sums, numerator, denominator, at_most=at_most)


def without_each(statistic: Statistic, columns: Sequence[Array]) -> Array:
    """Return `statistic` without each prompt in turn.

    Args:
        columns: arrays of n entries, one per prompt.

    Returns:
        [n] values.
    """
    n = len(columns[0])
    kept = ~np.eye(n, dtype=bool)
    return statistic(*(np.broadcast_to(column, (n, n))[kept].reshape(n, n - 1) for column in columns))


def measure(statistic: Statistic, *columns: Array, at_most: float = math.inf, interval: bool = True) -> Measured:
    """Return `statistic` of the columns with its interval.

    Args:
        statistic: positive.
        columns: arrays with one entry per prompt; the jackknife leaves out one prompt in all of them.
        at_most: largest possible value, at which the interval ends.
        interval: False: leave out the interval.
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
