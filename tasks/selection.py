"""Which rows a task uses and in which order, and the checks of options; shared by the task files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, overload

import numpy

from ssd_bench.data.rows import Row, usable
from ssd_bench.errors import ConfigError
from ssd_bench.model.template import TEMPLATES

__all__ = ["CONTEXT", "Permuted", "Row", "checked_shots", "checked_template", "checked_variant", "first", "of_variant",
           "shuffled"]  # fmt: skip

T = TypeVar("T")

# `Prompt.max_tokens` of a paper that clips to the model's context and has no limit of its own.
CONTEXT = 2**31 - 1


class Permuted(Sequence[T]):
    """A sequence in another order; an element is read when it is asked for.

    Args:
        order: index of each element in `rows`.
    """

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
    """Return the rows in the order of `datasets.Dataset.shuffle(seed)`, which the released code of the papers calls.

    KNN-SSD (`evaluation_llama/utils.py`) and ConfLayers (`evaluation/eval.py`) take the first n rows of that order:
    with the same split and seed these are the same items.
    """
    order: Any = numpy.random.default_rng(seed).permutation(len(rows))
    return Permuted(rows, order)


def first(rows: Sequence[T], limit: int | None) -> list[T]:
    """Return the first `limit` rows, or all where there are fewer or `limit` is None.

    Raises:
        ConfigError: one of them cannot be used.
    """
    if limit is not None and limit < 1:
        raise ConfigError("limit", limit, "null (all items) or an integer of at least 1")
    return list(map(usable, rows[:limit]))


def checked_template(template: str) -> str:
    """`template` itself if it is known."""
    if template not in TEMPLATES:
        raise ConfigError("model.template", template, f"one of {', '.join(TEMPLATES)}")
    return template


def checked_variant(variant: str | None, allowed: Sequence[str]) -> str:
    """`variant` itself if it is allowed; None stands for the first, a task's default."""
    if variant is None:
        return allowed[0]
    if variant not in allowed:
        raise ConfigError("task.variant", variant, f"one of {', '.join(allowed)}")
    return variant


def checked_shots(shots: int, variant: str, without: str) -> int:
    """`shots` itself, unless the variant is the one without demonstrations and they are not 0."""
    if variant == without and shots != 0:
        raise ConfigError("task.shots", shots, f"0 for the variant {variant}, which is zero-shot")
    return shots


def of_variant(option: str, values: T | Mapping[str, T], variant: str) -> T:
    """The value of an option that the YAML gives per variant; a value that is no mapping is that of any variant."""
    if not isinstance(values, Mapping):
        return values
    if variant not in values:
        raise ConfigError(f"task.{option}", dict(values), f"it must have a value for {variant}")
    return values[variant]
