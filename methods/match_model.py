"""A match model: an earlier occurrence of the end of the text, and the probability that its continuation repeats.

A match is the newest earlier occurrence of the last l tokens; the token after it predicts the next token. After a right
prediction the match moves on and l grows by one; else a new match is looked up. A match of l tokens predicts correctly
with probability a(l), which has a Beta posterior per class of lengths. Every output token updates it, drafted or not,
so a copy's acceptance rate is known without verifying drafts.

Sources: copied drafts are prompt lookup's (Saxena 2023), here with an acceptance rate; match models with an adaptive
confidence by length come from data compression (Mahoney 2005, PAQ).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.cost.latency import Latency

ORDER = 3  # tokens of the longest n-gram in the index
LONGEST = 32  # longer matches count as this long
CLASSES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # shortest match of each class of lengths
SEPARATOR = -1  # between texts; no match and no draft runs across it
START_DECAY = 0.97  # weight that the first tokens of earlier calls of `extend` keep in a call
START_TOKENS = 4.0  # weight of the prior that they are as predictable as others, in hits
CLASS_OF = [max(0, bisect_right(CLASSES, length) - 1) for length in range(LONGEST + 1)]


class MatchModel:
    """Source of drafts copied from earlier text, with their expected tokens.

    Args:
        memory: kept tokens of earlier prompts and outputs.
        prior: weight of a class's prior, in tokens; its mean is l / (l + 2), l being the class's shortest match.
        limit: largest weight of a class's posterior, in tokens.
    """

    def __init__(self, memory: int, prior: float, limit: float):
        self._memory, self._limit = memory, limit
        self._prior = [[prior * 2 / (length + 2), prior * length / (length + 2)] for length in CLASSES]
        self._counts = [list(pair) for pair in self._prior]  # rejected, accepted
        self._starts = [START_TOKENS, START_TOKENS]  # hits of first tokens, and those that their rates promised
        self._text: list[int] = []  # newest prompts and outputs, a separator before each prompt
        self._places: dict[tuple[int, ...], int] = {}  # n-gram -> position after its newest occurrence
        self._source = 0  # position of the predicted token in the text
        self._length = 0  # l, tokens of the match; 0: no match
        self._output = 0  # position at which the output of this prompt begins

    def start(self, prompt: Sequence[int], forget: float) -> None:
        """Append a prompt to the text, and move every posterior a share `forget` back to the prior."""
        for pair, prior in zip(self._counts, self._prior):
            scale = (1 - forget) * min(1.0, self._limit / sum(pair))
            pair[:] = [scale * count + forget * prior_count for count, prior_count in zip(pair, prior)]
        begin = len(self._text)
        if begin > self._memory:  # positions change: the whole index is built again
            self._text, self._places, begin = self._text[begin - self._memory :], {}, 0
        self._text += [SEPARATOR, *prompt]
        self._index(begin)
        self._source = self._length = 0
        self._output = len(self._text)

    @property
    def output_len(self) -> int:
        return len(self._text) - self._output

    def extend(self, tokens: Sequence[int]) -> None:
        """Append the output tokens of a step: count which were predicted, and follow the match or find a new one."""
        text, places = self._text, self._places
        for at, token in enumerate(tokens):
            source, length = self._source, self._length
            # 1) score the prediction, and follow the match if it was right
            if length and text[source] != SEPARATOR:
                hit = text[source] == token
                if at == 0:
                    sums = (hit, self._rate(length))
                    self._starts = [START_DECAY * old + new for old, new in zip(self._starts, sums)]
                self._counts[CLASS_OF[length]][hit] += 1
                source, length = (source + 1, min(length + 1, LONGEST)) if hit else (0, 0)
            else:
                length = 0
            text.append(token)
            end = len(text)
            grams = [tuple(text[-n:]) for n in range(ORDER, 0, -1)]
            # 2) look up a match before the new n-grams enter the index, where they would match themselves
            if length < ORDER:
                source, length = self._find(grams)
            for gram in grams:
                places[gram] = end
            self._source, self._length = source, length

    def draft(self, longest: int, verify_ms: Sequence[float], rate: float) -> tuple[list[int], float]:
        """Return the copy of the most useful length k, and the expected tokens of a step that verifies it.

        It maximises the gain E(k) - rate * verify_ms[k]: expected tokens minus those at `rate` in the same time. For a
        match of l tokens E(k) = 1 + s Σ_(j <= k) Π_(i < j) a(l + i). A step begins where the last draft failed, so that
        its first token follows the text less often than others: by a factor s, the hits of such tokens over a(l).

        Args:
            verify_ms: milliseconds of verifying 0, 1, .. tokens.
            rate: tokens per millisecond without the copy.

        Returns:
            The copied tokens and E(k); no tokens and 1.0 if no copy gains more than k = 0.
        """
        if not self._length or self._text[self._source] == SEPARATOR:
            return [], 1.0
        start = min(1.0, self._starts[0] / self._starts[1])
        best_k, best_expected = self._useful_length(self._length, longest, verify_ms, rate, start)
        tokens = self._copy(best_k)
        # a copy that ends at a separator, before k tokens, gets a proportional part of the expected accepted tokens
        return tokens, best_expected if len(tokens) == best_k else 1 + (best_expected - 1) * len(tokens) / best_k

    def guess(self, drafted: Sequence[int], longest: int, pass_ms: Sequence[float]) -> list[int]:
        """Return tokens that followed the newest earlier occurrence of the text's end and drafted tokens, or none.

        As many as `draft` would, with passes of the draft over the newest and 0, 1, .. guessed tokens in `pass_ms`
        milliseconds.
        """
        if not drafted:
            return self.draft(longest, pass_ms, 1 / pass_ms[0])[0]
        end = [*self._text[-ORDER:], *drafted][-ORDER:]
        for n in range(ORDER, 0, -1):
            if (place := self._places.get(tuple(end[-n:]))) is not None:
                count, _ = self._useful_length(n, longest, pass_ms, 1 / pass_ms[0])
                tokens = self._text[place : place + count]
                return tokens[: tokens.index(SEPARATOR)] if SEPARATOR in tokens else tokens
        return []

    def state(self) -> dict[str, Any]:
        text = self._text[len(self._text) - min(len(self._text), self._memory) :]
        return {"text": text, "counts": self._counts, "starts": self._starts}

    def restore(self, state: dict[str, Any]) -> None:
        self._text, self._counts, self._places = list(state["text"]), [list(pair) for pair in state["counts"]], {}
        self._starts = list(state["starts"])
        self._index(0)

    def _rate(self, length: int) -> float:
        """Return a(l)."""
        rejected, accepted = self._counts[CLASS_OF[length]]
        return accepted / (rejected + accepted)

    def _useful_length(
        self, length: int, longest: int, verify_ms: Sequence[float], rate: float, start: float = 1.0
    ) -> tuple[int, float]:
        """Return the most useful k for a match of `length` tokens, and E(k), as in `draft`."""
        expected, reached = 1.0, start
        best_k, best_gain, best_expected = 0, expected - rate * verify_ms[0], expected
        for k in range(1, min(longest, len(verify_ms) - 1) + 1):
            reached *= self._rate(length)  # s Π a(l + i): probability that the first k tokens are accepted
            expected += reached
            gain = expected - rate * verify_ms[k]
            if gain > best_gain:
                best_k, best_gain, best_expected = k, gain, expected
            length = min(length + 1, LONGEST)  # the match of token k + 1 is one longer
        return best_k, best_expected

    def _copy(self, count: int) -> list[int]:
        """Return `count` tokens from the source on, or fewer before a separator."""
        source, text = self._source, self._text
        tokens = text[source : source + count]
        if SEPARATOR in tokens:
            return tokens[: tokens.index(SEPARATOR)]
        # the source reaches the end of the text: the text repeats itself, so the copy goes on with its own beginning
        period = len(text) - source
        while len(tokens) < count:
            tokens.append(tokens[len(tokens) - period])
        return tokens

    def _find(self, grams: Sequence[tuple[int, ...]]) -> tuple[int, int]:
        """Return the position after the newest occurrence of the longest n-gram found, and the match's length.

        The n-grams end the text, the longest first.
        """
        text = self._text
        for gram in grams:
            place = self._places.get(gram)
            if place is not None and gram[0] != SEPARATOR:
                length = len(gram)
                end = len(text) - 1
                # compare backwards, beyond the n-gram
                while length < min(LONGEST, place) and text[place - 1 - length] == text[end - length] != SEPARATOR:
                    length += 1
                return place, length
        return 0, 0

    def _index(self, begin: int) -> None:
        tokens = self._text[begin:]
        for n in range(1, ORDER + 1):
            columns = [tokens[i:] for i in range(n)]
            self._places.update(zip(zip(*columns), range(begin + n, len(self._text) + 1)))


def guess_ms(latency: Latency, layer_set: LayerSet, context: int, longest: int) -> list[float]:
    """Return the milliseconds of a draft's pass over the newest token and 0, 1, .. `longest` guesses."""

    def sublayers_ms(nodes: int) -> float:
        attn, mlp, _ = latency.pass_ms(nodes, context)
        total = layer_set.n_attn * attn + layer_set.n_mlp * mlp
        for bits, (n_attn, n_mlp) in layer_set.n_rounded.items():
            if latency.has_passes(bits):  # else only how a pass grows with its nodes is known
                rounded_attn, rounded_mlp, _ = latency.pass_ms(nodes, context, bits)
                total += n_attn * (rounded_attn - attn) + n_mlp * (rounded_mlp - mlp)
        return total

    head_bits = layer_set.head_bits if latency.has_passes(layer_set.head_bits) else 0
    # of a rounded head only one row is timed; further rows cost what they cost in the head as loaded
    rests_ms = [latency.pass_ms(nodes, context)[2] for nodes in range(1, longest + 2)]
    single_ms = latency.rest_ms(head_bits) - rests_ms[0]
    return [sublayers_ms(nodes) + single_ms + rest_ms for nodes, rest_ms in enumerate(rests_ms, 1)]
