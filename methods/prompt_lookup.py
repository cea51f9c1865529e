"""Prompt lookup decoding: draft the continuation of an earlier occurrence of the newest tokens (Saxena 2023).

The text is the prompt and the output so far. For n from `max_ngram` down to `min_ngram`, the last n tokens are looked
up among the earlier n-grams of the text; the continuation of the first match is the draft, a chain. Drafting runs no
part of the model, so a step costs one verification.

Where the sources differ, a switch selects one of them:

* the earliest occurrence (Saxena's demonstration, Hugging Face) or the latest: `match`;
* Saxena's demonstration uses an occurrence only if `draft_len` tokens follow it; Hugging Face's assisted generation
  drafts fewer tokens there: `whole`.

The n-grams of the text are entered into a table as the text grows, so that a lookup does not scan the text again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from methods.settings import DraftLen, Name
from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.method import Context, Prefill, Probe, Sample, Taps, Verification
from ssd_bench.contract.shape import ModelDims
from ssd_bench.contract.tree import TokenTree
from ssd_bench.errors import ConfigError
from ssd_bench.settings import Count, settings

Ngram = tuple[int, ...]


@settings("method")
class PromptLookup:
    """Drafting by copies from the prompt and the output."""

    taps = Taps()
    reuse_prefix = False
    greedy_only = False

    name: Name = "prompt_lookup"
    max_ngram: Annotated[Count, "Tokens at the end of the text that are looked up first."] = 3
    min_ngram: Annotated[Count, "Smallest number of tokens that are looked up."] = 1
    draft_len: DraftLen = 10
    match: Literal["earliest", "latest"] = "earliest"
    """Occurrence whose continuation is drafted if there are several."""
    whole: bool = True
    """Use an occurrence only if `draft_len` tokens follow it."""

    def __post_init__(self) -> None:
        if self.min_ngram > self.max_ngram:
            raise ConfigError("method.min_ngram", self.min_ngram, f"at most method.max_ngram={self.max_ngram}")

    def check(self, dims: ModelDims) -> None:
        """Accept every model: drafting does not use it."""

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        """Prepare nothing."""

    def start(self, prefill: Prefill) -> None:
        """Begin with the text of the prompt."""
        self._text = list(prefill.prompt)
        self._prompt_len = len(self._text)
        self._places: dict[Ngram, int] = {}  # n-gram -> position after its occurrence, its earliest or its latest
        self._entered = 0  # n-grams that end before this position are in the table

    def propose(self, context: Context) -> TokenTree:
        """Return the root and the continuation of the longest n-gram that occurred before."""
        self._text += context.output[len(self._text) - self._prompt_len :]
        self._enter()
        return TokenTree.chain([context.output[-1], *self._continuation()[: context.max_draft]])

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Learn nothing: `propose` reads the output."""
        return None

    def _enter(self) -> None:
        """Enter the n-grams that end before the newest token; those that end with it have no continuation yet."""
        text, places, earliest = self._text, self._places, self.match == "earliest"
        for end in range(self._entered + 1, len(text)):
            for n in range(self.min_ngram, min(self.max_ngram, end) + 1):
                ngram = tuple(text[end - n : end])
                if not (earliest and ngram in places):
                    places[ngram] = end
        self._entered = max(self._entered, len(text) - 1)

    def _continuation(self) -> list[int]:
        """Return the continuation, at most `draft_len` tokens; empty without an earlier occurrence."""
        text = self._text
        for n in range(min(self.max_ngram, len(text) - 1), self.min_ngram - 1, -1):
            place = self._places.get(tuple(text[-n:]))
            if place is not None and (not self.whole or place + self.draft_len <= len(text)):
                return text[place : place + self.draft_len]
        return []
