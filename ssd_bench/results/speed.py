"""Definitions of speeds and speedups: tokens and times of prompts, and of the pairs of answers of two arms.

Rates are in tokens per second. Decode-only leaves out the time and the token of the prefill; end-to-end includes both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ssd_bench.records.schema import PAIR
from ssd_bench.results.intervals import (
    Array,
    Measured,
    mean_of_ratios,
    measure,
    ratio,
    ratio_of_means,
    ratio_of_ratios,
)

TIMES = ["arm", "prompt_index", "repeat", "turn", "new_tokens", "prefill_ms", "decode_ms"]
"""Columns of `prompts` that speeds need. Selecting rows of these columns alone is much faster than with the texts."""

UNIT = ["prompt_index", "repeat", "turn"]
"""Key of one answer, the same in all arms."""

Positions = NDArray[np.intp]


def arm_rows(frame: pd.DataFrame, arm: str) -> pd.DataFrame:
    """Return the rows of `prompts` or `steps` of one arm ("ar", "method" or "hf")."""
    return frame[frame["arm"] == arm]


def pair_positions(prompts: pd.DataFrame, arms: tuple[str, str] = PAIR) -> tuple[Positions, Positions]:
    """Return where the answers of two arms stand in `prompts`, for the answers that both gave, in the order of `UNIT`.

    Where a damaged record has an answer twice, the first row counts.
    """
    arm = prompts["arm"].to_numpy()
    _, unit = np.unique(prompts[UNIT].to_numpy(), axis=0, return_inverse=True)
    by_arm = []
    for name in arms:
        rows = np.flatnonzero(arm == name)
        units, first = np.unique(unit[rows], return_index=True)
        by_arm.append((units, rows[first]))
    (units, rows), (other_units, other_rows) = by_arm
    return rows[np.isin(units, other_units)], other_rows[np.isin(other_units, units)]


def sums_at(place: Positions, values: Array, n: int) -> Array:
    """Return [n] the sum of the values at each place; 0.0 at a place without one."""
    return np.asarray(np.bincount(place, values, n), dtype=float)


def paired_rows(prompts: pd.DataFrame, arms: tuple[str, str] = PAIR) -> pd.DataFrame:
    """Return the rows of two arms for the answers that both gave, in the order of `prompts`."""
    return prompts.iloc[np.sort(np.concatenate(pair_positions(prompts, arms)))]


def token_times(prompts: pd.DataFrame, end_to_end: bool = False) -> pd.DataFrame:
    """Return the tokens and milliseconds of each prompt (index: prompt_index), summed over its answers."""
    sums = Answers.of(prompts).sums(end_to_end)
    return pd.DataFrame({"tokens": sums.tokens, "ms": sums.ms}, index=pd.Index(sums.prompts, name="prompt_index"))


def tokens_per_s(prompts: pd.DataFrame, end_to_end: bool = False) -> Measured:
    """Return tokens per second: total tokens over total time; undefined where no token was decoded."""
    sums = Answers.of(prompts).sums(end_to_end)
    if not sums.tokens.any():
        return Measured(None, n=len(sums.prompts))
    return ratio(1000 * sums.tokens, sums.ms)


@dataclass(frozen=True)
class Sums:
    """[n] tokens and milliseconds of prompts."""

    prompts: NDArray[np.int64]
    tokens: Array
    ms: Array


@dataclass(frozen=True)
class Answers:
    """[n] prompt, tokens and milliseconds of answers: arrays, because a report sums them up thousands of times."""

    prompts: NDArray[np.int64]
    tokens: Array
    decode_ms: Array
    prefill_ms: Array

    @classmethod
    def of(cls, prompts: pd.DataFrame) -> Self:
        """Return the answers of rows of `prompts`."""
        numbers = (prompts[name].to_numpy(dtype=float) for name in ("new_tokens", "decode_ms", "prefill_ms"))
        return cls(prompts["prompt_index"].to_numpy(), *numbers)

    def at(self, rows: NDArray[np.bool_] | Positions) -> Answers:
        """Return some of the answers."""
        return Answers(self.prompts[rows], self.tokens[rows], self.decode_ms[rows], self.prefill_ms[rows])

    def sums(self, end_to_end: bool = False) -> Sums:
        """Return the sums of each prompt."""
        tokens = self.tokens if end_to_end else np.maximum(self.tokens - 1, 0)
        ms = self.decode_ms + self.prefill_ms if end_to_end else self.decode_ms
        prompts, group = np.unique(self.prompts, return_inverse=True)
        return Sums(prompts, *(sums_at(group, column, len(prompts)) for column in (tokens, ms)))


@dataclass(frozen=True)
class Pairs:
    """The answers that two arms of a run both gave, and the speedups of one over the other, by each definition.

    Attributes:
        divisor, dividend: their answers, in the same order.
    """

    divisor: Answers
    dividend: Answers

    @classmethod
    def of(cls, prompts: pd.DataFrame, arms: tuple[str, str] = PAIR) -> Self:
        """Pair the answers of two arms.

        Args:
            prompts: at least the columns `TIMES`.
            arms: divisor, dividend.
        """
        answers = Answers.of(prompts)
        return cls(*(answers.at(rows) for rows in pair_positions(prompts, arms)))

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.divisor.prompts)

    @property
    def matched(self) -> Pairs:
        """The pairs of answers of equal length."""
        equal = self.divisor.tokens == self.dividend.tokens
        return Pairs(self.divisor.at(equal), self.dividend.at(equal))

    def speedup(self, end_to_end: bool = False) -> Measured:
        """Return the speedup, tokens/s over tokens/s."""
        # (sum tokens / sum ms) of the method over the same of AR: the ratio of totals, as KnapSpec's benchmark.py
        # prints it
        return self._ratio(ratio_of_ratios, end_to_end)

    def speedup_mean(self) -> Measured:
        """Return the mean of the speedups of single prompts; prompts without a decoded token are left out."""
        # mean over prompts of (tokens / ms) / (tokens_AR / ms_AR), the other statistic that KnapSpec's benchmark.py
        # prints
        return self._ratio(mean_of_ratios)

    def speedup_rates(self, end_to_end: bool = False) -> Measured:
        """Return the ratio of mean rates; prompts without a decoded token are left out."""
        # mean_i (tokens_i / ms_i) over the same of AR: speed.py of SWIFT and KNN-SSD
        return self._ratio(ratio_of_means, end_to_end)

    def speedup_wall(self) -> Measured:
        """Return the ratio of total times, prefills included, whatever the lengths of the outputs."""
        # sum ms_AR / sum ms, as the released logs of ConfLayers give it
        return ratio(self.divisor.sums(end_to_end=True).ms, self.dividend.sums(end_to_end=True).ms)

    def _ratio(self, statistic: Callable[..., Array], end_to_end: bool = False) -> Measured:
        divisor, dividend = self.divisor.sums(end_to_end), self.dividend.sums(end_to_end)
        if not (divisor.tokens.any() and dividend.tokens.any()):
            return Measured(None, n=len(dividend.prompts))
        columns = [dividend.tokens, dividend.ms, divisor.tokens, divisor.ms]
        if statistic is not ratio_of_ratios:
            defined = np.logical_and.reduce([column > 0 for column in columns])
            columns = [column[defined] for column in columns]
        return measure(statistic, *columns)
