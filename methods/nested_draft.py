"""Nested drafts: a draft with rounded weights, which checks copies of earlier text.

Copies cost nothing and are often wrong, 4-bit drafts are hardly ever wrong and cost a third of a step or more. Here the
draft reads its rounded weights once for a copy of several tokens, keeps those that it would have drafted itself, and
the full model verifies the result: the drafts of `methods.int4_draft`, in fewer passes. A copy is as long as pays by
the latency profile and the copies' hits. Georganas et al. (arXiv:2503.13565) draft in several levels of precision, each
verified by the next.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from methods.draft_stop import WholeDraft
from methods.match_model import MatchModel, guess_ms
from methods.settings import DraftLen, DraftWeights, Name
from ssd_bench.contract.method import Context, LayerDraft, Prefill, Probe, Sample
from ssd_bench.errors import ConfigError
from ssd_bench.settings import Count, Whole, settings


@settings("method", kw_only=True)
class NestedDraft(WholeDraft):
    """Drafting with all sublayers and rounded weights, several tokens in a pass where earlier text repeats itself."""

    name: Name = "nested_draft"
    draft_weights: DraftWeights = "int4"
    draft_len: DraftLen = 12
    copies: Annotated[Count, "Longest copy that a pass of the draft checks, in tokens."] = 11
    memory: Annotated[Whole, "Newest tokens of earlier prompts and outputs to copy from."] = 32_768

    def __post_init__(self) -> None:
        if self.draft_window is not None:
            raise ConfigError("method.draft_window", self.draft_window, "null: a window moves with every token")
        super().__post_init__()

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        self._latency = probe.latency
        self._text = MatchModel(self.memory, prior=2.5, limit=256)

    def start(self, prefill: Prefill) -> None:
        """Append the prompt to the text, and price passes at its length."""
        super().start(prefill)
        self._text.start(prefill.prompt, forget=0.02)
        layer_set = self._stop.draft(self._layer_set).layer_set
        self._pass_ms = guess_ms(self._latency, layer_set, len(prefill.prompt), self.copies)

    def propose(self, context: Context) -> LayerDraft:
        self._text.extend(context.output[self._text.output_len :])
        return replace(super().propose(context), guess=self._guess)

    def state(self) -> bytes:
        return json.dumps(self._text.state()).encode()

    def restore(self, state: bytes) -> None:
        self._text.restore(json.loads(state))

    def _guess(self, drafted: Sequence[int], most: int) -> Sequence[int]:
        return self._text.guess(drafted, most, self._pass_ms)
