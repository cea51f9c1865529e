"""Interface of a scorer: a score of one answer, and scores of many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence


class Scorer(ABC):
    """Comparison of answers with references, both texts; a reference of several parts is JSON.

    Attributes:
        metric: name of `item`'s score, the headline in every table.
    """

    metric: str

    @abstractmethod
    def item(self, prediction: str, reference: str) -> float | None:
        """Return an answer's score in [0, 1]; None if the reference is empty."""

    def reference_fault(self, reference: str) -> str | None:
        """Return the requirement that a non-empty reference fails; None if the scorer can read it."""
        return None

    def corpus(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Return further scores of many answers, by name, in [0, 1]; items without a reference are left out."""
        return {}


def mean(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return every name's mean over the rows that have it."""
    values_of: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            values_of.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in values_of.items()}
