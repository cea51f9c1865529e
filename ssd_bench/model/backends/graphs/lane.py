"""Captured passes over up to a given number of nodes: one graph per short run of sublayers, and one of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
import triton
from torch import Tensor

from ssd_bench.model.backends.graphs import launches
from ssd_bench.model.decoder import Pass
from ssd_bench.model.kv_cache import KVCache
from ssd_bench.model.rope import Rotation
from ssd_bench.model.weights import Rounded, Weights

LENGTHS = (16, 8, 4, 2, 1)  # ranges of so many sublayers have a graph, from every first sublayer


class Lane:
    """Buffers of passes over up to `nodes` nodes, and the graphs that compute in them.

    A graph holds the addresses of weights, cache and buffers, and reads the rest from the buffers, so it serves any
    prefix length, number of nodes and tree. A layer set is a chain of these graphs, so a new one needs no capture.

    Args:
        weights: on one GPU; on a CPU (Triton's interpreter) kernels are launched one by one.
        cache: the only cache of these passes.
        tables: rotation of every position.
        rounded: rounded weights, by bits.

    Attributes:
        hidden: [nodes, d], the stream.
    """

    def __init__(self, weights: Weights, cache: KVCache, tables: Rotation, nodes: int, rounded: Mapping[int, Rounded]):
        self.weights, self.cache, self.nodes, arch = weights, cache, nodes, weights.arch
        self._tables, device, dtype = tables, weights.devices[0], weights.dtype
        width = max(16, triton.next_power_of_2(arch.head_dim))
        splits = triton.cdiv(cache.rows, launches.split_rows(cache.rows))

        def buffer(*shape: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.zeros(*shape, dtype=kind, device=device)

        self._nodes = launches.Nodes(
            buffer(6, kind=torch.int32), buffer(nodes, kind=torch.int32), buffer(nodes, nodes, kind=torch.uint8)
        )
        self.hidden, self._normed = buffer(nodes, arch.width), buffer(nodes, arch.width)
        self._qkv = buffer(nodes, (arch.n_heads + 2 * arch.n_kv_heads) * arch.head_dim)
        self._q, self._inner = buffer(nodes, arch.n_heads, arch.head_dim), buffer(nodes, arch.intermediate)
        self._attended = buffer(nodes, arch.n_heads * arch.head_dim)
        self._parts = buffer(splits, nodes, arch.n_heads, width, kind=torch.float32)
        self._stats = buffer(2, splits, nodes, arch.n_heads, kind=torch.float32)
        self._n_sub = n_sub = 2 * arch.n_layers
        # sublayer i with weights of the k-th copy has the index k n_sub + i; no range has several kinds
        self._blocks = [weights.blocks, *(copy.blocks for copy in rounded.values())]
        starts = [kind * n_sub for kind in range(len(self._blocks))]
        self._starts = dict(zip((0, *rounded), starts))
        with torch.inference_mode():
            if device.type == "cuda":
                # compiles and loads the kernels; with n = 0 nodes they write nothing
                self._launch_all(0, n_sub * len(self._blocks))
            self._ranges = {(start, start + n_sub): self._capture(start, start + n_sub) for start in starts} | {
                (start + i, start + i + n): self._capture(start + i, start + i + n)
                for start in starts
                for n in LENGTHS
                for i in range(n_sub - n + 1)
            }
        self._chains: dict[tuple[int, ...], list[Callable[[], object]]] = {}

    def enter(self, forward: Pass) -> None:
        """Write a pass's metadata, depths and mask to the buffers; the caller writes the streams.

        The sources are in pageable host memory, which the driver has read when the copy returns.
        """
        n, tree = len(forward.nodes), forward.tree
        chain = tree is None or tree.is_chain
        meta = torch.tensor((n, forward.prefix_len, forward.first_row, chain, *forward.unread), dtype=torch.int32)
        self._nodes.meta.copy_(meta, non_blocking=True)
        if tree is not None and not chain:
            self._nodes.depths[:n].copy_(torch.tensor(tree.depths, dtype=torch.int32), non_blocking=True)
            self._nodes.mask[:n, :n].copy_(tree.mask().byte().to(self.hidden.device, non_blocking=True))

    def run(self, sublayers: Sequence[int], bits: Mapping[int, int] | None = None) -> None:
        """Run sublayers, in place on `hidden`; `bits` as in `Pass.bits`."""
        key = tuple(i + self._starts[bits.get(i, 0)] for i in sublayers) if bits else tuple(sublayers)
        chain = self._chains.get(key)
        if chain is None:
            chain = self._chains[key] = [self._ranges[part] for part in self._parts_of(key)]
        for replay in chain:
            replay()

    def _parts_of(self, sublayers: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """Yield the fewest captured ranges that make up the sublayers, ascending."""
        at = 0
        while at < len(sublayers):
            first, left = sublayers[at], len(sublayers) - at
            run = next((n for n in range(1, left) if sublayers[at + n] != first + n), left)
            length = run if (first, first + run) in self._ranges else next(n for n in LENGTHS if n <= run)
            yield first, first + length
            at += length

    def _capture(self, first: int, last: int) -> Callable[[], object]:
        if self.hidden.device.type != "cuda":
            return partial(self._launch_all, first, last)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._launch_all(first, last)
        return graph.replay

    def _launch_all(self, first: int, last: int) -> None:
        for i in range(first, last):
            self._launch(i)

    def _launch(self, i: int) -> None:
        kind, i = divmod(i, self._n_sub)
        block, nodes, meta = self._blocks[kind][i // 2], self._nodes, self._nodes.meta
        norm = block.mlp_norm if i % 2 else block.attn_norm
        launches.rms_norm(self.hidden, norm, self._normed, meta, self.weights.arch.eps)
        if i % 2:
            launches.linear(self._normed, block.gate_up, block.gate_up_bias, self._inner, meta, gated=True)
            launches.linear(self._inner, block.down, block.down_bias, self.hidden, meta, add=True)
            return
        keys, values, norms = self.cache.keys[i // 2], self.cache.values[i // 2], self.weights.head_norms[i // 2]
        launches.linear(self._normed, block.qkv, block.qkv_bias, self._qkv, meta)
        launches.rope_append(self._qkv, self._tables, norms, keys, values, self._q, nodes)
        launches.attend(self._q, keys, values, self._attended, self._parts, self._stats, nodes)
        launches.linear(self._attended, block.out, block.out_bias, self.hidden, meta, add=True)
