"""Lookahead decoding: n-grams from Jacobi trajectories, verified in the pass that extends them (Fu et al., ICML 2024).

A window of N-1 rows and W columns holds guesses of N-1 successive Jacobi iterations: R_0 is the oldest, R_{N-2} the
newest. A step runs the target on the root, the rows and the pool's n-grams for the root. The argmax at R_{N-2} is the
next row. Every column (R_1[j], .., R_{N-2}[j], new[j]) goes into the pool under the key C_j, the token before it: C_0
is the root, and C_j = R_0[j-1]. All this is one tree: R_0 is a chain after the root, R_1[j] a child of C_j, and
R_{l+1}[j] a child of R_l[j]; the n-grams are chains after the root, merged at common beginnings. Depths and ancestors
equal the released code's positions and mask. Window and n-grams never see each other.

Only n-grams are candidates; accepting window nodes, too, would be lossless, but another algorithm (G = 0 would not be
AR). Since n-grams are merged, acceptance finds the longest match.

Columns beyond the length limit are dropped. `methods/fidelity.md` has the differences between the paper, the authors'
code (hao-ai-lab/LookaheadDecoding) and Spec-Bench's copy, with which other papers compare.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Annotated, Literal

from methods.settings import Name
from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.method import Context, Method, Prefill, Probe, Verification
from ssd_bench.contract.tree import TokenTree
from ssd_bench.engine.engine import SCRATCH
from ssd_bench.errors import ConfigError
from ssd_bench.settings import Count, Range, Whole, settings


@settings("method")
class Lookahead(Method):
    """Lookahead decoding, with a switch for every difference between paper and code."""

    name: Name = "lookahead"
    window: Count = 7
    """W, columns of the window."""
    ngram: Annotated[int, Range(3)] = 5
    """N, length of an n-gram, including its key."""
    guesses: Whole = 7
    """G, n-grams stored and verified per key; 0: no pool."""
    cap: Literal["code", "full"] = "code"
    """Tokens of a fully matched n-gram: N-1 (code) or N (full)."""
    pool_from_prompt: bool = False
    """Also put the n-grams of prompt and output into the pool."""
    keep_out: Sequence[Annotated[int, Range(0, what="a token id")]] = ()
    """Token ids (EOS) replaced by random prompt tokens in the newest row."""
    seed: int = 10
    """Seed of the random prompt tokens, the same for every prompt."""

    def __post_init__(self) -> None:
        self._guess_len = self.ngram - 1 if self.cap == "full" else self.ngram - 2
        if self._most_nodes() > SCRATCH:
            sizes = f"W={self.window}, N={self.ngram}, G={self.guesses}"
            raise ConfigError("method.window", sizes, f"at most {SCRATCH} nodes a step, not {self._most_nodes()}")

    def start(self, prefill: Prefill) -> None:
        """Begin a prompt with an empty pool and W+N-3 random prompt tokens as R_0."""
        self._rng, self._prompt = random.Random(self.seed), prefill.prompt
        self._rows = [[self._rng.choice(self._prompt) for _ in range(self.window + self.ngram - 3)]]
        self._pool = Pool(self.guesses)
        self._text: list[int] = []  # the text whose n-grams are in the pool
        if self.pool_from_prompt:
            self._read(prefill.prompt)

    def propose(self, context: Context) -> TokenTree:
        """Propose the window and, once full, the pool's n-grams for the root, within the length limit."""
        if self.pool_from_prompt:
            self._read(context.output[len(self._text) - len(self._prompt) :])
        root, max_depth = context.output[-1], context.max_draft
        self._rows = trim_window(self._rows, max_depth)
        grams = self._pool.ngrams(root) if self._full else ()
        return window_tree(root, [gram[: min(self._guess_len, max_depth)] for gram in grams], self._rows)

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Add the argmax at the newest row to the window, and the window's columns to the pool."""
        if verification.last:  # both end with their prompt
            return None
        rows, width = self._rows, len(self._rows[-1])
        new = verification.logits[len(verification.tree) - width :].argmax(-1).tolist()
        if self._full:
            for j, key in zip(range(width), [verification.tree.tokens[0], *rows[0]]):
                self._pool.enter(key, (*(row[j] for row in rows[1:]), new[j]))
            new = [self._rng.choice(self._prompt) if token in self.keep_out else token for token in new]
            self._rows = [rows[1][1:], *rows[2:], new]  # R_0 is dropped; R_1, the new R_0, loses its first element
        else:  # the first row of predictions begins a position later than R_0, so only it keeps its first element
            self._rows = [*(row[1:] for row in rows), new if len(rows) == 1 else new[1:]]
        return None

    @property
    def _full(self) -> bool:
        return len(self._rows) == self.ngram - 1

    def _most_nodes(self) -> int:
        longest_row = self.window + self.ngram - 1
        k = min(self.ngram - 2, longest_row // 2)  # k * (longest_row - k) is largest in the middle
        return max(k * (longest_row - k), self.window * (self.ngram - 1) + self.guesses * self._guess_len)

    def _read(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._text.append(token)
            if len(self._text) >= self.ngram:
                key, *gram = self._text[-self.ngram :]
                self._pool.enter(key, tuple(gram))


def window_tree(root: int, grams: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> TokenTree:
    """Return a step's tree: root and n-grams as a prefix tree (the candidates), then R_0, R_1, .. by row.

    Args:
        grams: n-grams without their key, in the pool's order.
        rows: R_0, perhaps followed by equally long rows with one token more.
    """
    tokens, parents = [root], [-1]
    children: dict[tuple[int, int], int] = {}  # (node, token) -> child with this token
    for gram in grams:
        node = 0
        for token in gram:
            if (node, token) not in children:
                children[node, token] = len(tokens)
                tokens.append(token)
                parents.append(node)
            node = children[node, token]
    candidates = len(tokens)
    above = [0, *range(candidates, candidates + len(rows[0]))]  # C_0, C_1, ..
    tokens += rows[0]
    parents += above[:-1]
    for row in rows[1:]:
        parents += above[: len(row)]
        above = list(range(len(tokens), len(tokens) + len(row)))
        tokens += row
    return TokenTree(tuple(tokens), tuple(parents), n_candidates=candidates)


class Pool:
    """At most `size` n-grams per key token, the least recently entered first."""

    def __init__(self, size: int):
        self._size = size
        self._grams: dict[int, list[tuple[int, ...]]] = {}

    def ngrams(self, key: int) -> Sequence[tuple[int, ...]]:
        return self._grams.get(key, ())

    def enter(self, key: int, gram: tuple[int, ...]) -> None:
        """Put an n-gram last, even a listed one; a full list loses its first."""
        if not self._size:
            return
        grams = self._grams.setdefault(key, [])
        if gram in grams:
            grams.remove(gram)
        elif len(grams) == self._size:
            del grams[0]
        grams.append(gram)


def trim_window(rows: list[list[int]], max_depth: int) -> list[list[int]]:
    """Return the window's columns whose nodes are all at most `max_depth` deep."""
    newest = len(rows) - 1
    if newest == 0:
        return [rows[0][:max_depth]]
    width = max(0, min(len(rows[newest]), max_depth - newest + 1))
    return [rows[0][: max(0, width - 1)], *(row[:width] for row in rows[1:])]
