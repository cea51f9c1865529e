"""Base class of scorers that first have to find the answer in a text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from tasks.scoring.scorer import Scorer

Expected = TypeVar("Expected")


class ReadingScorer(Scorer, Generic[Expected]):
    """1.0 if the answer read from a text is right, else 0.0.

    `unread` is the share of texts without a readable answer, which score 0.0 but often show a fault of the prompt or
    the limit of new tokens.
    """

    def item(self, prediction: str, reference: str) -> float | None:
        expected = self.expected(reference)
        return None if expected is None else float(self.verdict(prediction, expected) is True)

    def corpus(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        pairs = [(text, self.expected(reference)) for text, reference in zip(predictions, references, strict=True)]
        unread = [self.verdict(text, expected) is None for text, expected in pairs if expected is not None]
        return {"unread": sum(unread) / len(unread)} if unread else {}

    @abstractmethod
    def expected(self, reference: str) -> Expected | None:
        """Return the right answer; None if the reference has none."""

    @abstractmethod
    def verdict(self, prediction: str, expected: Expected) -> bool | None:
        """Return whether a text's answer is the expected one; None if it has none."""
