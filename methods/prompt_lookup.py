"""Prompt lookup decoding: draft the continuation of an earlier occurrence of the newest tokens (Saxena 2023).

For n from `max_ngram` down to `min_ngram`, the last n tokens are looked up in the prompt and output so far; the
continuation of the first match is the draft, a chain.

The sources differ, by switch:

* the earliest occurrence (Saxena's demonstration, Hugging Face) or the latest: `match`;
* Saxena's demonstration needs `draft_len` tokens after an occurrence; Hugging Face drafts fewer there: `whole`.

The text is kept as a growing suffix automaton (Blumer et al. 1985): memory is linear in the text for every `max_ngram`,
and a lookup does not scan the text again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from methods.settings import DraftLen, Name
from ssd_bench.contract.method import Context, Method, Prefill
from ssd_bench.contract.tree import TokenTree
from ssd_bench.errors import ConfigError
from ssd_bench.settings import Count, settings


@settings("method")
class PromptLookup(Method):
    """Drafting by copies from the prompt and the output."""

    name: Name = "prompt_lookup"
    max_ngram: Annotated[Count, "Tokens at the end of the text that are looked up first."] = 3
    min_ngram: Annotated[Count, "Smallest number of tokens that are looked up."] = 1
    draft_len: DraftLen = 10
    match: Literal["earliest", "latest"] = "earliest"
    """Occurrence to continue if there are several."""
    whole: bool = True
    """Use an occurrence only if `draft_len` tokens follow it."""

    def __post_init__(self) -> None:
        if self.min_ngram > self.max_ngram:
            raise ConfigError("method.min_ngram", self.min_ngram, f"at most method.max_ngram={self.max_ngram}")

    def start(self, prefill: Prefill) -> None:
        self._text, self._prompt_len = IndexedText(self.match == "latest"), len(prefill.prompt)
        self._text.extend(prefill.prompt)

    def propose(self, context: Context) -> TokenTree:
        """Return the root and the continuation of the longest known n-gram."""
        self._text.extend(context.output[len(self._text.tokens) - self._prompt_len :])
        return TokenTree.chain([context.output[-1], *self._continuation()[: context.max_draft]])

    def _continuation(self) -> list[int]:
        tokens = self._text.tokens
        for lengths, place in self._text.occurrences():
            if lengths.stop <= self.min_ngram:
                break
            if lengths.start <= self.max_ngram and not (self.whole and place + self.draft_len > len(tokens)):
                return tokens[place : place + self.draft_len]
        return []


class IndexedText:
    """A growing text and its suffix automaton, which finds earlier occurrences of its end.

    A state is a set of n-grams with the same occurrences; its `_suffix` is the state of the next shorter n-grams there.
    State 0 is the empty n-gram. There are at most two states per token.

    Args:
        latest: find the latest earlier occurrence, not the earliest; slower in repetitive text.
    """

    def __init__(self, latest: bool) -> None:
        self.tokens: list[int] = []
        self._latest = latest
        self._next: list[dict[int, int]] = [{}]  # per state: token -> state of the n-grams followed by it
        self._suffix = [-1]
        self._length = [0]  # of the state's longest n-gram
        self._place = [0]  # position after the earliest occurrence, or after the latest before the newest token
        self._whole = 0  # state of the whole text

    def occurrences(self) -> Iterator[tuple[range, int]]:
        """Yield lengths of ends of the text that occurred before, the longest first, and the position after them."""
        state = self._suffix[self._whole]  # the whole text has not occurred before
        while state > 0:
            yield range(self._length[self._suffix[state]] + 1, self._length[state] + 1), self._place[state]
            state = self._suffix[state]

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self._latest:
                self._note_end()
            self.tokens.append(token)
            self._append(token)

    def _note_end(self) -> None:
        """Note the text's end as the latest occurrence of its n-grams, before the text grows."""
        state = self._whole
        while state > 0:
            self._place[state] = len(self.tokens)
            state = self._suffix[state]

    def _append(self, token: int) -> None:
        """Add the newest token to the automaton (Blumer et al. 1985)."""
        state, self._whole = self._whole, self._add({}, 0, len(self.tokens), len(self.tokens))
        # 1) All ends of the text that this token has not followed before are in the new state.
        while state != -1 and token not in self._next[state]:
            self._next[state][token] = self._whole
            state = self._suffix[state]
        if state == -1:
            return
        # 2) The next shorter one was followed by it. If longer n-grams share its state, they lack this occurrence.
        target = self._next[state][token]
        if self._length[target] > self._length[state] + 1:
            longer = target
            target = self._add(
                self._next[longer].copy(), self._suffix[longer], self._length[state] + 1, self._place[longer]
            )
            self._suffix[longer] = target
            while state != -1 and self._next[state].get(token) == longer:
                self._next[state][token] = target
                state = self._suffix[state]
        self._suffix[self._whole] = target

    def _add(self, followers: dict[int, int], suffix: int, length: int, place: int) -> int:
        self._next.append(followers)
        self._suffix.append(suffix)
        self._length.append(length)
        self._place.append(place)
        return len(self._next) - 1
