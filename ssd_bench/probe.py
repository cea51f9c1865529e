"""What a method may ask of the model outside the decode loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ssd_bench.engine import Generation
    from ssd_bench.kv_cache import KVCache
    from ssd_bench.latency import Latency
    from ssd_bench.method import Method
    from ssd_bench.model import Decoder


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
        generate: the engine's `generate`, where the probe belongs to one.

    Attributes:
        n_layers: L.
        latency: times of the sublayers on this machine; set by the runner before `prepare`.
        origin: of the run; set by the runner before `prepare`.
    """

    latency: Latency
    origin: Origin

    def __init__(self, decoder: Decoder, cache: KVCache, generate: Callable[..., Generation] | None = None):
        self._decoder, self._cache, self._generate = decoder, cache, generate
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

    def predict_confident(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """`predict`, and the raw softmax probabilities [..., ] of those tokens, float32."""
        ids, probability = self._decoder.predict_confident(hidden.reshape(-1, hidden.shape[-1]))
        return ids.view(hidden.shape[:-1]), probability.view(hidden.shape[:-1])

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Streams [..., d] as the LM head reads them."""
        return self._decoder.final_norm(hidden)

    def token_logits(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Float32 logits [..., k] of k vocabulary entries, after final norm and LM head, over streams [..., d]."""
        flat = hidden.reshape(-1, hidden.shape[-1])
        return self._decoder.logits(flat, tokens).view(*hidden.shape[:-1], len(tokens))

    def generate(self, method: Method, prompt: Sequence[int], max_new_tokens: int) -> Generation:
        """Decode a prompt with another method, as a run does; for `prepare` only, since it takes the cache.

        A caller that compares methods by time gives each the same prompts and starts with one that does not count.
        """
        assert self._generate is not None, "this probe has no engine"
        return self._generate(method, prompt, max_new_tokens=max_new_tokens)

    def top2_gap(self, tokens: Sequence[int]) -> float:
        """Difference of the two largest next-token logits after `tokens`; uses and empties the cache."""
        ids = torch.tensor(tokens, device=self._decoder.device)
        with torch.inference_mode():
            last, _ = self._decoder.prefill(ids, self._cache)
            first, second = self._decoder.logits(last)[0].topk(2).values.tolist()
        self._cache.reset()
        return first - second
