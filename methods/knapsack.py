"""The parts of KnapSpec's search: the knapsack over sublayers, and the acceptance rates of its survivors.

Source: Cha et al., ICML 2026, §3.4 and Appendix C. The settings come from the method that searches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from methods.similarity import directions, mean_cosine
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Probe
from ssd_bench.cost.latency import Latency

Columns = NDArray[np.int64]


class AcceptanceRates:
    """Acceptance rates (Eq. 9) of branches, with as few passes of the LM head as their comparison needs.

    A branch mismatches at a token if any other vocabulary entry has a larger logit there than the target. The logits of
    a few entries, the tokens predicted so far, can show a mismatch, but not a match. They bound every rate from above.
    Only a branch whose bound is still the best needs the whole vocabulary, and only at its tokens without a mismatch.

    Args:
        full: [r, d] the full model's last states.
        branches: [B, r, d] the branches' last states.

    Attributes:
        target: [r] predictions of the full model.
    """

    def __init__(self, probe: Probe, full: Tensor, branches: Tensor):
        self._probe, self._branches = probe, branches
        self.target = probe.predict(full)
        logits = probe.token_logits(branches, self.target)
        target_logits = logits.diagonal(dim1=1, dim2=2)  # [B, r]
        # products of other shapes round differently: near-ties are left to the pass over the whole vocabulary
        self._limit = target_logits + 8 * torch.finfo(branches.dtype).eps * target_logits.abs()
        self._alive = torch.ones_like(target_logits, dtype=torch.bool)  # tokens without a known mismatch
        self._refute(logits)

    def _refute(self, logits: Tensor) -> None:
        """Mark the tokens [B, r] where one of these logits [B, r, k] is larger than the target's as mismatches."""
        self._alive &= logits.amax(-1) <= self._limit

    def bounds(self) -> list[float]:
        """Return an upper bound of every branch's rate; for a settled branch it is the rate."""
        return self._alive.float().mean(-1).tolist()

    def settle(self, index: int) -> None:
        """Make a branch's bound its rate: the share of its tokens with the full model's prediction (Eq. 9)."""
        rows = torch.nonzero(self._alive[index]).flatten()
        if len(rows):
            predicted = self._probe.predict(self._branches[index, rows.to(self._branches.device)])
            self._alive[index, rows] = predicted == self.target[rows]
            self._refute(self._probe.token_logits(self._branches, predicted.unique()))

    def leaders(self, value: Callable[[int, float], float], count: int) -> list[int]:
        """Settle and return the `count` branches of highest value(index, rate), best first, lower index among equals.

        Args:
            value: score of a branch; it must not fall as the rate rises.
        """
        settled: set[int] = set()
        while True:  # until the highest bounds belong to settled branches; as value is monotone, no other can beat them
            values = [value(i, bound) for i, bound in enumerate(self.bounds())]
            top = sorted(range(len(values)), key=values.__getitem__, reverse=True)[:count]
            unsettled = next((i for i in top if i not in settled), None)
            if unsettled is None:
                return top
            self.settle(unsettled)
            settled.add(unsettled)


@dataclass(frozen=True)
class Branch:
    """A surviving branch of the knapsack: its set, skipped weight, mean cosine and final states [r, d]."""

    layer_set: LayerSet
    weight: int
    similarity: float
    hidden: Tensor


def weights(latency: Latency, context: float, cap: int | None) -> tuple[int, int]:
    """Return integer weights (w_attn, w_mlp): 1 for the cheaper kind, the rounded ratio for the other (§3.4)."""
    attn, mlp = latency.attn_ms(context), latency.t_mlp_ms
    ratio = max(1, round(max(attn, mlp) / min(attn, mlp)))
    heavy = ratio if cap is None else min(ratio, cap)
    return (heavy, 1) if attn > mlp else (1, heavy)


def n_columns(budget: float, weights: tuple[int, int], n_sub: int) -> int:
    """Return the number of skipped weights 0, 1, ... within a budget, a share of the weight of n_sub = 2L sublayers."""
    return int(budget * sum(weights) * n_sub / 2) + 1


