"""Prompt lookup decoding: draft the continuation of an earlier occurrence of the newest tokens (Saxena 2023).

For n from `max_ngram` down to `min_ngram`, the last n tokens are looked up in the prompt and output so far; the
continuation of the first match is the draft, a chain.

The text is kept as bytes, `TOKEN_BYTES` a token, so that a lookup is a search for bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Annotated, Literal

from methods.settings import DraftLen, Name
from ssd_bench.contract.method import Context, Method, Prefill
from ssd_bench.contract.tree import TokenTree
from ssd_bench.errors import ConfigError
from ssd_bench.settings import Count, settings

TOKEN = "I"  # unsigned integers in `array`
TOKEN_BYTES = array(TOKEN).itemsize


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
        self._text, self._prompt_len = bytearray(), len(prefill.prompt)
        self._extend(prefill.prompt)

    def propose(self, context: Context) -> TokenTree:
        """Return the root and the continuation of the longest known n-gram."""
        self._extend(context.output[len(self._text) // TOKEN_BYTES - self._prompt_len :])
        return TokenTree.chain([context.output[-1], *self._continuation()[: context.max_draft]])

    def _extend(self, tokens: Sequence[int]) -> None:
        self._text += array(TOKEN, tokens).tobytes()

    def _continuation(self) -> list[int]:
        size, continuation = self.draft_len * TOKEN_BYTES, bytearray()
        for n in range(self.min_ngram, min(self.max_ngram, len(self._text) // TOKEN_BYTES - 1) + 1):
            place = self._after_occurrence(n * TOKEN_BYTES)
            if place is None:
                break  # nor is a longer n-gram in the text
            if not (self.whole and place + size > len(self._text)):
                continuation = self._text[place : place + size]
        return array(TOKEN, bytes(continuation)).tolist()

    def _after_occurrence(self, size: int) -> int | None:
        """Return the byte after an earlier occurrence of the text's last `size` bytes; None without one."""
        text, end = self._text, len(self._text) - TOKEN_BYTES
        pattern = text[-size:]
        if self.match == "earliest":
            at = text.find(pattern, 0, end)
            while at % TOKEN_BYTES and at >= 0:  # across tokens
                at = text.find(pattern, at + 1, end)
        else:
            at = text.rfind(pattern, 0, end)
            while at % TOKEN_BYTES and at >= 0:
                at = text.rfind(pattern, 0, at + size - 1)
        return None if at < 0 else at + size
