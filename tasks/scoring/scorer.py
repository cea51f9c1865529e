"""Interface of a scorer: a score of one answer, and scores of many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence


class Scorer(ABC):
    """A comparison of answers with references, both texts; a reference of several parts is JSON.

    Attributes:
        metric: name of the score that `item` returns, the headline in every table.
    """

    metric: str

    @abstractmethod
    def item(self, prediction: str, reference: str) -> float | None:
        """Return the score in [0, 1] of one answer; None if the reference is empty, as the item cannot be scored."""

    def reference_fault(self, reference: str) -> str | None:
        """Return the requirement that a reference fails to meet; None if the scorer can read it.

        Args:
            reference: a text that is not empty; an empty one is no fault, but its item has no score.
        """
        return None

    def corpus(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Return further scores of many answers, by name, in [0, 1], besides the mean of `item`.

        Items without a reference are left out.
        """
        return {}


def mean(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of every name over the rows that have it."""
    values_of: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            values_of.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in values_of.items()}
