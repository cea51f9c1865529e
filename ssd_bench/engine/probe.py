"""`ModelProbe`: the access of methods to the model outside the decode loop (interface: `method.Probe`)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd_bench.contract.generation import Generation
from ssd_bench.contract.method import Method, Origin, SearchUse
from ssd_bench.contract.window import Window
from ssd_bench.engine.engine import Engine
from ssd_bench.engine.sampling import Decoding
from ssd_bench.errors import ConfigError
from ssd_bench.model.decoder import NO_ROWS, Decoder, Pass
from ssd_bench.model.kv_cache import KVCache
from ssd_bench.model.work import COMPARISON

if TYPE_CHECKING:
    from ssd_bench.cost.latency import Latency


class ModelProbe:
    """The `method.Probe` of a decoder and the engine's cache; the protocol documents the methods.

    Args:
        latency, origin: as in `method.Probe`, or None if no method asks for them.

    Attributes:
        searches: reports of `report_search`, in order.
    """

    latency: Latency
    origin: Origin

    def __init__(self, decoder: Decoder, cache: KVCache, latency: Latency | None = None, origin: Origin | None = None):
        self._decoder, self._cache = decoder, cache
        self.n_layers = decoder.arch.n_layers
        self.searches: list[SearchUse] = []
        if latency is not None:
            self.latency = latency
        if origin is not None:
            self.origin = origin

    def embed(self, tokens: Sequence[int]) -> Tensor:
        return self._decoder.embed(self._decoder.ids(tokens))

    def apply_sublayer(self, i: int, hidden: Tensor, prefix_len: int, bits: int = 0) -> Tensor:
        self._check_prefix(prefix_len)
        return self._decoder.run_branches(i, hidden, self._cache, prefix_len, bits)

    def run_sublayers(
        self,
        sublayers: Sequence[int],
        hidden: Tensor,
        prefix_len: int,
        window: Window | None = None,
        bits: Mapping[int, int] | None = None,
    ) -> Tensor:
        self._check_prefix(prefix_len)
        unread = NO_ROWS if window is None else window.unread(prefix_len)
        free = self._cache.capacity - self._cache.length
        if len(hidden) > free:
            raise ValueError(f"{len(hidden)} streams, and the cache has {free} free rows")
        # row: write behind all committed rows, also if prefix_len is smaller, so that none is overwritten;
        # clone: a pass overwrites its streams
        search_pass = Pass(sublayers, hidden.clone(), prefix_len, row=self._cache.length, unread=unread, bits=bits)
        return self._decoder.run(search_pass, self._cache)[0]

    def mean_cosine(self, branches: Tensor, direction: Tensor) -> NDArray[np.float32]:
        start = time.perf_counter()
        cosines: NDArray[np.float32] = mean_cosine(branches, direction).cpu().numpy()
        if (log := self._decoder.log) is not None:
            log.append((COMPARISON, branches.shape[0] * branches.shape[1], 0, 0.0, start, time.perf_counter(), None))
        return cosines

    def predict(self, hidden: Tensor) -> Tensor:
        return self._decoder.predict(_contiguous(hidden)).view(hidden.shape[:-1])

    def predict_confident(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        ids, probability = self._decoder.predict_confident(_contiguous(hidden))
        return ids.view(hidden.shape[:-1]), probability.view(hidden.shape[:-1])

    def final_norm(self, hidden: Tensor) -> Tensor:
        return self._decoder.final_norm(hidden)

    def logits(self, hidden: Tensor, norm: bool = True) -> Tensor:
        return self._decoder.logits(_contiguous(hidden), norm=norm).view(*hidden.shape[:-1], -1)

    def token_logits(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        return self._decoder.logits(_contiguous(hidden), tokens).view(*hidden.shape[:-1], len(tokens))

    def trial(self, method: Method, prompt: Sequence[int], new_tokens: int, max_steps: int | None = None) -> Generation:
        size = self._decoder.arch.vocab_size
        if isinstance(prompt, str) or not len(prompt):
            raise ConfigError("probe.trial prompt", prompt, "at least one token id")
        for token in prompt:
            if not 0 <= token < size:
                raise ConfigError("probe.trial prompt", token, f"token ids in [0, {size})")
        if new_tokens < 1:
            raise ConfigError("probe.trial new_tokens", new_tokens, "an integer >= 1")
        engine = Engine(self._decoder, self._cache, Decoding(max_new_tokens=new_tokens), frozenset(), self)
        return engine.generate(method, prompt, max_steps=max_steps)

    def prompt_states(self, prompt: Sequence[int], taps: Sequence[int]) -> Tensor:
        ids = self._decoder.ids(prompt)
        with torch.inference_mode():
            _, states = self._decoder.prefill(ids, self._cache, taps)
        self._cache.reset()
        assert states is not None, "at least one boundary"
        return states

    def top2_gap(self, tokens: Sequence[int]) -> float:
        ids = self._decoder.ids(tokens)
        with torch.inference_mode():
            last, _ = self._decoder.prefill(ids, self._cache)
            first, second = self._decoder.logits(last)[0].topk(2).values.tolist()
        self._cache.reset()
        return first - second

    def report_search(self, search: SearchUse) -> None:
        self.searches.append(search)

    def _check_prefix(self, prefix_len: int) -> None:
        if not 0 <= prefix_len <= self._cache.length:
            raise ValueError(f"prefix_len={prefix_len} is outside the {self._cache.length} committed rows")


def mean_cosine(branches: Tensor, direction: Tensor) -> Tensor:
    """Compute `method.Probe.mean_cosine` as a tensor [B] on the branches' device."""
    branches = branches.float()  # in half precision near-equal branches would tie
    products = torch.bmm(branches.transpose(0, 1), direction.unsqueeze(-1)).squeeze(-1).t()
    return (products / torch.linalg.vector_norm(branches, dim=-1).clamp_(min=1e-12)).mean(-1)


def _contiguous(hidden: Tensor) -> Tensor:
    return hidden.reshape(-1, hidden.shape[-1]).contiguous()
