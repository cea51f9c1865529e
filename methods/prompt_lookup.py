"""Prompt lookup decoding: draft the continuation of an earlier occurrence of the newest tokens (Saxena 2023).

For n from `max_ngram` down to `min_ngram`, the last n tokens are looked up in the prompt and output so far; the
continuation of the first match is the draft, a chain.

Occurrences are found as in `methods.suffix`: those of the last token, narrowed by the tokens before it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from methods.settings import DraftLen, Name
from methods.suffix import matches
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
        self._text, self._prompt_len = np.array(prefill.prompt, np.int64), len(prefill.prompt)

    def propose(self, context: Context) -> TokenTree:
        """Return the root and the continuation of the longest known n-gram."""
        new_tokens = context.output[len(self._text) - self._prompt_len :]
        self._text = np.append(self._text, np.array(new_tokens, np.int64))
        return TokenTree.chain([context.output[-1], *self._continuation()[: context.max_draft]])

    def _continuation(self) -> list[int]:
        text, chosen = self._text, 0 if self.match == "earliest" else -1
        for positions, length in reversed(list(matches(text, text, self.max_ngram))):  # the longest n-gram first
            place = positions[chosen]
            if length >= self.min_ngram and not (self.whole and place + self.draft_len > len(text)):
                continuation: list[int] = text[place : place + self.draft_len].tolist()
                return continuation
        return []
