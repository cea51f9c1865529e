"""The parts of KnapSpec's search: the knapsack over sublayers, and the acceptance rates of its survivors.

Source: Cha et al., ICML 2026, §3.4 and Appendix C.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Probe
from ssd_bench.cost.latency import Latency

Columns = NDArray[np.int64]
EXECUTE, INT8, INT4, SKIP = range(4)
"""Choices for a sublayer: run, run with 8-bit or 4-bit weights, skip."""
CHOICE_BITS = {INT8: 8, INT4: 4}


def directions(states: Tensor) -> Tensor:
    """Return the full model's streams [..., d] as float32 unit vectors, for `Probe.mean_cosine`."""
    return F.normalize(states.float(), dim=-1)


class AcceptanceRates:
    """Acceptance rates (Eq. 9) of branches, with the fewest passes of the LM head for their comparison.

    A branch mismatches at a token if any vocabulary entry has a larger logit than the full model's prediction, the
    target. The logits of the tokens predicted so far can show a mismatch but no match, so they bound every rate from
    above. Only branches with the best bounds need the whole vocabulary, at tokens without a known mismatch: then they
    are settled, and the bound is the rate.

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
        self._possible = torch.ones_like(target_logits, dtype=torch.bool)  # [B, r] tokens without a known mismatch
        self._mark_mismatches(logits)

    def _mark_mismatches(self, logits: Tensor) -> None:
        self._possible &= logits.amax(-1) <= self._limit

    def bounds(self) -> list[float]:
        """Return an upper bound of every branch's rate; the rate itself for a settled branch."""
        return self._possible.float().mean(-1).tolist()

    def settle(self, index: int) -> None:
        """Make a branch's bound its rate, the share of tokens predicted as by the full model (Eq. 9)."""
        rows = torch.nonzero(self._possible[index]).flatten()
        if len(rows):
            predicted = self._probe.predict(self._branches[index, rows.to(self._branches.device)])
            self._possible[index, rows] = predicted == self.target[rows]
            # the new predictions may show mismatches of the other branches, too
            self._mark_mismatches(self._probe.token_logits(self._branches, predicted.unique()))

    def leaders(self, value: Callable[[int, float], float], count: int) -> list[int]:
        """Settle and return the `count` branches of highest value(index, rate), best first; ties go to the lower index.

        A branch's value must not fall as its rate rises.
        """
        settled: set[int] = set()
        # settle the best bounds until all of them are rates: as value does not fall, no other branch can beat them
        while True:
            values = [value(i, bound) for i, bound in enumerate(self.bounds())]
            top = sorted(range(len(values)), key=values.__getitem__, reverse=True)[:count]
            unsettled = next((i for i in top if i not in settled), None)
            if unsettled is None:
                return top
            self.settle(unsettled)
            settled.add(unsettled)


@dataclass(frozen=True)
class Branch:
    """Surviving branch of the knapsack: its set, skipped weight, mean cosine and final states [r, d]."""

    layer_set: LayerSet
    weight: int
    similarity: float
    hidden: Tensor


def integer_weights(latency: Latency, context: float, cap: int | None, bits: int = 0) -> tuple[int, int]:
    """Return (w_attn, w_mlp) by times in `bits`: 1 for the faster kind, the rounded ratio for the other (§3.4)."""
    attn, mlp = latency.pass_ms(1, context, bits)[:2] if bits else (latency.attn_ms(context), latency.t_mlp_ms)
    ratio = max(1, round(max(attn, mlp) / min(attn, mlp)))
    heavy = ratio if cap is None else min(ratio, cap)
    return (heavy, 1) if attn > mlp else (1, heavy)


def mixed_weights(
    latency: Latency, context: float, cap: int | None, bits: Collection[int]
) -> tuple[tuple[int, int], dict[int, tuple[int, int]]]:
    """Return weights (w_attn, w_mlp) in parts of the units of `integer_weights`, and the weights that rounding saves.

    A unit has one part more than there are bits. Rounding saves at least one part, and less than a skip.
    """
    attn, mlp = integer_weights(latency, context, cap)
    full, parts = (latency.attn_ms(context), latency.t_mlp_ms), 1 + len(bits)
    whole = parts * attn, parts * mlp

    def saved(of: int, kind: int) -> int:
        share = 1 - latency.pass_ms(1, context, of)[kind] / full[kind]
        return min(max(1, round(share * whole[kind])), whole[kind] - 1)

    return whole, {of: (saved(of, 0), saved(of, 1)) for of in bits}


def n_columns(budget: float, weights: tuple[int, int], n_sub: int) -> int:
    """Return the number of skipped weights 0, 1, ... within a budget, a share of the weight of n_sub sublayers."""
    return int(budget * sum(weights) * n_sub / 2) + 1


