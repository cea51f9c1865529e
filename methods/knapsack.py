"""KnapSpec's knapsack over sublayers, and the acceptance rates of what survives it: the parts of its search.

Cha et al., ICML 2026, §3.4 and Appendix C; which settings a method gives them is the method's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from methods.similarity import directions, mean_cosine
from ssd_bench.core.layer_set import LayerSet
from ssd_bench.core.method import Probe
from ssd_bench.cost.latency import Latency

Columns = NDArray[np.int64]


class Agreement:
    """Acceptance rates (Eq. 9) of branches, with as few passes of the LM head as their comparison needs.

    A token of a branch that some other token's logit beats is refuted for good, so the logits of the few tokens
    predicted so far bound every rate from above; only a branch whose bound is still the best pays for the whole
    vocabulary, and only at its tokens that are not refuted.

    Args:
        full: [r, d] the full model's last states.
        branches: [B, r, d].

    Attributes:
        target: [r] what the full model predicts.
    """

    def __init__(self, probe: Probe, full: Tensor, branches: Tensor):
        self._probe, self._branches = probe, branches
        self.target = probe.predict(full)
        logits = probe.token_logits(branches, self.target)
        own = logits.diagonal(dim1=1, dim2=2)
        # products of other shapes round differently: what is within it of the best is left to the whole vocabulary
        self._limit = own + 8 * torch.finfo(branches.dtype).eps * own.abs()
        self._alive = torch.ones_like(own, dtype=torch.bool)
        self._refute(logits)

    def _refute(self, logits: Tensor) -> None:
        """Rule out the tokens [B, r] that one of these logits [B, r, k] beats."""
        self._alive &= logits.amax(-1) <= self._limit

    def bounds(self) -> list[float]:
        """An upper bound of every branch's rate; of a settled one, the rate."""
        return self._alive.float().mean(-1).tolist()

    def settle(self, index: int) -> None:
        """Make a branch's bound its rate: the share of its tokens that the full model predicts too."""
        rows = torch.nonzero(self._alive[index]).flatten()
        if len(rows):
            predicted = self._probe.predict(self._branches[index, rows.to(self._branches.device)])
            self._alive[index, rows] = predicted == self.target[rows]
            self._refute(self._probe.token_logits(self._branches, predicted.unique()))

    def leaders(self, value: Callable[[int, float], float], count: int) -> list[int]:
        """The `count` branches of highest value(index, rate), best first, the lower index among equals; settles them.

        Args:
            value: never falls as the rate rises.
        """
        settled: set[int] = set()
        while True:  # until the highest upper bounds belong to branches whose rate is known
            values = [value(i, bound) for i, bound in enumerate(self.bounds())]
            top = sorted(range(len(values)), key=values.__getitem__, reverse=True)[:count]
            unknown = next((i for i in top if i not in settled), None)
            if unknown is None:
                return top
            self.settle(unknown)
            settled.add(unknown)


@dataclass(frozen=True)
class Candidate:
    """A survivor of the knapsack: its set, skipped weight, mean cosine and final states [r, d]."""

    layer_set: LayerSet
    weight: int
    similarity: float
    hidden: Tensor


def weights(latency: Latency, context: float, cap: int | None) -> tuple[int, int]:
    """Integer weights (w_attn, w_mlp) of a sublayer: the cheaper kind weighs 1, the other its rounded ratio (§3.4)."""
    attn, mlp = latency.attn_ms(context), latency.t_mlp_ms
    ratio = max(1, round(max(attn, mlp) / min(attn, mlp)))
    heavy = ratio if cap is None else min(ratio, cap)
    return (heavy, 1) if attn > mlp else (1, heavy)


def n_columns(budget: float, weights: tuple[int, int], n_sub: int) -> int:
    """Skipped weights 0, 1, ... within a budget, as a share of the weight of all n_sub = 2L sublayers."""
    return int(budget * sum(weights) * n_sub / 2) + 1


