"""Quantities that are compared, and the effect of each on a pair: b over a, with its variance over prompts."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ssd_bench.compare.prompts import SharedPrompts
from ssd_bench.results.intervals import Array, ratio_of_ratios, ratio_of_sums, without_each

RATE, SPEEDUP = "rate", "speedup"
ROUNDING = 1e-9
"""Deviations of logarithms up to this come from rounding and count as 0."""


@dataclass(frozen=True)
class Quantity:
    """A number of one side, computed from columns of `SharedPrompts`.

    Attributes:
        meaning: text for documents and the table.
        columns: arguments of the formula.
        formula: computes the number of a side; takes the columns and `axis`.
        timing: run-to-run variation that applies, a field of `VariationLevel`: "rate" or "speedup"; "" for numbers that
            are the same in every timing.
        difference: whether sides are compared by their difference and not by their ratio.
        words: verdicts for b above and b below a.
        same_work: whether both sides do the same work by definition, so that the row is an A/A comparison.
    """

    meaning: str
    columns: tuple[str, ...]
    formula: Callable[..., Array]
    timing: str = ""
    difference: bool = False
    words: tuple[str, str] = ("faster", "slower")
    same_work: bool = False

    @property
    def raw_time(self) -> bool:
        """Whether it is in seconds of a machine, so that sides from different machines cannot be compared."""
        return self.timing == RATE


def _mean(values: Array, axis: int = -1) -> Array:
    return np.asarray(values.mean(axis))


def _per_second(tokens: Array, ms: Array, axis: int = -1) -> Array:
    return 1000 * ratio_of_sums(tokens, ms, axis)


_MORE = ("higher", "lower")
QUANTITIES: Mapping[str, Quantity] = {
    "decode": Quantity("tokens/s, decoding", ("tokens", "ms"), _per_second, RATE),
    "end_to_end": Quantity("tokens/s with prefill", ("all_tokens", "all_ms"), _per_second, RATE),
    "speedup": Quantity(
        "decoding, over AR of the same run", ("tokens", "ms", "ar_tokens", "ar_ms"), ratio_of_ratios, SPEEDUP
    ),
    "speedup_e2e": Quantity(
        "with prefill, over AR of the same run",
        ("all_tokens", "all_ms", "ar_all_tokens", "ar_all_ms"),
        ratio_of_ratios,
        SPEEDUP,
    ),
    "modelled": Quantity("tokens/s, decoding, modelled", ("tokens", "modelled_ms"), _per_second),
    "M": Quantity("emitted tokens per verification", ("emitted", "steps"), ratio_of_sums, words=_MORE),
    "alpha": Quantity("accepted over drafted tokens", ("accepted", "drafted"), ratio_of_sums, words=_MORE),
    "score": Quantity("task score; b minus a", ("score",), _mean, difference=True, words=_MORE),
    "ar_decode": Quantity("tokens/s of AR", ("ar_tokens", "ar_ms"), _per_second, RATE, same_work=True),
}
"""Name (also in options and files) -> quantity, in the order of the table."""


@dataclass(frozen=True)
class PairEffect:
    """Effect of a quantity on one pair.

    Attributes:
        a, b: numbers of the sides.
        value: logarithm of b over a, or the difference; NaN where it is undefined.
        deviations: prompt -> deviation of `value` without this prompt from the mean over prompts; NaN where it is
            undefined. Their squares sum up to the variance of `value` over prompts.
    """

    a: float
    b: float
    value: float
    deviations: Mapping[str, float]


def pair_effect(quantity: Quantity, shared: SharedPrompts) -> PairEffect:
    """Return the effect of a quantity on a pair: a jackknife over prompts, in which a prompt is left out of both sides.

    The variance is that of `results.intervals.measure`: n / (n - 1) times the usual jackknife variance.
    """
    a, b = ([side[name].to_numpy(dtype=float) for name in quantity.columns] for side in (shared.a, shared.b))
    n = len(shared.prompts)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # undefined values become NaN
        values = float(quantity.formula(*a)), float(quantity.formula(*b))
        effect = float(_effect(quantity, *map(np.asarray, values)))
        deviations = np.full(n, math.nan)
        if n > 1 and math.isfinite(effect):
            left_one_out = _effect(quantity, *(without_each(quantity.formula, side) for side in (a, b)))
            deviations = left_one_out - left_one_out.mean()
    deviations[np.abs(deviations) < ROUNDING] = 0.0
    by_prompt: dict[str, float] = {}
    for prompt, deviation in zip(shared.prompts, deviations.tolist()):
        by_prompt[prompt] = by_prompt.get(prompt, 0.0) + deviation  # a stream may have a prompt twice
    return PairEffect(*values, effect, by_prompt)


def _effect(quantity: Quantity, a: Array, b: Array) -> Array:
    """Return the difference, or the logarithm of the ratio, NaN where one of the sides is 0."""
    if quantity.difference:
        return b - a
    return np.where((a > 0) & (b > 0), np.log(b / a), math.nan)
