"""Selection and order of a task's rows, and checks of options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, overload

import numpy

from ssd_bench.data.rows import usable
from ssd_bench.errors import ConfigError
from ssd_bench.model.template import TEMPLATES

T = TypeVar("T")

# `Prompt.max_tokens` for a paper that truncates to the model's context and has no limit of its own
CONTEXT = 2**31 - 1


class Permuted(Sequence[T]):
    """A sequence in another order (indices in `rows`), which reads an element when it is accessed."""

    def __init__(self, rows: Sequence[T], order: Sequence[int]) -> None:
        self._rows, self._order = rows, order

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> Permuted[T]: ...
    def __getitem__(self, at: int | slice) -> T | Permuted[T]:
        return Permuted(self._rows, self._order[at]) if isinstance(at, slice) else self._rows[int(self._order[at])]


def shuffled(rows: Sequence[T], seed: int) -> Permuted[T]:
    """Return the rows in the order of `datasets.Dataset.shuffle(seed)`.

    KNN-SSD (`evaluation_llama/utils.py`) and ConfLayers (`evaluation/eval.py`) take the first n rows of that order.
    """
    order: Any = numpy.random.default_rng(seed).permutation(len(rows))
    return Permuted(rows, order)


def first_rows(rows: Sequence[T], limit: int | None) -> list[T]:
    """Return the first `limit` rows, or all if there are fewer or `limit` is None.

    Raises:
        ConfigError: an unusable row among them.
    """
    if limit is not None and limit < 1:
        raise ConfigError("limit", limit, "null (all items) or an integer >= 1")
    return list(map(usable, rows[:limit]))


def checked_template(template: str) -> str:
    """Return a known `template`, else raise ConfigError."""
    if template not in TEMPLATES:
        raise ConfigError("model.template", template, f"one of {', '.join(TEMPLATES)}")
    return template


def checked_variant(variant: str | None, variants: Sequence[str]) -> str:
    """Return an allowed `variant`, the first one for None, else raise ConfigError."""
    if variant is None:
        return variants[0]
    if variant not in variants:
        raise ConfigError("task.variant", variant, f"one of {', '.join(variants)}")
    return variant


def checked_shots(shots: int, variant: str, without: str) -> int:
    """Return `shots`; raise ConfigError unless it is 0 for the variant without demonstrations."""
    if variant == without and shots != 0:
        raise ConfigError("task.shots", shots, f"0 for the variant {variant}, which is zero-shot")
    return shots


def of_variant(option: str, values: T | Mapping[str, T], variant: str) -> T:
    """Return a variant's value of an option; without a mapping, the value holds for all."""
    if not isinstance(values, Mapping):
        return values
    if variant not in values:
        raise ConfigError(f"task.{option}", dict(values), f"a value for {variant}")
    return values[variant]
