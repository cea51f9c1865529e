"""Drafts with random weights, accepted as often as a paper reports (`predict.acceptance`), for speedups on a machine.

The text is meaningless, so such a run has no losslessness check or score.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor

from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Context, LayerDraft, Method
from ssd_bench.contract.tree import TokenTree
from ssd_bench.engine.engine import Engine
from ssd_bench.predict.acceptance import Acceptance

WATCHED = 1e-30  # threshold of a confidence exit that never stops; its probability is computed, as in the papers
STRIDES = (0.7548776662466927, 0.5698402909980532)  # of the R2 low-discrepancy sequence (Roberts 2018)


class Imposed(Method):
    """A method that drafts with one layer set, and draws lengths and accepted tokens of drafts.

    The draws use a low-discrepancy sequence (an additive recurrence): dozens of steps have the wanted α and M, while
    independent random numbers were 10 % off.
    """

    name, greedy_only = "imposed", True

    def __init__(self, layer_set: LayerSet, acceptance: Acceptance, seed: int = 0):
        rng = random.Random(seed)
        self._layer_set, self._acceptance, self._point = layer_set, acceptance, (rng.random(), rng.random())
        self.accepted = 0

    def propose(self, context: Context) -> LayerDraft | TokenTree:
        """Return a draft of a drawn length; for length 0 the root alone."""
        u, v = self._point
        self._point = (u + STRIDES[0]) % 1, (v + STRIDES[1]) % 1
        self.accepted, drafted = self._acceptance.sample(u, v)
        if not drafted:
            return TokenTree((context.output[-1],), (-1,))
        return LayerDraft(self._layer_set, drafted, WATCHED)


class ImposedEngine(Engine):
    """An engine that accepts as many tokens as `method` drew; the model runs, but does not decide."""

    method: Imposed | None = None

    def accept(self, tree: TokenTree, logits: Tensor, generator: torch.Generator) -> tuple[list[int], int]:
        predicted = logits.argmax(-1).tolist()
        accepted = 0 if self.method is None else min(self.method.accepted, tree.draft_len)
        return list(range(accepted + 1)), int(predicted[accepted])
