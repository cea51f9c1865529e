"""Lookahead decoding: n-grams from Jacobi trajectories, verified in the pass that extends them (Fu et al., ICML 2024).

A window of N-1 rows holds guesses of W columns at N-1 successive Jacobi iterations: R_0 the oldest, R_{N-2} the newest.
A step feeds the root, the rows and the n-grams that the pool has for the root; the argmax at R_{N-2} is the next row,
and every column (R_1[j], .., R_{N-2}[j], new[j]) goes into the pool under C_j, the token before it (C_0 the root,
C_j = R_0[j-1]). All this is one tree: R_0 is a chain after the root, R_1[j] a child of C_j, R_{l+1}[j] of R_l[j], and
the n-grams are chains after the root, merged where they begin alike. Depths are the positions of the released code
and ancestors are what its mask shows; window and n-grams never see each other.

Only n-grams are candidates. A window node that happens to hold the target's token could be accepted without any loss,
but that is another algorithm, with Jacobi's gains on top (G = 0 would no longer be AR), so the
window is no candidate. Merged n-grams make the walk find the longest one.

Where paper and released codes differ, a switch says which is followed:

* a fully matched n-gram yields N tokens, as in the authors' code (hao-ai-lab/LookaheadDecoding), or N-1 by the loop
  index of its copy in Spec-Bench, which other papers compare with: `cap`. A token that cannot be taken is not fed;
* the pool starts empty (default) or with the n-grams of the prompt, and then learns those of the output: the option
  POOL_FROM_PROMPT, here without that code's fault of entering the last token of a step in place of each;
* under sampling that code takes EOS out of the newest row: `keep_out`.

Two things follow neither. The released codes begin to fill the window in the prefill pass; here all N-2 filling passes
come after it, so the window is full one pass later. Near the length limit the columns that reach beyond it are dropped:
their n-grams would stand for tokens that never come, and the columns that stay are unchanged.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Annotated, Literal

from methods.settings import Name
from ssd_bench.core.engine import SCRATCH
from ssd_bench.core.method import Context, Estimate, Prefill, Probe, Sample, Taps, Verification
from ssd_bench.core.tree import TokenTree
from ssd_bench.errors import ConfigError
from ssd_bench.model.shape import ModelDims
from ssd_bench.settings import Count, Range, Whole, settings


@settings("method")
class Lookahead:
    """Lookahead decoding with every switch on which paper and code differ."""

    taps = Taps()
    reuse_prefix = False
    greedy_only = False

    name: Name = "lookahead"
    window: Count = 7
    """W, columns."""
    ngram: Annotated[int, Range(3)] = 5
    """N, length of an n-gram with its key."""
    guesses: Whole = 7
    """G, n-grams kept (and verified) per key; 0: no pool."""
    cap: Literal["code", "full"] = "code"
    """Tokens that a fully matched n-gram yields: N-1, or N."""
    pool_from_prompt: bool = False
    """Enter the n-grams of the prompt and of the output, too."""
    keep_out: Sequence[Annotated[int, Range(0, what="a token id")]] = ()
    """Token ids (EOS) that random prompt tokens replace in the newest row."""
    seed: int = 10
    """Of the random prompt tokens, the same for every prompt."""

    def __post_init__(self) -> None:
        self._guess_len = self.ngram - 1 if self.cap == "full" else self.ngram - 2
        if self._most_nodes() > SCRATCH:
            given = f"W={self.window}, N={self.ngram}, G={self.guesses}"
            raise ConfigError("method.window", given, f"at most {SCRATCH} nodes a step, not {self._most_nodes()}")

    def check(self, dims: ModelDims) -> None:
        """Works with every model."""

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        """Nothing to prepare."""

    def start(self, prefill: Prefill) -> None:
        """An empty pool, and W+N-3 random prompt tokens for R_0."""
        self._rng, self._prompt = random.Random(self.seed), prefill.prompt
        self._rows = [[self._rng.choice(self._prompt) for _ in range(self.window + self.ngram - 3)]]
        self._pool = Pool(self.guesses)
        self._text: list[int] = []  # what the pool has learnt from
        if self.pool_from_prompt:
            self._read(prefill.prompt)

    def propose(self, context: Context) -> TokenTree:
        """The window and, once it is full, the pool's n-grams for the root, both within the length limit."""
        if self.pool_from_prompt:
            self._read(context.output[len(self._text) - len(self._prompt) :])
        root, room = context.output[-1], context.max_draft
        self._rows = within(self._rows, room)
        grams = self._pool.after(root) if self._full else ()
        return window_tree(root, [gram[: min(self._guess_len, room)] for gram in grams], self._rows)

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Extend the window by the argmax at its newest row, the pool by its columns; both end with their prompt."""
        if verification.last:
            return None
        rows, width = self._rows, len(self._rows[-1])
        new = verification.logits[len(verification.tree) - width :].argmax(-1).tolist()
        if self._full:
            for j, key in zip(range(width), [verification.tree.tokens[0], *rows[0]]):
                self._pool.enter(key, (*(row[j] for row in rows[1:]), new[j]))
            new = [self._rng.choice(self._prompt) if token in self.keep_out else token for token in new]
            self._rows = [rows[1][1:], *rows[2:], new]
        else:  # the first row of predictions begins a position later than R_0, so only it keeps its first element
            self._rows = [*(row[1:] for row in rows), new if len(rows) == 1 else new[1:]]
        return None

    @property
    def _full(self) -> bool:
        return len(self._rows) == self.ngram - 1

    def _most_nodes(self) -> int:
        """Nodes of the largest step: of the k-th filling pass, or of a full window with G n-grams."""
        filling = [k * (self.window + self.ngram - 1 - k) for k in range(1, self.ngram - 1)]
        return max(*filling, self.window * (self.ngram - 1) + self.guesses * self._guess_len)

    def _read(self, tokens: Sequence[int]) -> None:
        """Enter the n-grams that end with each of these tokens, the next ones of the text."""
        for token in tokens:
            self._text.append(token)
            if len(self._text) >= self.ngram:
                key, *gram = self._text[-self.ngram :]
                self._pool.enter(key, tuple(gram))


def window_tree(root: int, grams: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> TokenTree:
    """The root and the n-grams merged to a prefix tree, the candidates; then R_0, R_1, .. row by row.

    Args:
        root: newest output token.
        grams: in the pool's order.
        rows: R_0 one shorter than every other row (which are equally long), or R_0 alone.
    """
    tokens, parents = [root], [-1]
    known: dict[tuple[int, int], int] = {}
    for gram in grams:
        node = 0
        for token in gram:
            if (node, token) not in known:
                known[node, token] = len(tokens)
                tokens.append(token)
                parents.append(node)
            node = known[node, token]
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

    @property
    def keys(self) -> frozenset[int]:
        return frozenset(self._grams)

    def after(self, key: int) -> Sequence[tuple[int, ...]]:
        """The n-grams of a key, without it."""
        return self._grams.get(key, ())

    def enter(self, key: int, gram: tuple[int, ...]) -> None:
        """Put an n-gram last, a known one as well; a full list loses its first."""
        if not self._size:
            return
        grams = self._grams.setdefault(key, [])
        if gram in grams:
            grams.remove(gram)
        elif len(grams) == self._size:
            del grams[0]
        grams.append(gram)


def within(rows: list[list[int]], room: int) -> list[list[int]]:
    """The columns of a window whose nodes are all at depth `room` or less."""
    newest = len(rows) - 1
    if newest == 0:
        return [rows[0][:room]]
    width = max(0, min(len(rows[newest]), room - newest + 1))
    return [rows[0][: max(0, width - 1)], *(row[:width] for row in rows[1:])]
