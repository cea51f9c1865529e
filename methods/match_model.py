"""A match model: an earlier occurrence of the end of the text, and the probability that its continuation repeats.

The newest earlier occurrence of the last tokens is followed as the text grows: each token that it predicted makes the
match one token longer. A match of l tokens predicts the next token with probability a(l), which has a Beta posterior
for each class of lengths. Every output token updates it, whether it was drafted or not. So the acceptance of a copied
draft is known without verifying any draft, and a step without a copy costs a few dictionary lookups.

Sources: copied drafts are those of prompt lookup (Saxena 2023), here with an acceptance rate. Match models with an
adaptive confidence by length come from data compression (Mahoney 2005, PAQ).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

ORDER = 3  # tokens of the longest n-gram in the table
LONGEST = 32  # tokens up to which the length of a match is counted
CLASSES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # the shortest match of each class of lengths
SEPARATOR = -1  # between texts; no match and no draft runs across it
CLASS_OF = [max(0, bisect_right(CLASSES, length) - 1) for length in range(LONGEST + 1)]


class MatchModel:
    """A source of drafts copied from earlier text, with their expected tokens.

    Args:
        memory: number of newest tokens of earlier prompts and outputs that are kept.
        prior: weight of the prior of a class, in tokens; its mean is l / (l + 2), l the class's shortest match.
        limit: largest weight of the posterior of a class, in tokens.
    """

    def __init__(self, memory: int, prior: float, limit: float):
        self._memory, self._limit = memory, limit
        self._prior = [[prior * 2 / (length + 2), prior * length / (length + 2)] for length in CLASSES]
        self._counts = [list(pair) for pair in self._prior]  # rejected, accepted
        self._text: list[int] = []
        self._places: dict[tuple[int, ...], int] = {}  # n-gram -> position after its newest occurrence
        self._source = self._length = self._output = 0

    def start(self, prompt: Sequence[int], forget: float) -> None:
        """Begin a prompt: its text joins the earlier ones, and every posterior moves a share back to the prior."""
        for pair, prior in zip(self._counts, self._prior):
            scale = (1 - forget) * min(1.0, self._limit / sum(pair))
            pair[:] = [scale * count + forget * prior_count for count, prior_count in zip(pair, prior)]
        begin = len(self._text)
        if begin > self._memory:
            self._text, self._places, begin = self._text[begin - self._memory :], {}, 0
        self._text += [SEPARATOR, *prompt]
        self._enter(begin)
        self._source = self._length = 0
        self._output = len(self._text)

    @property
    def output_len(self) -> int:
        """Output tokens of the prompt that the text holds."""
        return len(self._text) - self._output

    def extend(self, tokens: Sequence[int]) -> None:
        """Append output tokens: count whether each was predicted, and follow the match or find a new one."""
        text, places = self._text, self._places
        for token in tokens:
            source, length = self._source, self._length
            if length and text[source] != SEPARATOR:
                hit = text[source] == token
                self._counts[CLASS_OF[length]][hit] += 1
                source, length = (source + 1, min(length + 1, LONGEST)) if hit else (0, 0)
            else:
                length = 0
            text.append(token)
            end = len(text)
            grams = [tuple(text[-n:]) for n in range(ORDER, 0, -1)]
            if length < ORDER:
                source, length = self._find(grams)
            for gram in grams:
                places[gram] = end
            self._source, self._length = source, length

    def draft(self, longest: int, verify_ms: Sequence[float], rate: float) -> tuple[list[int], float]:
        """Return the copy with the largest gain over a throughput, and the expected tokens of a step with it.

        The gain of a draft of k tokens is E(k) - rate * verify_ms[k], with E(k) = 1 + Σ_(j <= k) Π_(i < j) a(l + i).

        Args:
            longest: largest number of tokens.
            verify_ms: milliseconds of verifying 0, 1, .. tokens.
            rate: tokens per millisecond without the draft.

        Returns:
            The copied tokens and E(k); no token and 1.0 if no draft has a gain.
        """
        length = self._length
        if not length or self._text[self._source] == SEPARATOR:
            return [], 1.0
        expected = reached = 1.0
        best, best_value, best_expected = 0, expected - rate * verify_ms[0], expected
        for k in range(1, min(longest, len(verify_ms) - 1) + 1):
            rejected, accepted = self._counts[CLASS_OF[length]]
            reached *= accepted / (rejected + accepted)  # Π a(l + i): the first k tokens are all accepted
            expected += reached
            value = expected - rate * verify_ms[k]
            if value > best_value:
                best, best_value, best_expected = k, value, expected
            length = min(length + 1, LONGEST)
        tokens = self._copy(best)
        # a copy that ends early, at the end of a text, gets its share of the expected accepted tokens
        return tokens, best_expected if len(tokens) == best else 1 + (best_expected - 1) * len(tokens) / best

    def state(self) -> dict[str, Any]:
        """Return the newest text and the counts, for JSON."""
        return {"text": self._text[len(self._text) - min(len(self._text), self._memory) :], "counts": self._counts}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue with the text and counts of `state`."""
        self._text, self._counts, self._places = list(state["text"]), [list(pair) for pair in state["counts"]], {}
        self._enter(0)

    def _copy(self, count: int) -> list[int]:
        """Return the next tokens of the source; at the text's end the source continues with its copy (a repetition)."""
        source, text = self._source, self._text
        tokens = text[source : source + count]
        if SEPARATOR in tokens:
            return tokens[: tokens.index(SEPARATOR)]
        period = len(text) - source
        while len(tokens) < count:
            tokens.append(tokens[len(tokens) - period])
        return tokens

    def _find(self, grams: Sequence[tuple[int, ...]]) -> tuple[int, int]:
        """Return the position after the newest occurrence of the longest n-gram, and the length of the match there.

        Args:
            grams: the n-grams at the end of the text, longest first.
        """
        text = self._text
        for gram in grams:
            place = self._places.get(gram)
            if place is not None and gram[0] != SEPARATOR:
                length = len(gram)
                end = len(text) - 1
                while length < min(LONGEST, place) and text[place - 1 - length] == text[end - length] != SEPARATOR:
                    length += 1
                return place, length
        return 0, 0

    def _enter(self, begin: int) -> None:
        """Enter the n-grams of the text from a position on."""
        tokens = self._text[begin:]
        for n in range(1, ORDER + 1):
            columns = [tokens[i:] for i in range(n)]
            self._places.update(zip(zip(*columns), range(begin + n, len(self._text) + 1)))
