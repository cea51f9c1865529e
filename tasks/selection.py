"""Which rows a task uses and in which order; shared by the task files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy

from ssd_bench.errors import ConfigError
from ssd_bench.prompting import TEMPLATES

T = TypeVar("T")


def shuffled(rows: Sequence[T], seed: int) -> list[T]:
    """The rows in the order of `datasets.Dataset.shuffle(seed)`, which the released code of the papers calls.

    KNN-SSD (`evaluation_llama/utils.py`) and ConfLayers (`evaluation/eval.py`) take the first n rows of that order:
    with the same split and seed these are the same items.
    """
    return [rows[i] for i in numpy.random.default_rng(seed).permutation(len(rows))]


def first(rows: Sequence[T], limit: int | None) -> list[T]:
    """The first `limit` rows, or all where there are fewer or `limit` is None."""
    if limit is not None and limit < 1:
        raise ConfigError("limit", limit, "null (all items) or an integer of at least 1")
    return list(rows[:limit])


def checked_template(template: str) -> str:
    """`template` itself if it is known."""
    if template not in TEMPLATES:
        raise ConfigError("model.template", template, f"one of {', '.join(TEMPLATES)}")
    return template
