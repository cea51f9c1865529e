"""Drafting with a layer set, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import LayerDraft
from ssd_bench.contract.tree import TokenTree, comb
from ssd_bench.engine.sampling import Decoding, draw, warp
from ssd_bench.model.decoder import NO_ROWS, Decoder, Pass
from ssd_bench.model.kv_cache import KVCache


@dataclass(frozen=True)
class DraftResult:
    """A drafted or proposed tree, with states for its verification and fields for the trace.

    Before the fork, the first changed sublayer (`LayerSet.first_changed`), drafting computes the full model's states.

    Attributes:
        stop_reason, layer_set, searched: as in `Step`.
        states: [taps + 1, 1, d] per node that drafting ran (all but the last): its streams at the taps before the fork,
            and into the fork. None: verify from sublayer 0.
    """

    tree: TokenTree
    stop_reason: str
    layer_set: LayerSet | None = None
    states: list[Tensor] | None = None
    searched: bool | None = None


class Drafter:
    """Drafting on the engine's model and cache; drafts write to scratch rows and end at `eos_ids`."""

    def __init__(self, decoder: Decoder, cache: KVCache, decoding: Decoding, eos_ids: frozenset[int]):
        self._decoder, self._cache, self._decoding, self._eos_ids = decoder, cache, decoding, eos_ids
        self._asynchronous = decoder.device.type != "cpu"  # the host queues work; reading a tensor makes it wait

    def draft(
        self, draft: LayerDraft, root: int, max_draft: int, reuse: bool, taps: Sequence[int], generator: torch.Generator
    ) -> DraftResult:
        """Draft token by token with a layer set, or several tokens in a pass where the method guesses them right.

        The token at position p = start + depth writes its keys and values to scratch row p, but only in the attentions
        that run. Later tokens read this row as if it were committed. The row of a wrong guess is overwritten.

        Args:
            root: newest output token.
            reuse: keep the states before the fork for the verification.
            taps: boundaries whose states the verification must return.
        """
        decoder, start, window = self._decoder, self._cache.length, draft.layer_set.window
        fork = draft.layer_set.first_changed
        # No reuse if the first sublayer is changed, as with a window (no state is the full model's), with siblings
        # (they do not run and have no states), or if no sublayer is changed (verification would have none left to run).
        reuse = reuse and 0 < fork < 2 * decoder.arch.n_layers and not draft.widths
        levels: list[list[int]] = [[root]]  # candidates by depth
        states, probs = [], []
        longest = min(draft.max_len, max_draft)
        reason = "length" if draft.max_len <= max_draft else "budget"
        # before the fork, verification runs the last node only: it takes the taps of the other nodes from here
        draft_taps = (*(t for t in taps if t < fork), fork) if reuse else ()
        sublayers, bits = draft.layer_set.kept, draft.layer_set.bits or None
        token, head_bits = decoder.ids([root]), draft.layer_set.head_bits
        guess = None if window is not None or reuse else draft.guess
        ended = False
        while (depth := len(levels) - 1) < longest and not ended:
            most = longest - depth - 1
            guessed = [] if guess is None else [*guess([level[0] for level in levels[1:]], most)][:most]
            nodes = decoder.ids([levels[-1][0], *guessed]) if guessed else token
            unread = NO_ROWS if window is None else window.unread(start + depth)
            draft_pass = Pass(sublayers, nodes, start + depth, taps=draft_taps, unread=unread, bits=bits)
            hidden, tapped = decoder.run(draft_pass, self._cache)
            if tapped is not None:
                states.append(tapped)
            for node, logits in enumerate(decoder.logits(hidden, bits=head_bits)):
                if not self._decoding.greedy:
                    probs.append(warp(logits[None], self._decoding)[0])
                token, level, confidence = self._candidates(draft, logits, probs[-1] if probs else None, generator)
                levels.append(level)
                if level[0] in self._eos_ids:
                    reason, ended = "eos", True
                elif confidence < draft.stop_below:  # the token itself stays in the draft
                    reason, ended = "confidence", True
                if ended or guessed[node : node + 1] != level[:1]:  # the nodes after a wrong guess count for nothing
                    break
        tree = comb(levels, probs or None).trimmed(max_draft, self._cache.capacity - start)
        reused_states = states if reuse and len(levels) > 1 else None  # the root alone: nothing ran, so no states
        return DraftResult(tree, reason, draft.layer_set, reused_states, draft.searched)

    def _candidates(
        self, draft: LayerDraft, logits: Tensor, probs: Tensor | None, generator: torch.Generator
    ) -> tuple[Tensor, list[int], float]:
        """Choose the candidates of one drafted position; the host waits for the device once.

        Args:
            logits: [V] logits of the draft.
            probs: [V] warped distribution q; None: take the most likely tokens.

        Returns:
            The drafted token, [1] on the device; all candidates, the drafted token first; its raw softmax probability
            (1 if neither threshold nor widths need it).
        """
        if draft.stop_below <= 0 and not draft.widths:
            token = logits.argmax(-1, keepdim=True) if probs is None else draw(probs, 1, generator)
            return token, token.tolist(), 1.0
        # the confidence is that of the raw softmax, before temperature, top-k and top-p
        raw = logits.softmax(-1)
        # the width depends on the confidence, which is still on the device: fetch the largest width, cut it on the host
        max_width = min(max((k for _, k in draft.widths), default=1), len(logits))
        if probs is None:
            confidence, ids = raw.topk(max_width) if max_width > 1 else raw.max(-1, keepdim=True)
        else:
            ids = draw(probs, 1, generator)
            confidence = raw.index_select(0, ids)
            if max_width > 1:  # siblings: drawn without replacement, from q without the drafted token
                ids = torch.cat([ids, draw(probs.index_fill(0, ids, 0), max_width - 1, generator)])
        level, (probability, *_) = self._fetch(ids, confidence)
        width = next((k for bound, k in draft.widths if probability > bound), 1)
        # drop ids of -1: `draw` had no probability mass left
        return ids if max_width == 1 else ids[:1], [int(token) for token in level if token >= 0][:width], probability

    def _fetch(self, *parts: Tensor) -> list[list[float]]:
        if not self._asynchronous:
            return [part.tolist() for part in parts]
        values = torch.cat([part.double() for part in parts]).tolist()  # float64 holds every token id exactly
        return [[values.pop(0) for _ in range(len(part))] for part in parts]
