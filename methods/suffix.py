"""Suffix decoding: draft the most frequent continuations of the newest tokens (Oliaro et al., arXiv:2411.04975).

The longest match of the output's end is looked up in two texts: the prompt with its output, and the stream's earlier
outputs. Every suffix of the match is also a source, since it occurs more often. A draft grows greedily from the
occurrences: a token's probability is its share among the continuations, times the probability of the path to it. Growth
ends below `min_prob` and at `factor` times the match's length. The draft with the largest sum of probabilities is
verified; the sum is the expected number of accepted tokens.

The released code (snowflakedb/ArcticInference) keeps suffix trees in C++; here texts are arrays, and a match's
occurrences are found by narrowing its last token's, one token at a time. The counts are the tree's.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from methods.settings import DraftLen, Name
from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.method import Context, Method, Prefill, Probe, Sample, Verification
from ssd_bench.contract.tree import TokenTree
from ssd_bench.settings import Count, Probability, Range, Whole, settings

Tokens = NDArray[np.int64]
SEPARATOR = -1  # between outputs; no match and no draft runs across it


@settings("method")
class Suffix(Method):
    """Drafting by the counts of earlier continuations."""

    name: Name = "suffix"
    max_match: Annotated[Count, "Longest match, in tokens."] = 64
    factor: Annotated[float, Range(above=0), "Largest number of drafted tokens per token of the match."] = 1.0
    min_prob: Annotated[Probability, "Probability below which a path is not drafted."] = 0.1
    draft_len: DraftLen = 24
    shape: Literal["chain", "tree"] = "chain"
    """Draft only the most frequent continuation (chain), or several (tree)."""
    memory: Annotated[Whole, "Newest tokens of earlier outputs that are kept; 0: each prompt starts anew."] = 100_000

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        self._past: Tokens = np.empty(0, np.int64)

    def start(self, prefill: Prefill) -> None:
        self._prompt_len = self._length = len(prefill.prompt)
        self._text = np.empty(2 * self._length + 64, np.int64)
        self._text[: self._length] = prefill.prompt

    def propose(self, context: Context) -> TokenTree:
        """Return the root and the draft of the largest expected acceptance."""
        self._append(context.output[self._length - self._prompt_len :])
        text = self._text[: self._length]
        limit = min(self.draft_len, context.max_draft)
        best = Draft((), (), 0.0)
        for source in (text, self._past):
            # the end of the text matches itself, too, but has no continuation yet (`matches` leaves it out)
            for positions, matched in matches(source, text, self.max_match):
                size = min(limit, int(self.factor * matched))
                draft = grow(source, positions, size, self.min_prob, self.shape == "tree")
                if draft.score > best.score:
                    best = draft
        return TokenTree((context.output[-1], *best.tokens), (-1, *best.parents))

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Keep the output once it has ended."""
        if verification.last:
            self._append(verification.emitted)
            output = self._text[self._prompt_len : self._length]
            past = np.concatenate([self._past, [SEPARATOR], output])
            self._past = past[len(past) - min(len(past), self.memory) :]
        return None

    def state(self) -> bytes:
        return self._past.tobytes()

    def restore(self, state: bytes) -> None:
        self._past = np.frombuffer(state, np.int64)

    def _append(self, tokens: Sequence[int]) -> None:
        end = self._length + len(tokens)
        if end > len(self._text):
            self._text = np.concatenate([self._text, np.empty(end, np.int64)])
        self._text[self._length : end] = tokens
        self._length = end


class Draft(NamedTuple):
    """A draft after the root.

    Attributes:
        tokens, parents: as in `TokenTree`, without the root, whose index is 0.
        score: expected number of accepted tokens, the sum of their probabilities.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    score: float


def matches(source: Tokens, text: Tokens, longest: int) -> Iterator[tuple[Tokens, int]]:
    """Yield the occurrences in `source` of the suffixes of `text`, shortest first, each set of occurrences once.

    Yields:
        The positions after the occurrences, and the length of their longest common suffix, at most `longest`.
    """
    newest = source[:-1] if source is text else source
    positions = np.flatnonzero(newest == text[-1])
    length = 1
    while len(positions):
        if length == min(longest, len(text)):
            yield positions + 1, length
            return
        earlier = positions - length
        longer = positions[(earlier >= 0) & (source[earlier] == text[-1 - length])]
        if len(longer) < len(positions):
            yield positions + 1, length
        positions = longer
        length += 1


def grow(source: Tokens, positions: Tokens, size: int, min_prob: float, branches: bool) -> Draft:
    """Return the likeliest continuations of some occurrences, by their counts.

    Args:
        positions: where continuations begin.
        size: most drafted tokens.
        min_prob: probability below which a path is left out.
        branches: allow several continuations of a token, not only the most frequent.
    """
    tokens: list[int] = []
    parents: list[int] = []
    score = 0.0
    # a heap of paths, the likeliest first; the serial number keeps the order of equals fixed
    waiting: list[tuple[float, int, int, int, Any]] = []
    serial = 0

    def enqueue(parent: int, starts: Tokens, prob: float) -> None:
        nonlocal serial
        inside = starts[starts < len(source)]
        values, counts = np.unique(source[inside], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        order = order[values[order] != SEPARATOR]
        for index in order if branches else order[:1]:
            path_prob = prob * float(counts[index]) / len(starts)
            if path_prob >= min_prob:
                value = int(values[index])
                heapq.heappush(waiting, (-path_prob, serial, parent, value, inside[source[inside] == value] + 1))
                serial += 1

    if size > 0:
        enqueue(0, positions, 1.0)
    while waiting and len(tokens) < size:
        negative_prob, _, parent, token, next_starts = heapq.heappop(waiting)
        tokens.append(token)
        parents.append(parent)
        score -= negative_prob
        enqueue(len(tokens), next_starts, -negative_prob)
    return Draft(tokens, parents, score)
