"""Selection and order of a task's rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy

from ssd_bench.data.rows import usable
from ssd_bench.errors import ConfigError

T = TypeVar("T")

# `Prompt.max_tokens` for a paper that truncates to the model's context and has no limit of its own
CONTEXT = 2**31 - 1


def shuffled(rows: Sequence[T], seed: int) -> Iterator[T]:
    """Yield the rows in the order of `datasets.Dataset.shuffle(seed)`, each read when its turn comes.

    KNN-SSD (`evaluation_llama/utils.py`) and ConfLayers (`evaluation/eval.py`) take the first n rows of that order.
    """
    return (rows[int(i)] for i in numpy.random.default_rng(seed).permutation(len(rows)))


def first_rows(rows: Sequence[T], limit: int | None) -> list[T]:
    """Return the first `limit` rows, or all if there are fewer or `limit` is None.

    Raises:
        ConfigError: an unusable row among them.
    """
    if limit is not None and limit < 1:
        raise ConfigError("limit", limit, "null (all items) or an integer >= 1")
    return list(map(usable, rows[:limit]))
