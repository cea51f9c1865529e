"""What the modules share: features and computation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import datasets
import evaluate

from tasks.scoring.scorer import Scorer, mean


class ScorerModule(evaluate.Metric, ABC):
    """A scorer as a metric of `evaluate`; abstract, since `evaluate` takes the first class of a file that is not.

    `compute(predictions=TEXTS, references=TEXTS)` returns the mean of the scorer's `item`, by the name of its metric,
    and its `corpus`; with `items=True` also the list `items` with the score of each answer, None where its reference
    is empty.
    """

    @abstractmethod
    def scorer(self) -> Scorer:
        """A new scorer."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return info(type(self.scorer()).__doc__, {"predictions": text, "references": text})

    def _compute(self, predictions: list[str], references: list[str], items: bool = False) -> dict[str, Any]:
        scorer = self.scorer()
        each = [scorer.item(p, r) for p, r in zip(predictions, references, strict=True)]
        found: dict[str, Any] = mean({scorer.metric: score} for score in each if score is not None)
        found |= scorer.corpus(predictions, references)
        return found | ({"items": each} if items else {})


def info(description: str | None, features: dict[str, Any]) -> evaluate.MetricInfo:
    """What `evaluate` asks for: a description, none of whose papers are cited here, and the types of the inputs."""
    return evaluate.MetricInfo(
        description=description or "", citation="", inputs_description="", features=datasets.Features(features)
    )
