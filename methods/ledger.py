"""Ledger: what drafting gained, what exploration cost, and how much of both may still be lost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Ledger:
    """Gains and costs of one stream of prompts, in AR steps.

    All drafting together may lose `stake` steps and a share `regret` of the output tokens. Exploration may cost `stake`
    steps, half of that share, and a share `profit` of the gain of layer sets and windows; but not of the gain of copied
    text, which says nothing about layer sets.

    Attributes:
        tokens: output tokens so far.
        gain: tokens of all draft steps minus their time.
        layer_gain: the same of steps with a layer set or window only.
        explored: cost of rehearsals and searches.
        searches: searches so far.
        failures: searches since the last one whose layer set came into use.
    """

    stake: float
    regret: float
    profit: float
    tokens: int = 0
    gain: float = 0.0
    layer_gain: float = 0.0
    explored: float = 0.0
    searches: int = 0
    failures: int = 0

    def ruined(self) -> bool:
        """Return whether all that may be lost is lost."""
        return self.gain - self.explored < -self._allowance()

    def credit(self) -> float:
        """Return the AR steps that exploration may cost now."""
        share = self.stake + self.regret / 2 * self.tokens + self.profit * max(0.0, self.layer_gain)
        return min(share, self._allowance() + self.gain) - self.explored

    def _allowance(self) -> float:
        return self.stake + self.regret * self.tokens
