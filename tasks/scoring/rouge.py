"""Scorer of summaries and other free text."""

from __future__ import annotations

from collections.abc import Sequence

from ssd_bench.rouge import rouge
from tasks.scoring.scorer import Scorer, mean


class Rouge(Scorer):
    """ROUGE F1 with Porter stemming: L over the whole text (one longest common subsequence), 1 and 2.

    A reference without a word (punctuation, emoji) has no score.
    """

    metric = "rougeL"

    def item(self, prediction: str, reference: str) -> float | None:
        """Return ROUGE-L."""
        return rouge(prediction, reference).get("rougeL")

    def corpus(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Return the means of ROUGE-1 and ROUGE-2."""
        means = mean(rouge(p, r) for p, r in zip(predictions, references, strict=True))
        return {name: value for name, value in means.items() if name != self.metric}
