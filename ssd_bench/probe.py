"""What a method may ask of the model outside the decode loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ssd_bench.kv_cache import KVCache
    from ssd_bench.latency import Latency
    from ssd_bench.model import Decoder


class Probe:
    """Reads the model and the committed prefix; changes nothing that decoding sees.

    Attributes:
        n_layers: L.
        latency: times of the sublayers on this machine; set by the runner before `prepare`.
    """

    latency: Latency

    def __init__(self, decoder: Decoder, cache: KVCache):
        self._decoder, self._cache = decoder, cache
        self.n_layers = decoder.arch.n_layers

    def apply_sublayer(self, i: int, hidden: Tensor, prefix_len: int) -> Tensor:
        """Sublayer i over B independent continuations of the committed prefix.

        Args:
            i: index in [0, 2L).
            hidden: [B, r, d] streams at positions prefix_len .. prefix_len + r - 1; not modified.
            prefix_len: committed rows that every branch sees; beyond them it sees its own r rows, causally.

        Returns:
            [B, r, d] streams after the sublayer.

        Raises:
            ValueError: the prefix is not committed.
        """
        if not 0 <= prefix_len <= self._cache.length:
            raise ValueError(f"prefix_len={prefix_len} is outside the {self._cache.length} committed rows")
        return self._decoder.branches(i, hidden, self._cache, prefix_len)

    def predict(self, hidden: Tensor) -> Tensor:
        """Argmax token ids [..., ] of final norm and LM head over streams [..., d]."""
        flat = hidden.reshape(-1, hidden.shape[-1])
        return self._decoder.predict(flat).view(hidden.shape[:-1])

    def token_logits(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Float32 logits [..., k] of k vocabulary entries, after final norm and LM head, over streams [..., d]."""
        flat = hidden.reshape(-1, hidden.shape[-1])
        return self._decoder.logits(flat, tokens).view(*hidden.shape[:-1], len(tokens))

    def top2_gap(self, tokens: Sequence[int]) -> float:
        """Difference of the two largest next-token logits after `tokens`; uses and empties the cache."""
        ids = torch.tensor(tokens, device=self._decoder.device)
        with torch.inference_mode():
            last, _ = self._decoder.prefill(ids, self._cache)
            first, second = self._decoder.logits(last)[0].topk(2).values.tolist()
        self._cache.reset()
        return first - second
