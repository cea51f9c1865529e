"""Suffix decoding: draft by how often the newest tokens were continued in which way (Oliaro et al., arXiv:2411.04975).

The longest match of the output's end is looked up in two texts: the prompt with its output, and the earlier outputs of
the stream. Every suffix of the match, shorter and so with more occurrences, is a candidate as well. From its
occurrences the draft is grown greedily: a token's probability is its share among the continuations, times that of
the path to it; growth ends below `min_prob` and at `factor` times the match's length. The draft whose probabilities
sum to the most is verified: that sum is the expected number of accepted tokens if the past is a fair guide.

Differences from the released code (snowflakedb/ArcticInference), which keeps suffix trees in C++: here the texts are
arrays, and the occurrences of a match are found by narrowing those of its last token, one token at a time. The counts
are those of the tree: `tests/test_suffix.py` holds them to a brute-force count. Earlier outputs are kept up to `memory`
tokens, the newest; there, up to a number of requests.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from methods.settings import DraftLen, Name
from ssd_bench.core.method import Context, Estimate, Prefill, Probe, Sample, Taps, Verification
from ssd_bench.core.tree import TokenTree
from ssd_bench.model.shape import ModelDims
from ssd_bench.settings import Count, Probability, Range, Whole, settings

Tokens = NDArray[np.int64]
SEPARATOR = -1  # between outputs; no match and no draft runs across it


@settings("method")
class Suffix:
    """Drafts by the counts of earlier continuations."""

    taps = Taps()
    reuse_prefix = False
    greedy_only = False

    name: Name = "suffix"
    max_match: Annotated[Count, "Tokens of a match at most."] = 64
    factor: Annotated[float, Range(above=0), "Drafted tokens per token of the match, at most."] = 1.0
    min_prob: Annotated[Probability, "Probability of a path below which it is not drafted."] = 0.1
    draft_len: DraftLen = 24
    shape: Literal["chain", "tree"] = "chain"
    """Whether only the most frequent continuation is drafted, or several in a tree."""
    memory: Annotated[Whole, "Tokens of earlier outputs that are kept, the newest; 0: each prompt begins anew."] = (
        100_000
    )

    def check(self, dims: ModelDims) -> None:
        """Accept every model: nothing of it is used."""

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        """Begin without earlier outputs."""
        self._past: Tokens = np.empty(0, np.int64)

    def start(self, prefill: Prefill) -> None:
        """Begin with the text of the prompt."""
        self._prompt_len = self._length = len(prefill.prompt)
        self._text = np.empty(2 * self._length + 64, np.int64)
        self._text[: self._length] = prefill.prompt

    def propose(self, context: Context) -> TokenTree:
        """Return the root and the draft of the highest expected length, of either text."""
        self._append(context.output[self._length - self._prompt_len :])
        text = self._text[: self._length]
        limit = min(self.draft_len, context.max_draft)
        best = Draft.none()
        for source in (text, self._past):
            # the end of the text is its own match, which has no continuation yet
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
        """Return the earlier outputs."""
        return self._past.tobytes()

    def restore(self, state: bytes) -> None:
        """Continue with the earlier outputs of a run that was resumed."""
        self._past = np.frombuffer(state, np.int64)

    def _append(self, tokens: Sequence[int]) -> None:
        end = self._length + len(tokens)
        if end > len(self._text):
            self._text = np.concatenate([self._text, np.empty(end, np.int64)])
        self._text[self._length : end] = tokens
        self._length = end


class Draft:
    """Tokens to verify after the root, and the sum of their probabilities.

    Attributes:
        tokens, parents: as in `TokenTree`, without the root, whose index is 0.
        score: expected number of accepted tokens, by the counts.
    """

    def __init__(self, tokens: Sequence[int], parents: Sequence[int], score: float):
        self.tokens, self.parents, self.score = tokens, parents, score

    @classmethod
    def none(cls) -> Draft:
        """Return the draft without tokens."""
        return cls((), (), 0.0)


def matches(source: Tokens, text: Tokens, longest: int) -> Iterator[tuple[Tokens, int]]:
    """Yield the occurrences in `source` of the ends of `text`, shortest end first, each set of occurrences once.

    Args:
        longest: tokens of an end at most.

    Yields:
        The positions after the occurrences, and the length of the longest end that all of them have.
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
        size: tokens of the draft at most.
        min_prob: probability of a path below which it is left out.
        branches: whether a token may have several continuations; else the most frequent only.
    """
    tokens: list[int] = []
    parents: list[int] = []
    score = 0.0
    # likeliest first; the serial number keeps the order of equals fixed
    waiting: list[tuple[float, int, int, int, Any]] = []
    serial = 0

    def offer(parent: int, at: Tokens, prob: float) -> None:
        """Put the continuations at these positions into the queue."""
        nonlocal serial
        inside = at[at < len(source)]
        values, counts = np.unique(source[inside], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        order = order[values[order] != SEPARATOR]
        for index in order if branches else order[:1]:
            share = prob * float(counts[index]) / len(at)
            if share >= min_prob:
                value = int(values[index])
                heapq.heappush(waiting, (-share, serial, parent, value, inside[source[inside] == value] + 1))
                serial += 1

    if size > 0:
        offer(0, positions, 1.0)
    while waiting and len(tokens) < size:
        negative, _, parent, token, onward = heapq.heappop(waiting)
        tokens.append(token)
        parents.append(parent)
        score -= negative
        offer(len(tokens), onward, -negative)
    return Draft(tokens, parents, score)