@dataclass
class Knapsack:
    """The dynamic programme over (sublayer, skipped weight), all weights of a row at once (§3.4, App. C).

    g[b, j] is the stream of r tokens after sublayers 0 .. b-1, in the best branch that skips weight j; X[b] is the full
    model's stream that enters sublayer b; f_b is sublayer b, w its weight:

        g[b+1, j] = argmax_s mean cos(s, X[b+1]) over s = f_b(g[b, j]) (execute) and s = g[b, j - w] (skip).

    `rounded_weights` adds branches (ours): s = f8_b(g[b, j - w8]), sublayer b with 8-bit weights, which saves weight
    w8, and the same in 4 bits. Ties execute, then read more bits. g[b, 0] = X[b] needs no pass. A branch attends to the
    committed prefix and its own r tokens. Cosines are float32.

    Args:
        states: X, [2L+1, r, d] float32: the full model's stream into each sublayer, and after the last.
        prefix_len: committed rows before the r tokens.
        weights: (w_attn, w_mlp).
        budget: largest skipped share of the weight.
        min_similarity: τ, branches with a smaller mean cosine are dropped.
        strict: also drop branches with a mean cosine equal to τ.
        protect: never skip a sublayer of the first and the last block.
        dtype: of the model's streams.
        rounded_weights: saved weights by bits, such as (w8_attn, w8_mlp).
    """

    states: Tensor
    prefix_len: int
    weights: tuple[int, int]
    budget: float
    min_similarity: float
    strict: bool
    protect: bool
    dtype: torch.dtype
    rounded_weights: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def run(self, probe: Probe) -> list[Branch]:
        """Return the last row's surviving branches, by ascending skipped weight."""
        n_sub = self.states.shape[0] - 1
        width = self._width
        protected = 2 if self.protect else 0
        # the present row: columns j with a branch, ascending; their streams [len(columns), r, d]; their cosines.
        # The first row has column 0 alone, the full model's stream: a protected first block executes
        columns, hidden = np.zeros(1, dtype=np.int64), self.states[protected].to(self.dtype)[None]
        cosines = np.ones(1, dtype=np.float32)
        full_directions = directions(self.states)
        choices = np.zeros(
            (n_sub, width), dtype=np.uint8
        )  # how cell (b + 1, j) treats sublayer b, for the backtracking
        for b in range(protected, n_sub):
            # in the protected last block nothing is saved: `width` is beyond every column
            free = b < n_sub - protected
            # by the number of the choice: streams after sublayer b, and the weight that it saves
            alternatives = {EXECUTE: (self._execute(probe, b, hidden, columns), 0)}
            for choice, bits in CHOICE_BITS.items():
                if free and bits in self.rounded_weights:
                    rounded = probe.apply_sublayer(b, hidden, self.prefix_len, bits)
                    alternatives[choice] = rounded, self.rounded_weights[bits][b % 2]
            alternatives[SKIP] = hidden, self.weights[b % 2] if free else width
            columns, hidden, choices[b], cosines = self._next_row(probe, columns, alternatives, full_directions[b + 1])
            if not len(columns):
                return []
        return [
            Branch(self._backtrack(choices, j), j, cosine, stream)
            for j, cosine, stream in zip(columns.tolist(), cosines.tolist(), hidden)
        ]

    @property
    def _width(self) -> int:
        return n_columns(self.budget, self.weights, self.states.shape[0] - 1)

    def _execute(self, probe: Probe, b: int, hidden: Tensor, columns: Columns) -> Tensor:
        """Run sublayer b over every branch; column 0, the full model's stream, needs no pass (App. C)."""
        full_model = self.states[b + 1].to(self.dtype)[None]
        if columns[-1] == 0:
            return full_model
        executed = probe.apply_sublayer(b, hidden, self.prefix_len)
        if columns[0] == 0:
            executed[:1] = full_model
        return executed

    def _next_row(
        self, probe: Probe, columns: Columns, alternatives: Mapping[int, tuple[Tensor, int]], direction: Tensor
    ) -> tuple[Columns, Tensor, NDArray[np.uint8], NDArray[np.float32]]:
        """Return row b + 1: per column, the most similar branch over all choices for sublayer b.

        Args:
            alternatives: by choice, ascending, the streams [len(columns), r, d] after sublayer b, and the saved weight;
                includes `EXECUTE`.
            direction: [r, d], of X[b+1].

        Returns:
            Columns with a branch, the branches' streams, each column's choice [width], and the branches' cosines.
        """
        no_branch, width = -np.inf, self._width
        # 1) cosines by choice and column j, from g[b, j - saved weight]
        cosines = np.full((SKIP + 1, width), no_branch, dtype=np.float32)
        for choice, (streams, saved) in alternatives.items():
            sources = columns[columns + saved < width]  # within the budget; as columns ascend, the first ones
            if len(sources):
                cosines[choice, sources + saved] = probe.mean_cosine(streams[: len(sources)], direction)
        dissimilar = cosines <= self.min_similarity if self.strict else cosines < self.min_similarity
        cosines[dissimilar] = no_branch
        # 2) the best of them; among equals the first choice
        choices, best = cosines.argmax(0).astype(np.uint8), cosines.max(0)
        survivors = np.flatnonzero(best > no_branch)
        # 3) their streams: first as if all executed, then of other choices
        index = np.zeros(width, dtype=np.int64)  # column -> index of its branch in row b
        index[columns] = np.arange(len(columns))
        chosen = alternatives[EXECUTE][0].index_select(0, self._on_device(index[survivors]))
        for choice, (streams, saved) in alternatives.items():
            at = np.flatnonzero(choices[survivors] == choice)
            if choice != EXECUTE and len(at):
                others = streams.index_select(0, self._on_device(index[survivors[at] - saved]))
                chosen.index_copy_(0, self._on_device(at), others)
        return survivors, chosen, choices, best[survivors]

    def _on_device(self, indices: Columns) -> Tensor:
        return torch.from_numpy(indices).to(self.states.device)

    def _backtrack(self, choices: NDArray[np.uint8], j: int) -> LayerSet:
        """Return the set of the last row's column j; with rounded weights the head has the fewest bits."""
        n_sub, skipped = len(choices), []
        rounded = [(len(choices), min(self.rounded_weights))] if self.rounded_weights else []
        for b in range(n_sub - 1, -1, -1):
            if choices[b, j] == SKIP:  # the branch came from column j - w, if sublayer b executed from column j
                skipped.append(b)
                j -= self.weights[b % 2]
            elif (bits := CHOICE_BITS.get(int(choices[b, j]))) is not None:
                rounded.append((b, bits))
                j -= self.rounded_weights[bits][b % 2]
        return LayerSet(n_sub // 2, frozenset(skipped), frozenset(rounded))
