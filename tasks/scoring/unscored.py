"""For prompts whose answers nothing is compared with."""

from __future__ import annotations

from tasks.scoring.scorer import Scorer


class Unscored(Scorer):
    """No score of any answer: what its authors have is the word of a larger model."""

    metric = "none"

    def item(self, prediction: str, reference: str) -> float | None:
        """None."""
        return None
