"""Rows of a record's tables: of one arm, of pairs of answers, and their positions in another table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from ssd_bench.records.schema import PAIR

TIMES = ["arm", "prompt_index", "repeat", "turn", "new_tokens", "prefill_ms", "decode_ms"]
"""Columns of `prompts` for speeds, much faster to select without the texts."""

UNIT = ["prompt_index", "repeat", "turn"]
"""Key of an answer, equal in all arms."""

Positions = NDArray[np.intp]


def arm_rows(frame: pd.DataFrame, arm: str) -> pd.DataFrame:
    """Return one arm's rows ("ar", "method" or "hf") of `prompts` or `steps`."""
    return frame[frame["arm"] == arm]


def pair_positions(prompts: pd.DataFrame, arms: tuple[str, str] = PAIR) -> tuple[Positions, Positions]:
    """Return the positions in `prompts` of the answers that both arms gave, in the order of `UNIT`.

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


def sums_at(place: Positions, values: ArrayLike, n: int) -> NDArray[np.float64]:
    """Return [n] the sum of the values at each place; 0.0 without values."""
    return np.asarray(np.bincount(place, np.asarray(values, dtype=float), n), dtype=float)


def paired_rows(prompts: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of AR and the method for the answers that both gave, in the order of `prompts`."""
    return prompts.iloc[np.sort(np.concatenate(pair_positions(prompts)))]


def rows_with(frame: pd.DataFrame, keyed: pd.DataFrame, key: Sequence[str]) -> tuple[pd.DataFrame, Positions]:
    """Return the rows of `frame` whose key is in `keyed`, each with its position there."""
    codes = np.zeros(len(keyed) + len(frame), dtype=np.int64)  # one number per key, which is looked up without a merge
    for name in key:
        values, kinds = pd.factorize(pd.concat([keyed[name], frame[name]]))
        codes = codes * len(kinds) + values
    keys, wanted = codes[: len(keyed)], codes[len(keyed) :]
    order = np.argsort(keys, kind="stable")  # a damaged record may have a key twice: the first row counts
    place = np.searchsorted(keys, wanted, sorter=order)
    position = np.append(order, -1)[place]
    has_key = (place < len(keys)) & (np.append(keys, 0)[position] == wanted)
    return frame[has_key], position[has_key]
