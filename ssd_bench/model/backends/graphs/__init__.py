"""Captured passes for one GPU: CUDA graphs of Triton kernels, one per run of sublayers; a layer set chains them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ssd_bench.model.arithmetic import Arithmetic
from ssd_bench.model.decoder import Decoder, Pass
from ssd_bench.model.kv_cache import BUCKET, KVCache
from ssd_bench.model.operators import HeadNorms, Matrix, Operators, RoundedMatrix
from ssd_bench.model.rope import Rotation
from ssd_bench.model.weights import Weights

if TYPE_CHECKING:
    from ssd_bench.model.backends.graphs.lane import Lane
    from ssd_bench.model.backends.graphs.launches import Nodes

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LANES = (16, 64)  # most nodes of a captured pass; a pass over more is launched operator by operator


class GraphOperators(Operators):
    """Operators of uncaptured passes over many nodes: prompts, searches, wide trees."""

    def __init__(self, arithmetic: Arithmetic):
        from ssd_bench.model.backends.graphs import launches  # Triton: slow to import, and not installed everywhere

        super().__init__(arithmetic)
        self._launches = launches
        self._chain: tuple[tuple[int, ...], Nodes] | None = None

    def _nodes(self, *values: int, device: torch.device) -> Nodes:
        """Return a chain with this `meta` on the device, cached for the other sublayers of the pass."""
        if self._chain is None or self._chain[0] != values:
            meta = torch.tensor(values, dtype=torch.int32).to(device, non_blocking=True)
            self._chain = values, self._launches.Nodes(meta, meta, meta)  # a chain has neither depths nor a mask
        return self._chain[1]

    def norm_linear(self, x: Tensor, norm_w: Tensor, eps: float, W: Matrix, bias: Tensor | None = None) -> Tensor:
        return self.linear(F.rms_norm(x, norm_w.shape, norm_w, eps), W, bias)

    def linear_add_(self, residual: Tensor, x: Tensor, W: Matrix, bias: Tensor | None = None) -> None:
        if isinstance(W, RoundedMatrix):
            super().linear_add_(residual, x, W, bias)
            return
        residual.addmm_(x, W.t())
        if bias is not None:
            residual.add_(bias)

    def rope_append(
        self, qkv: Tensor, rotation: Rotation, norms: HeadNorms, keys: Tensor, values: Tensor, row: int
    ) -> Tensor:
        n, (kv_heads, _, dim) = len(qkv), keys.shape
        q = qkv.new_empty(n, qkv.shape[1] // dim - 2 * kv_heads, dim)
        nodes = self._nodes(n, 0, row, 1, device=qkv.device)  # without a prefix: the rotation has a row for every node
        self._launches.rope_append(qkv, rotation, norms, keys, values, q, nodes)
        return q

    def attend_branches(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        prefix_len: int,
        own_keys: Tensor,
        own_values: Tensor,
        branches: int,
    ) -> Tensor:
        meta = self._nodes(len(q), prefix_len, 0, 1, device=q.device).meta
        return self._launches.attend_branches(q, keys, values, own_keys, own_values, meta, len(q) // branches)


class GraphDecoder(Decoder):
    """The decoder on captured passes over up to 64 nodes, for one GPU.

    A node's result has the same bits in every pass over up to 16 nodes, whatever the others are, and in every pass over
    17 to 64 nodes, perhaps with other bits.
    """

    name: ClassVar[str] = "graphs"
    rank: ClassVar[int] = 2
    device_types: ClassVar[tuple[str, ...]] = ("cuda",)
    spreads: ClassVar[bool] = False

    def __init__(self, arithmetic: Arithmetic, weights: Weights):
        super().__init__(arithmetic, weights)
        from ssd_bench.model.backends.graphs import launches

        self._launches = launches
        # `meta` of the LM head: row n holds the number n, in 16 bytes, since kernels are compiled for aligned addresses
        self._counts = torch.arange(LANES[-1] + 1, dtype=torch.int32, device=self.device)[:, None].repeat(1, 4)
        self._lanes: tuple[Lane, ...] = ()

    @classmethod
    def problem(cls, dtype: torch.dtype, isa: str) -> str:
        if dtype not in DTYPES:
            return f"the graphs take float32, bfloat16 and float16 weights, not {dtype}"
        return "" if find_spec("triton") else "Triton is not installed (pip install triton)"

    @classmethod
    def operators(cls, arithmetic: Arithmetic) -> Operators:
        return GraphOperators(arithmetic)

    def new_cache(self, capacity: int, bucket: int = BUCKET) -> KVCache:
        """Allocate all rows of a cache at once: captured passes hold their addresses."""
        from ssd_bench.model.backends.graphs.lane import Lane

        cache = super().new_cache(capacity, capacity)
        assert self._tables is not None
        self._lanes = ()  # frees the old buffers before new ones are allocated
        self._lanes = tuple(Lane(self.weights, cache, self._tables, nodes, self._rounded) for nodes in LANES)
        return cache

    def _run(self, forward: Pass, cache: KVCache) -> tuple[Tensor, Tensor | None]:
        """Run a pass; the next pass overwrites the returned stream."""
        n = len(forward.nodes)
        lane = next((lane for lane in self._lanes if n <= lane.nodes and lane.cache is cache), None)
        if lane is None:
            return super()._run(forward, cache)
        cache.reserve(forward.first_row + n)
        hidden = lane.hidden[:n]
        if forward.nodes.is_floating_point():
            hidden.copy_(forward.nodes)
        else:
            torch.index_select(self.weights.embedding, 0, forward.nodes, out=hidden)
        lane.enter(forward)
        kept = hidden.new_empty(len(forward.taps), *hidden.shape) if forward.taps else None
        for sublayers, slot in forward.segments(kept):
            lane.run(sublayers, forward.bits)
            if slot is not None:
                slot.copy_(hidden)
        return hidden, kept

    def _logits(self, hidden: Tensor, tokens: Tensor | None, norm: bool, head: Matrix) -> Tensor:
        n = len(hidden)
        if tokens is not None or not norm or n > LANES[-1] or hidden.dtype != self.weights.dtype:
            return super()._logits(hidden, tokens, norm, head)
        weights = self.weights
        logits = hidden.new_empty(n, self.arch.vocab_size, dtype=torch.float32)
        normed = F.rms_norm(hidden, weights.norm.shape, weights.norm, self.arch.eps)
        self._launches.linear(normed, head, None, logits, self._counts[n])
        return logits


BACKEND = GraphDecoder