@dataclass
class Knapsack:
    """The dynamic programme over (sublayer, skipped weight), all weights of a row at once (§3.4, App. C).

    g[b, j] is the stream of r tokens after sublayers 0 .. b-1 in the best branch of skipped weight j. X[b] is the full
    model's stream entering sublayer b, and w the weight of sublayer b. Then

        g[b+1, j] = whichever of f_b(g[b, j]) (execute) and g[b, j - w] (skip) has the higher mean cosine to X[b+1].

    Ties execute, and a branch with a cosine below `min_similarity` is dropped. g[b, 0] = X[b] needs no computation. A
    branch attends to the committed prefix and to its own r tokens. Cosines are computed in float32.

    Args:
        states: [2L+1, r, d] float32, X: the full model's stream entering each sublayer, and the one after the last.
        prefix_len: committed rows before the r tokens.
        weights: (w_attn, w_mlp).
        budget: skipped weight allowed, as a share of the total.
        min_similarity: τ, branches with a smaller mean cosine are dropped.
        strict: drop branches with a mean cosine equal to τ, too.
        protect: never skip a sublayer of the first and the last block.
        dtype: dtype of the streams that the model runs on.
    """

    states: Tensor
    prefix_len: int
    weights: tuple[int, int]
    budget: float
    min_similarity: float
    strict: bool
    protect: bool
    dtype: torch.dtype

    def run(self, probe: Probe) -> list[Branch]:
        """Return the surviving branches of the last row, by ascending skipped weight."""
        n_sub = self.states.shape[0] - 1
        width = n_columns(self.budget, self.weights, n_sub)
        protected = 2 if self.protect else 0
        # a row: skipped weights j with a branch, ascending, and the branches' streams [len(columns), r, d]
        columns, toward = np.zeros(1, dtype=np.int64), directions(self.states)
        hidden = self.states[protected].to(self.dtype)[None]
        skips = np.zeros((n_sub, width), dtype=bool)  # whether cell (b + 1, j) skips sublayer b, for the backtracking
        scores = np.ones(1, dtype=np.float32)
        for b in range(protected, n_sub):
            executed = self._execute(probe, b, hidden, columns)
            weight = self.weights[b % 2] if b < n_sub - protected else width  # `width` exceeds every column: no skip
            columns, hidden, skips[b], scores = self._row(columns, hidden, executed, toward[b + 1], weight, width)
            if not len(columns):
                return []
        return [
            Branch(self._backtrack(skips, j), j, score, stream)
            for j, score, stream in zip(columns.tolist(), scores.tolist(), hidden)
        ]

    def _execute(self, probe: Probe, b: int, hidden: Tensor, columns: Columns) -> Tensor:
        """Run sublayer b over every branch; column 0 is the full model, whose stream is known (App. C)."""
        full_model = self.states[b + 1].to(self.dtype)[None]
        if columns[-1] == 0:
            return full_model
        executed = probe.apply_sublayer(b, hidden, self.prefix_len)
        if columns[0] == 0:
            executed[:1] = full_model
        return executed

    def _row(
        self, columns: Columns, hidden: Tensor, executed: Tensor, direction: Tensor, weight: int, width: int
    ) -> tuple[Columns, Tensor, NDArray[np.bool_], NDArray[np.float32]]:
        """Return the next row: per skipped weight, the executed or the skipped branch, whichever has the higher cosine.

        Returns:
            Skipped weights with a branch, their streams, whether each weight [width] skips, and the branches' cosines.
        """
        empty = -np.inf
        cosines = np.full((2, width), empty, dtype=np.float32)  # by weight: of the branch that executes, that skips
        cosines[0, columns] = mean_cosine(executed, direction).cpu().numpy()
        sources = columns[columns + weight < width]  # g[b, j - w] within the budget; the first ones, as columns ascend
        if len(sources):
            cosines[1, sources + weight] = mean_cosine(hidden[: len(sources)], direction).cpu().numpy()
        too_far = cosines <= self.min_similarity if self.strict else cosines < self.min_similarity
        cosines[too_far] = empty
        skip = cosines[1] > cosines[0]  # ties execute
        best = cosines.max(0)
        survivors = np.flatnonzero(best > empty)
        index = np.zeros(width, dtype=np.int64)  # of a weight's branch in this row
        index[columns] = np.arange(len(columns))
        streams = executed.index_select(0, self._on_device(index[survivors]))
        skipping = np.flatnonzero(skip[survivors])
        if len(skipping):  # these take the stream of weight j - w as it is
            origins = hidden.index_select(0, self._on_device(index[survivors[skipping] - weight]))
            streams.index_copy_(0, self._on_device(skipping), origins)
        return survivors, streams, skip, best[survivors]

    def _on_device(self, indices: Columns) -> Tensor:
        return torch.from_numpy(indices).to(self.states.device)

    def _backtrack(self, skips: NDArray[np.bool_], j: int) -> LayerSet:
        """Return the set of the last row's branch of skipped weight j."""
        skipped = []
        for b in range(len(skips) - 1, -1, -1):
            if skips[b, j]:  # sublayer b is skipped: the branch comes from weight j - w
                skipped.append(b)
                j -= self.weights[b % 2]
        return LayerSet(len(skips) // 2, frozenset(skipped))
