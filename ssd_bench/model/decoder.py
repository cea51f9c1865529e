"""The decoder of the llama, qwen2 and qwen3 families: 2L sublayers, run in passes over nodes."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ssd_bench.contract.tree import TokenTree
from ssd_bench.model.arithmetic import Arithmetic, decide
from ssd_bench.model.kv_cache import BUCKET, KVCache
from ssd_bench.model.operators import Matrix, Operators, Visibility
from ssd_bench.model.rope import Rotation, rotary_tables
from ssd_bench.model.weights import Block, Rounded, Weights
from ssd_bench.model.work import HEAD, WorkLog

FEW_NODES, HEAD_ROWS = 32, 2048  # above FEW_NODES nodes, predictions compute HEAD_ROWS vocabulary entries at a time
BRANCH_ROWS = 640  # streams of a search that run together: bounds activation memory at any number of branches
NO_ROWS = (0, 0)  # `Pass.unread` of a pass that reads its whole prefix
PREFILL_CHUNK = 512  # prompt positions per pass: bounds activation memory at any prompt length


class Pass(NamedTuple):
    """One run of sublayers over n nodes after a visible prefix.

    Cache rows [0, prefix_len) hold the keys and values of the prefix, row p those of position p. Node i writes its own
    to scratch row `row` + i, but is at position prefix_len plus its depth: siblings share a position, not a row. It
    attends to the prefix rows outside `unread`, to the scratch rows of its ancestors, and to its own row.

    Attributes:
        sublayers: indices in [0, 2L), ascending; others leave the residual stream as it is.
        nodes: [n] token ids, or [n, d] residual streams for the first sublayer, which the pass overwrites.
        prefix_len: number of visible committed rows.
        tree: parents of the nodes; None: a chain.
        taps: ascending boundaries in [0, 2L] at which the stream is kept.
        row: cache row of node 0; None: the first row after the prefix.
        unread: range [first, end) of prefix rows outside a window, which no attention reads.
        bits: bits of rounded weights, by sublayer; `Decoder.quantise` comes first. None: all read weights as loaded.
    """

    sublayers: Sequence[int]
    nodes: Tensor
    prefix_len: int
    tree: TokenTree | None = None
    taps: Sequence[int] = ()
    row: int | None = None
    unread: tuple[int, int] = NO_ROWS
    bits: Mapping[int, int] | None = None

    @property
    def first_row(self) -> int:
        return self.prefix_len if self.row is None else self.row

    def segments(self, tapped: Tensor | None) -> Iterator[tuple[Sequence[int], Tensor | None]]:
        """Yield the sublayers up to each tap with its slot of `tapped`; the last segment has none."""
        done = 0
        for tap, slot in zip(self.taps, () if tapped is None else tapped.unbind()):
            until = bisect_left(self.sublayers, tap)  # sublayers skipped since the last tap did not change the stream
            yield self.sublayers[done:until], slot
            done = until
        yield self.sublayers[done:], None


class _AttentionInputs(NamedTuple):
    """Inputs shared by all attentions of a pass."""

    prefix_len: int
    row: int
    rotation: Rotation
    visibility: Visibility
    unread: tuple[int, int]


class Decoder:
    """The model: embedding, 2L sublayers (2i attention of block i, 2i+1 its MLP, norm and residual included), head.

    A backend is a subclass in `ssd_bench.model.backends`. It may replace the operators, which run a pass sublayer by
    sublayer, the whole pass (`_run`) or the head (`_logits`); `run` and `logits` log the work.

    Args:
        weights: packed by the operators of this class.

    Attributes:
        name: a value of `hardware.kernels`.
        rank: `auto` takes the highest available rank.
        spreads: whether blocks may be on several devices.
        log: log of all passes and heads, or None.
    """

    name: ClassVar[str]
    rank: ClassVar[int]
    device_types: ClassVar[tuple[str, ...]]
    spreads: ClassVar[bool] = True

    def __init__(self, arithmetic: Arithmetic, weights: Weights):
        self.arithmetic, self.weights, self.arch = arithmetic, weights, weights.arch
        self.device = weights.devices[0]
        self.all_sublayers = tuple(range(2 * weights.arch.n_layers))
        self._ops = self.operators(arithmetic)
        self._spread = len(set(weights.devices)) > 1
        self._tables: Rotation | None = None  # of every position
        self._branch_rotation: tuple[tuple[object, ...], Rotation] | None = None  # key, and the rotation of branches
        self.log: WorkLog | None = None
        self._rounded: dict[int, Rounded] = {}

    @classmethod
    def problem(cls, dtype: torch.dtype, isa: str) -> str:
        """Return in one line why the backend cannot serve a dtype here; empty if it can."""
        return ""

    @classmethod
    def decide(cls, device: torch.device, dtype: torch.dtype, isa: str) -> Arithmetic:
        """Return the arithmetic for weights of a dtype (`arithmetic.decide`)."""
        return decide(device, dtype, cls.name, isa)

    @classmethod
    def operators(cls, arithmetic: Arithmetic) -> Operators:
        return Operators(arithmetic)

    @property
    def bits(self) -> Collection[int]:
        """Bits of `quantise`'s rounded copies of the weights."""
        return self._rounded.keys()

    def in_bits(self, bits: int) -> Weights | Rounded:
        """Return the weights as loaded (0) or their rounded copy; `quantise` comes first."""
        return self._rounded[bits] if bits else self.weights

    def quantise(self, bits: int) -> None:
        """Round a copy of the blocks' matrices and of the LM head to 8 or 4 bits, if there is none yet.

        Call it before `new_cache`, when a backend may record its passes.
        """
        if bits not in self._rounded:
            self._rounded[bits] = self.weights.rounded(partial(self._ops.round, bits=bits))

    def new_cache(self, capacity: int, bucket: int = BUCKET) -> KVCache:
        """Allocate an empty cache of up to `capacity` rows, and rotary tables of as many positions."""
        self._branch_rotation = None
        self._tables = rotary_tables(*self.weights.rope, capacity).to(self.device)
        weights, arch = self.weights, self.arch
        return KVCache(weights.devices, arch.n_kv_heads, arch.head_dim, capacity, weights.dtype, bucket)

    def run(self, forward: Pass, cache: KVCache) -> tuple[Tensor, Tensor | None]:
        """Run a pass; if the cache must grow, it grows before the first sublayer.

        Args:
            cache: rows [0, prefix_len) are read, scratch rows [row, row + n) written.

        Returns:
            The stream [n, d] after the last sublayer (in the incoming streams' storage, or in storage that the next
            pass overwrites), and the tapped states [len(taps), n, d] on the first device, or None.
        """
        start, (first_unread, end_unread) = time.perf_counter(), forward.unread
        result = self._run(forward, cache)
        if self.log is not None:
            read = forward.prefix_len - (end_unread - first_unread)
            bits = forward.bits
            self.log.append((forward.sublayers, len(forward.nodes), read, 0.0, start, time.perf_counter(), bits))
        return result

    def _run(self, forward: Pass, cache: KVCache) -> tuple[Tensor, Tensor | None]:
        nodes = forward.nodes
        cache.reserve(forward.first_row + len(nodes))
        hidden = nodes if nodes.is_floating_point() else self.embed(nodes)
        tapped = hidden.new_empty(len(forward.taps), *hidden.shape) if forward.taps else None
        return self._run_sublayers(forward, hidden, tapped, cache), tapped

    def _run_sublayers(self, forward: Pass, hidden: Tensor, tapped: Tensor | None, cache: KVCache) -> Tensor:
        """Run streams [n, d] through the sublayers, in place; copy those at the taps to `tapped` [len(taps), n, d]."""
        inputs, devices = self._attention_inputs(forward, hidden.device), self.weights.devices
        bits = forward.bits or {}
        for sublayers, slot in forward.segments(tapped):
            for i in sublayers:
                if self._spread and hidden.device != devices[i // 2]:
                    hidden, inputs = hidden.to(devices[i // 2]), self._attention_inputs(forward, devices[i // 2])
                block = self.in_bits(bits.get(i, 0)).blocks[i // 2]
                if i % 2:
                    self._mlp(block, hidden)
                else:
                    self._attention(i // 2, block, hidden, inputs, cache)
            if slot is not None:
                slot.copy_(hidden)
        return hidden

    def prefill(
        self, tokens: Tensor, cache: KVCache, taps: Sequence[int] = (), prompt_end: int | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Run all sublayers over a prompt of P tokens into an emptied cache, chunk by chunk, and commit its rows.

        Args:
            prompt_end: number of positions at the prompt's end with kept states; None: all P.

        Returns:
            The last position's stream [1, d] before the final norm, and the tapped states
            [len(taps), min(prompt_end, P), d], or None.
        """
        cache.reset()
        first_tapped = max(0, len(tokens) - prompt_end) if prompt_end else 0
        states = []
        for chunk in tokens.split(PREFILL_CHUNK):
            start = cache.length
            chunk_taps = taps if start + len(chunk) > first_tapped else ()
            hidden, tapped = self.run(Pass(self.all_sublayers, chunk, start, taps=chunk_taps), cache)
            cache.commit(range(len(chunk)))
            if tapped is not None:
                states.append(tapped[:, max(0, first_tapped - start) :])
        # clone: the next pass overwrites the stream
        return hidden[-1:].clone(), torch.cat(states, dim=1) if states else None

    def run_branches(self, i: int, hidden: Tensor, cache: KVCache, prefix_len: int, bits: int = 0) -> Tensor:
        """Run sublayer i over B independent continuations of one prefix: streams [B, r, d] -> [B, r, d].

        Every branch is a chain of r nodes at positions prefix_len, prefix_len + 1, ... It attends to the first
        `prefix_len` cache rows and, causally, to its own nodes, whose keys and values stay outside the cache. The
        incoming streams are not modified.
        """
        start, block = time.perf_counter(), self.in_bits(bits).blocks[i // 2]
        streams = hidden.to(self.weights.devices[i // 2], copy=True)
        for part in streams.split(max(1, BRANCH_ROWS // hidden.shape[1])):
            if i % 2:
                self._mlp(block, part.flatten(0, 1))
            else:
                self._attend_branches(i // 2, block, part, cache, prefix_len)
        result = streams.to(hidden.device)
        if self.log is not None:
            rows = hidden.shape[0] * hidden.shape[1]
            self.log.append(((i,), rows, prefix_len, 0.0, start, time.perf_counter(), {i: bits} if bits else None))
        return result

    def ids(self, tokens: Sequence[int]) -> Tensor:
        """Copy token ids [n] to the first device, without waiting."""
        return torch.tensor(tokens).to(self.device, non_blocking=True)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the residual streams [n, d] of token ids [n]."""
        if self._spread:  # the LM head, which chose the tokens, may be on another device
            tokens = tokens.to(self.device)
        return self._ops.embed(self.weights.embedding, tokens)

    def logits(self, hidden: Tensor, tokens: Tensor | None = None, norm: bool = True, bits: int = 0) -> Tensor:
        """Apply the LM head: residual streams [n, d] -> logits [n, V], float32.

        Args:
            tokens: vocabulary entries to compute, the columns of the result; None: all V.
        """
        start = time.perf_counter()
        logits = self._logits(hidden, tokens, norm, self.in_bits(bits).head)
        if self.log is not None:
            share = logits.shape[1] / self.arch.vocab_size
            head_bits = {HEAD[0]: bits} if bits else None
            self.log.append((HEAD, len(hidden), 0, share, start, time.perf_counter(), head_bits))
        return logits

    def _logits(self, hidden: Tensor, tokens: Tensor | None, norm: bool, head: Matrix) -> Tensor:
        weights, ops = self.weights, self._ops
        if self._spread or hidden.dtype != self.arithmetic.activations:
            hidden = hidden.to(head.device, self.arithmetic.activations)
        head = head if tokens is None else ops.select(head, tokens)
        logits = ops.norm_linear(hidden, weights.norm, self.arch.eps, head) if norm else ops.linear(hidden, head)
        return logits.float()

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Return streams [..., d] after the final norm, in float32."""
        norm = self.weights.norm
        return F.rms_norm(hidden.to(norm.device).float(), norm.shape, norm.float(), self.arch.eps)

    def predict(self, hidden: Tensor) -> Tensor:
        """Return the argmax token id of each of n streams [n, d], the lowest among equals."""
        return self._top(hidden, confidence=False)[0]

    def predict_confident(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ids of `predict` and their raw softmax probabilities, [n] float32."""
        ids, mass = self._top(hidden, confidence=True)
        assert mass is not None
        return ids, mass.reciprocal()  # exp(best - best) / sum(exp(logits - best))

    def _top(self, hidden: Tensor, confidence: bool) -> tuple[Tensor, Tensor | None]:
        """Return the argmax ids [n] and, with `confidence`, the sums [n] of exp(logit - best) over all V logits.

        For many streams, `HEAD_ROWS` vocabulary entries are computed at a time.
        """
        begin = time.perf_counter()
        weights, ops, size = self.weights, self._ops, self.arch.vocab_size
        hidden = hidden.to(weights.head.device)
        step = size if len(hidden) <= FEW_NODES else HEAD_ROWS
        running: tuple[Tensor, Tensor, Tensor | None] | None = None
        for start in range(0, size, step):
            rows = weights.head[start : start + step]
            logits = ops.norm_linear(hidden, weights.norm, self.arch.eps, rows).float()
            best, ids = ops.top(logits)
            mass = ops.mass(logits, best) if confidence else None
            if running is None:
                running = best, ids, mass
                continue
            old_best, old_ids, old_mass = running
            new_best = torch.maximum(old_best, best)
            # online softmax: rescale both sums to the new maximum, then add them
            if mass is not None and old_mass is not None:
                mass = old_mass * (old_best - new_best).exp() + mass * (best - new_best).exp()
            running = new_best, torch.where(best > old_best, ids + start, old_ids), mass  # ties keep the lower id
        assert running is not None
        if self.log is not None:
            self.log.append((HEAD, len(hidden), 0, 1.0, begin, time.perf_counter(), None))
        return running[1:]

    def _attention_inputs(self, forward: Pass, device: torch.device) -> _AttentionInputs:
        assert self._tables is not None, "new_cache comes first"
        n, start, tree = len(forward.nodes), forward.prefix_len, forward.tree
        if tree is None or tree.is_chain:  # node i at position start + i: a slice of the tables, and a causal mask
            rotation, mask = self._tables.narrow(start, n), None
        else:  # siblings share a position: rows of the tables are gathered; mask [n, n]: ancestors and the node itself
            positions = torch.tensor(tree.depths, device=self.device) + start
            rotation = Rotation(*(table.index_select(0, positions) for table in self._tables))
            mask = tree.mask().to(device)
        if device != self.device:
            rotation = rotation.to(device)
        first, end = forward.unread  # attention leaves these rows out, so the visibility does not cover them
        visibility = self._ops.visibility(n, start - (end - first), mask, device)
        return _AttentionInputs(start, forward.first_row, rotation, visibility, forward.unread)

    def _rotation_of_branches(self, b: int, r: int, prefix_len: int, device: torch.device) -> Rotation:
        """Return the rotation of r positions from `prefix_len` on, repeated B times, cached for other sublayers."""
        assert self._tables is not None, "new_cache comes first"
        key, cached = (r, prefix_len, device), self._branch_rotation
        if cached is None or cached[0] != key or len(cached[1].cos) < b * r:
            positions = self._tables.narrow(prefix_len, r).to(device)
            repeated = (t.expand(b, r, -1).reshape(b * r, -1).contiguous() for t in positions)
            cached = self._branch_rotation = key, Rotation(*repeated)
        return cached[1].narrow(0, b * r)

    def _attend_branches(self, layer: int, block: Block, streams: Tensor, cache: KVCache, prefix_len: int) -> None:
        """Apply a block's attention to streams [B, r, d], in place."""
        b, r, _ = streams.shape
        flat = streams.flatten(0, 1)
        keys, values = cache.keys[layer], cache.values[layer]
        rotation = self._rotation_of_branches(b, r, prefix_len, flat.device)
        # keys and values of the branches' own nodes, instead of scratch rows of the cache
        rows = keys.new_empty(2, self.arch.n_kv_heads, b * r, self.arch.head_dim)
        query = self._project(layer, block, flat, rotation, rows[0], rows[1], 0)
        attended = self._ops.attend_branches(query, keys, values, prefix_len, rows[0], rows[1], b)
        self._ops.linear_add_(flat, attended, block.out, block.out_bias)

    def _project(
        self, layer: int, block: Block, hidden: Tensor, rotation: Rotation, keys: Tensor, values: Tensor, row: int
    ) -> Tensor:
        """Return queries [n, Hq, D] of the nodes; write their keys and values to rows [row, row + n)."""
        norms = self.weights.head_norms[layer]
        qkv = self._ops.norm_linear(hidden, block.attn_norm, self.arch.eps, block.qkv, block.qkv_bias)
        return self._ops.rope_append(qkv, rotation, norms, keys, values, row)

    def _attention(self, layer: int, block: Block, hidden: Tensor, inputs: _AttentionInputs, cache: KVCache) -> None:
        keys, values = cache.keys[layer], cache.values[layer]
        query = self._project(layer, block, hidden, inputs.rotation, keys, values, inputs.row)
        attended = self._ops.attend(
            query, keys, values, inputs.prefix_len, inputs.row, inputs.visibility, inputs.unread
        )
        self._ops.linear_add_(hidden, attended, block.out, block.out_bias)

    def _mlp(self, block: Block, hidden: Tensor) -> None:
        gate_up = self._ops.norm_linear(hidden, block.mlp_norm, self.arch.eps, block.gate_up, block.gate_up_bias)
        self._ops.swiglu_linear_add_(hidden, gate_up, block.down, block.down_bias)
