"""Scorer for prompts without a reference."""

from __future__ import annotations

from tasks.scoring.scorer import Scorer


class Unscored(Scorer):
    """No score: the benchmark's authors let a larger model judge the answers."""

    metric = "none"

    def item(self, prediction: str, reference: str) -> float | None:
        return None
