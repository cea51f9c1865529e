"""What a method may ask of the model outside the decode loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ssd_bench.core.engine import Generation
    from ssd_bench.core.method import Method
    from ssd_bench.cost.latency import Latency
    from ssd_bench.model.decoder import Decoder
    from ssd_bench.model.kv_cache import KVCache


@dataclass(frozen=True)
class Origin:
    """Where a search takes place: its provenance, and what its result depends on beside its own settings.

    Attributes:
        folder: where the results of searches are kept.
        model: name in `conf/model`.
        weights: identity of the weights.
        task: name in `conf/task`.
        dtype: of the weights.
        machine: device, threads and processor.
        seed: the run's.
    """

    folder: Path
    model: str
    weights: str
    task: str
    dtype: str
    machine: str
    seed: int


class Probe:
    """Reads the model and the committed prefix; changes nothing that decoding sees.

    Args:
        decoder: the model.
        cache: the engine's.

    Attributes:
        n_layers: L.
        latency: times of the sublayers on this machine; set by the runner before `prepare`.
        origin: of the run; set by the runner before `prepare`.
    """

    latency: Latency
    origin: Origin

    def __init__(self, decoder: Decoder, cache: KVCache):
        self._decoder, self._cache = decoder, cache
        self.n_layers = decoder.arch.n_layers

    def embed(self, tokens: Sequence[int]) -> Tensor:
        """Streams [n, d] that n tokens enter sublayer 0 with."""
        return self._decoder.embed(torch.tensor(tokens, device=self._decoder.device))

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

    def predict_confident(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """`predict`, and the raw softmax probabilities [..., ] of those tokens, float32."""
        ids, probability = self._decoder.predict_confident(hidden.reshape(-1, hidden.shape[-1]))
        return ids.view(hidden.shape[:-1]), probability.view(hidden.shape[:-1])

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Streams [..., d] as the LM head reads them."""
        return self._decoder.final_norm(hidden)

    def logits(self, hidden: Tensor, norm: bool = True) -> Tensor:
        """Float32 logits [..., V] of the LM head over streams [..., d], with or without the final norm before it.

        All of them at once: a caller with many streams passes a few at a time.
        """
        decoder, flat = self._decoder, hidden.reshape(-1, hidden.shape[-1])
        if norm:
            made = decoder.logits(flat.to(decoder.act_dtype))
        else:
            flat = flat.to(decoder.head_weight.device, decoder.act_dtype)
            made = decoder.ops.linear(flat, decoder.head_weight).float()
        return made.view(*hidden.shape[:-1], -1)

    def token_logits(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Float32 logits [..., k] of k vocabulary entries, after final norm and LM head, over streams [..., d]."""
        flat = hidden.reshape(-1, hidden.shape[-1])
        return self._decoder.logits(flat, tokens).view(*hidden.shape[:-1], len(tokens))

    def trial(self, method: Method, prompt: Sequence[int], new_tokens: int, max_steps: int | None = None) -> Generation:
        """Decode greedily and past any EOS, whatever the run's own decoding: what offline searches compare sets by.

        For `prepare` only, since it takes the cache. Source: Self-SD, searching.py:55-70.
        """
        from ssd_bench.core.engine import Engine  # which imports this module
        from ssd_bench.core.sampling import Decoding

        engine = Engine(self._decoder, self._cache, Decoding(max_new_tokens=new_tokens), frozenset())
        return engine.generate(method, prompt, max_steps=max_steps)

    def prompt_states(self, prompt: Sequence[int], taps: Sequence[int]) -> Tensor:
        """States [len(taps), P, d] of a prompt at the given boundaries, as `Prefill.hidden`; empties the cache."""
        ids = torch.tensor(prompt, device=self._decoder.device)
        with torch.inference_mode():
            _, states = self._decoder.prefill(ids, self._cache, taps)
        self._cache.reset()
        assert states is not None, "at least one boundary"
        return states

    def top2_gap(self, tokens: Sequence[int]) -> float:
        """Difference of the two largest next-token logits after `tokens`; uses and empties the cache."""
        ids = torch.tensor(tokens, device=self._decoder.device)
        with torch.inference_mode():
            last, _ = self._decoder.prefill(ids, self._cache)
            first, second = self._decoder.logits(last)[0].topk(2).values.tolist()
        self._cache.reset()
        return first - second
