"""Quantities that are compared, and the effect of each on a pair: b over a, with its variance over prompts."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ssd_bench.results.quantity import QUANTITIES, Array, Quantity, without_each

RATE = "rate"
ROUNDING = 1e-9
"""Deviations of logarithms up to this come from rounding and count as 0."""


def _order(quantity: Quantity) -> tuple[bool, bool]:
    """Return the place of a quantity in the table: times first, what does not depend on the method last."""
    return same_work(quantity), not (quantity.variation or quantity.times)


def same_work(quantity: Quantity) -> bool:
    """Return whether both sides do the same work by definition, so that the row is an A/A comparison."""
    return "method" not in quantity.arms


COMPARED: Mapping[str, Quantity] = {
    quantity.compare: quantity for quantity in sorted(QUANTITIES.values(), key=_order) if quantity.compare
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


def pair_effect(quantity: Quantity, prompts: Sequence[str], sides: Iterable[Sequence[Array]]) -> PairEffect:
    """Return the effect of a quantity on a pair: a jackknife over prompts, in which a prompt is left out of both sides.

    The variance is that of `quantity.measure`: n / (n - 1) times the usual jackknife variance.

    Args:
        prompts: [n] hash of each prompt.
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
    """Return the difference, or the logarithm of the ratio, NaN where one of the sides is 0."""
    if quantity.difference:
        return b - a
    return np.where((a > 0) & (b > 0), np.log(b / a), math.nan)
