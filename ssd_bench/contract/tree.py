"""Token trees: candidates after a root; each node sees the committed prefix, its ancestors and itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenTree:
    """Nodes to verify in one forward pass; node 0 is the root, the newest output token.

    Attributes:
        tokens: token id of every node, length n.
        parents: index of every node's parent, which comes before it; -1 for the root.
        draft_probs: [m, V], row i is the distribution q from which the children of node i were drawn, without
            replacement and in node order (every node with children needs a row); None if they were not drawn.
        n_candidates: nodes 0 .. n_candidates - 1 may be accepted; None: all. The target also runs on the others, for
            the method to read its logits; their children may not be candidates.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    draft_probs: Tensor | None = None
    n_candidates: int | None = None

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents) or not self.tokens:
            raise ValueError(f"a tree needs one parent per token, got {len(self.tokens)} and {len(self.parents)}")
        if self.parents[0] != -1 or any(not 0 <= p < i for i, p in enumerate(self.parents) if i):
            raise ValueError(f"parents must be -1 for the root and precede their children, got {self.parents}")

    @classmethod
    def chain(cls, tokens: Sequence[int], draft_probs: Tensor | None = None) -> TokenTree:
        """Return a root followed by one draft."""
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), draft_probs)

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(-1, len(self.tokens) - 1))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Distance of every node from the root; its position is the committed length plus this distance."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def draft_len(self) -> int:
        """k, candidates on the longest path."""
        return max(self.depths[: self.n_candidates])

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Candidate children of every node, in node order."""
        lists: list[list[int]] = [[] for _ in self.tokens]
        for node, parent in enumerate(self.parents[1 : self.n_candidates], start=1):
            lists[parent].append(node)
        return tuple(tuple(nodes) for nodes in lists)

    def mask(self) -> Tensor:
        """Return the mask [n, n] bool, on the CPU: entry (i, j) is true if node j is node i or an ancestor of it."""
        visible = np.eye(len(self), dtype=bool)  # NumPy: PyTorch takes six times as long for rows of this size
        for node, parent in enumerate(self.parents[1:], start=1):
            visible[node] |= visible[parent]  # the parent's row is complete: parents precede their children
        return torch.from_numpy(visible)

    def trimmed(self, max_depth: int, max_nodes: int) -> TokenTree:
        """Return the tree cut to depth `max_depth`, and then to its first `max_nodes` nodes."""
        # both cuts keep the parent of every kept node: it is less deep and comes earlier
        keep = [i for i, depth in enumerate(self.depths) if depth <= max_depth][:max_nodes]
        if len(keep) == len(self):
            return self
        new_index = {old: i for i, old in enumerate(keep)} | {-1: -1}
        probs = None
        if self.draft_probs is not None:
            # the last nodes may be leaves without a row
            probs = self.draft_probs[[i for i in keep if i < len(self.draft_probs)]]
        candidates = None if self.n_candidates is None else sum(i < self.n_candidates for i in keep)
        return TokenTree(
            tuple(self.tokens[i] for i in keep), tuple(new_index[self.parents[i]] for i in keep), probs, candidates
        )


def comb(levels: Sequence[Sequence[int]], probs: Sequence[Tensor] | None = None) -> TokenTree:
    """Return a comb: a chain of the first candidate of every level, with the other candidates as leaves.

    Args:
        levels: token ids by depth; levels[0] is the root alone.
        probs: [V] each, entry j is the distribution of the candidates of level j + 1.
    """
    tokens: list[int] = []
    parents: list[int] = []
    firsts = [-1]  # node of the first candidate by level; -1: parent of the root
    for level in levels:
        parent = firsts[-1]
        firsts.append(len(tokens))
        tokens += level
        parents += [parent] * len(level)
    if probs is None:
        return TokenTree(tuple(tokens), tuple(parents))
    # row i belongs to node i; rows of leaves stay 0, no child was drawn from them
    rows = probs[0].new_zeros(firsts[len(probs)] + 1, len(probs[0]))
    for node, row in zip(firsts[1:], probs):
        rows[node] = row
    return TokenTree(tuple(tokens), tuple(parents), rows)