@dataclass
class Knapsack:
    """The dynamic programme over (sublayer, skipped weight), all weights of a row at once.

    Row b holds, for every skipped weight j with a surviving branch, the stream of r tokens after sublayers 0..b-1;
    column 0 is the full model, so its stream is taken from the captured states. A branch attends to the committed
    prefix and to its own r tokens. Cosines are taken in float32.

    Args:
        states: [2L+1, r, d] float32, the full model's stream entering each sublayer, and the last one leaving.
        prefix_len: committed rows before the r tokens.
        weights: (w_attn, w_mlp).
        budget: skipped weight allowed, as a share of the total.
        min_similarity: branches with a smaller mean cosine are dropped.
        strict: those with an equal one as well.
        protect: never skip a sublayer of the first and the last block.
        dtype: of the streams that the model runs on.
    """

    states: Tensor
    prefix_len: int
    weights: tuple[int, int]
    budget: float
    min_similarity: float
    strict: bool
    protect: bool
    dtype: torch.dtype

    def run(self, probe: Probe) -> list[Candidate]:
        """Survivors of the last row, by ascending skipped weight."""
        n_sub = self.states.shape[0] - 1
        width = n_columns(self.budget, self.weights, n_sub)
        protected = 2 if self.protect else 0
        columns, toward = np.zeros(1, dtype=np.int64), directions(self.states)
        hidden = self.states[protected].to(self.dtype)[None]
        skips = np.zeros((n_sub, width), dtype=bool)
        scores = np.ones(1, dtype=np.float32)
        for b in range(protected, n_sub):
            executed = self._execute(probe, b, hidden, columns)
            weight = self.weights[b % 2] if b < n_sub - protected else width  # a weight that no column has room for
            columns, hidden, skips[b], scores = self._row(columns, hidden, executed, toward[b + 1], weight, width)
            if not len(columns):
                return []
        return [
            Candidate(self._backtrack(skips, j), j, score, stream)
            for j, score, stream in zip(columns.tolist(), scores.tolist(), hidden)
        ]

    def _execute(self, probe: Probe, b: int, hidden: Tensor, columns: Columns) -> Tensor:
        """Sublayer b over every branch; column 0 is the full model, whose stream is known (paper, App. C)."""
        known = self.states[b + 1].to(self.dtype)[None]
        if columns[-1] == 0:
            return known
        executed = probe.apply_sublayer(b, hidden, self.prefix_len)
        if columns[0] == 0:
            executed[:1] = known
        return executed

    def _row(
        self, columns: Columns, hidden: Tensor, executed: Tensor, direction: Tensor, weight: int, width: int
    ) -> tuple[Columns, Tensor, NDArray[np.bool_], NDArray[np.float32]]:
        """The next row from the executed and the skipped branches: per weight, the one of higher cosine."""
        gone = -np.inf
        cells = np.full((2, width), gone, dtype=np.float32)  # mean cosine of executing into / skipping into each weight
        cells[0, columns] = mean_cosine(executed, direction).cpu().numpy()
        reached = columns[columns + weight < width]  # the first ones: columns ascend
        if len(reached):
            cells[1, reached + weight] = mean_cosine(hidden[: len(reached)], direction).cpu().numpy()
        too_far = cells <= self.min_similarity if self.strict else cells < self.min_similarity
        cells[too_far] = gone
        skip = cells[1] > cells[0]  # ties execute
        best = cells.max(0)
        survivors = np.flatnonzero(best > gone)
        at = np.zeros(width, dtype=np.int64)
        at[columns] = np.arange(len(columns))
        streams = executed.index_select(0, self._on_device(at[survivors]))
        moved = np.flatnonzero(skip[survivors])
        if len(moved):
            origins = hidden.index_select(0, self._on_device(at[survivors[moved] - weight]))
            streams.index_copy_(0, self._on_device(moved), origins)
        return survivors, streams, skip, best[survivors]

    def _on_device(self, indices: Columns) -> Tensor:
        return torch.from_numpy(indices).to(self.states.device)

    def _backtrack(self, skips: NDArray[np.bool_], j: int) -> LayerSet:
        skipped = []
        for b in range(len(skips) - 1, -1, -1):
            if skips[b, j]:
                skipped.append(b)
                j -= self.weights[b % 2]
        return LayerSet(len(skips) // 2, frozenset(skipped))
