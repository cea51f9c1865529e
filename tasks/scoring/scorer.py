"""What a scorer is: a score of one answer, and the scores of many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence


class Scorer(ABC):
    """Compares answers with references, both texts; a reference of several parts is JSON.

    Attributes:
        metric: name of what `item` returns, the headline in every table.
    """

    metric: str

    @abstractmethod
    def item(self, prediction: str, reference: str) -> float | None:
        """Return the score in [0, 1] of one answer; None where the reference is empty: the item cannot be scored."""

    def reference_fault(self, reference: str) -> str | None:
        """Say what a reference must be, where this scorer cannot read the given one; None where it can.

        Args:
            reference: not empty; an empty one is no fault, its item has no score.
        """
        return None

    def corpus(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """What else there is to say of many answers, by name, in [0, 1], beside the mean of `item`.

        Items without a reference are left out.
        """
        return {}


def mean(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Mean of every name over the rows that have it."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}
