"""Ledger: gains of drafting, costs of exploration, and the remaining allowed loss."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Ledger:
    """Gains and costs of one stream of prompts, in AR steps.

    Drafting and exploration together may lose `stake` steps plus a share `regret` of the output tokens. Exploration
    alone may cost `stake` steps, half that share, and a share `profit` of the gain of layer sets and windows. The gain
    of copied text does not pay for exploration: it says nothing about layer sets.

    Attributes:
        tokens: output tokens.
        gain: emitted tokens of all draft steps minus their time; AR would have taken one step per token.
        layer_gain: part of `gain` from layer sets or windows.
        explored: cost of evaluations and searches.
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

    def is_exhausted(self) -> bool:
        return self.gain - self.explored < -self._allowance()

    def credit(self) -> float:
        """Return the AR steps that exploration may cost now, within its budget and the allowed loss."""
        budget = self.stake + self.regret / 2 * self.tokens + self.profit * max(0.0, self.layer_gain)
        return min(budget, self._allowance() + self.gain) - self.explored

    def _allowance(self) -> float:
        return self.stake + self.regret * self.tokens
