"""Faults of a record: their answer and table, and the rows that break a rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ssd_bench.records.schema import ANSWER

Key = tuple[int, int, int, str]
"""Values of `ANSWER`."""
NAMES = ("prompt", "repeat", "turn", "arm")
"""Names of a `Key`'s parts in messages."""
Fault = tuple[str, Key | None, str]
"""Table, answer (None: the whole table), and text."""

ROUNDING = 1e-9  # relative, of a sum of floats in another order


def answer_name(key: Key) -> str:
    """Name an answer in messages, such as "prompt 3, repeat 0, arm method"."""
    shown = [f"{name} {value}" for name, value in zip(NAMES, key, strict=True) if name != "turn" or value]
    return ", ".join(shown)


def row_key(steps: pd.DataFrame, at: int) -> Key:
    return tuple(steps[name].iloc[at] for name in ANSWER)


def broken_rules(table: str, frame: pd.DataFrame, rules: Mapping[str, NDArray[np.bool_]]) -> Iterator[Fault]:
    """Yield the first row that breaks each rule (text -> rows), with the number of such rows."""
    for text, broken in rules.items():
        if broken.any():
            at = int(broken.argmax())
            yield table, row_key(frame, at), f"step {frame['step'].iloc[at]}: {text}{in_all(broken, 'rows')}"


def in_all(broken: NDArray[np.bool_], unit: str) -> str:
    """Return a note on the number of faults; "" for one."""
    return f" ({broken.sum()} {unit} in all)" if broken.sum() > 1 else ""
