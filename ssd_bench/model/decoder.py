"""One decoder for the llama, qwen2 and qwen3 families, written as 2L sublayers, which runs passes over nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ssd_bench.core.tree import TokenTree
from ssd_bench.model.arithmetic import Arithmetic, decide
from ssd_bench.model.kv_cache import BUCKET, KVCache
from ssd_bench.model.operators import Operators, Seen
from ssd_bench.model.rope import tables
from ssd_bench.model.weights import Block, Weights

FEW_NODES, HEAD_ROWS = 32, 2048  # a prediction over more nodes holds the logits of so many vocabulary entries at a time
BRANCH_ROWS = 640  # rows of a search per pass: bounds activation memory at any number of branches
NO_TAP: tuple[float, Tensor | None] = (float("inf"), None)  # beyond the last boundary
NOTHING = (0, 0)  # unread rows of a pass that reads its whole prefix
PREFILL_CHUNK = 512  # prompt positions per pass: bounds activation memory at any prompt length


class Pass(NamedTuple):
    """One run of sublayers over n nodes after a visible prefix; all of it is known before it starts.

    A node sees cache rows [0, prefix_len) but the unread ones and, among the nodes, its ancestors and itself; it
    stands at position prefix_len plus its depth.

    Attributes:
        sublayers: indices in [0, 2L), ascending; the others pass the stream through.
        nodes: [n] token ids, or [n, d] residual streams that enter the first sublayer, which are overwritten.
        prefix_len: visible committed rows.
        tree: how the nodes descend from each other; None: each from the one before, a chain.
        taps: ascending boundaries in [0, 2L] whose stream is kept.
        row: first scratch row: node i writes its keys and values to row + i; None: right after the prefix.
        unread: range [first, end) of prefix rows that no attention reads, within [0, prefix_len].
    """

    sublayers: Sequence[int]
    nodes: Tensor
    prefix_len: int
    tree: TokenTree | None = None
    taps: Sequence[int] = ()
    row: int | None = None
    unread: tuple[int, int] = NOTHING

    @property
    def first_row(self) -> int:
        return self.prefix_len if self.row is None else self.row


class _Place(NamedTuple):
    """What all attentions of a pass share: rows, rotary tables [n, D] at the nodes' positions, who sees whom."""

    prefix_len: int
    row: int
    cos: Tensor
    sin: Tensor
    seen: Seen
    unread: tuple[int, int]


class Decoder:
    """The model: embedding, 2L sublayers (2i attention of block i, 2i+1 its MLP, norm and residual included), head.

    A backend is a class of these in `ssd_bench.model.backends`. This one runs a pass sublayer by sublayer, with the
    operators that it has; another may run it as it likes, once the cache holds what it needs.

    Args:
        arithmetic: of all passes; activations and residual stream have its `activations`.
        weights: as its operators packed them.

    Attributes:
        name: of the backend, its choice of `hardware.kernels`.
        rank: `auto` takes the highest that can serve.
        device_types: kinds of devices that it is for.
        spreads: whether it runs blocks that are on several devices.
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
        self._tables: tuple[Tensor, Tensor] | None = None
        self._branch_tables: tuple[tuple[object, ...], Tensor, Tensor] | None = None

    @classmethod
    def problem(cls, dtype: torch.dtype, isa: str) -> str:
        """Why the backend cannot serve weights of a dtype here, in one line; empty where it can."""
        return ""

    @classmethod
    def decide(cls, device: torch.device, dtype: torch.dtype, isa: str) -> Arithmetic:
        """How it computes with weights of a dtype (`arithmetic.decide`)."""
        return decide(device, dtype, cls.name, isa)

    @classmethod
    def operators(cls, arithmetic: Arithmetic) -> Operators:
        return Operators(arithmetic)

    def new_cache(self, capacity: int, bucket: int = BUCKET) -> KVCache:
        """An empty cache of up to `capacity` rows, with rotary tables that reach as far."""
        self._branch_tables = None
        self._tables = tuple(t.to(self.device) for t in tables(*self.weights.rope, capacity))  # type: ignore[assignment]
        weights, arch = self.weights, self.arch
        return KVCache(weights.devices, arch.n_kv_heads, arch.head_dim, capacity, weights.dtype, bucket)

    def run(self, what: Pass, cache: KVCache) -> tuple[Tensor, Tensor | None]:
        """Run a pass; the cache has grown to what it needs before it starts, and not until the next one.

        Args:
            cache: rows [0, prefix_len) are read, scratch rows [row, row + n) written.

        Returns:
            The stream [n, d] after the last sublayer (the storage of the streams that came in, or one that the next
            pass overwrites), and the tapped states [len(taps), n, d] on the first device, None without taps.
        """
        nodes = what.nodes
        cache.reserve(what.first_row + len(nodes))
        hidden = nodes if nodes.is_floating_point() else self.embed(nodes)
        kept = hidden.new_empty(len(what.taps), *hidden.shape) if what.taps else None
        return self._through(what, hidden, kept, cache), kept

    def _through(self, what: Pass, hidden: Tensor, kept: Tensor | None, cache: KVCache) -> Tensor:
        """Streams [n, d] through the sublayers, in place; those at the taps are copied to kept [len(taps), n, d]."""
        place, devices = self._place(what, hidden.device), self.weights.devices
        waiting = iter(()) if kept is None else zip(what.taps, kept.unbind())
        tap, slot = next(waiting, NO_TAP)
        for i in what.sublayers:
            while tap <= i:
                slot.copy_(hidden)  # type: ignore[union-attr]
                tap, slot = next(waiting, NO_TAP)
            if self._spread and hidden.device != devices[i // 2]:
                hidden, place = hidden.to(devices[i // 2]), self._place(what, devices[i // 2])
            if i % 2:
                self._mlp(self.weights.blocks[i // 2], hidden)
            else:
                self._attention(i // 2, hidden, place, cache)
        while slot is not None:
            slot.copy_(hidden)
            tap, slot = next(waiting, NO_TAP)
        return hidden

    def prefill(
        self, tokens: Tensor, cache: KVCache, taps: Sequence[int] = (), last: int | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Full pass over a prompt into an empty cache, in chunks; commits its rows.

        Args:
            last: tap only so many positions at the end of the prompt; None: all P.

        Returns:
            The stream [1, d] of the last position before the final norm, and the tapped states
            [len(taps), min(last, P), d] (None without taps).
        """
        cache.reset()
        first = max(0, len(tokens) - last) if last else 0
        kept = []
        for chunk in tokens.split(PREFILL_CHUNK):
            begin = cache.length
            tapping = taps if begin + len(chunk) > first else ()
            hidden, tapped = self.run(Pass(self.all_sublayers, chunk, begin, taps=tapping), cache)
            cache.commit(range(len(chunk)))
            if tapped is not None:
                kept.append(tapped[:, max(0, first - begin) :])
        return hidden[-1:].clone(), torch.cat(kept, dim=1) if kept else None

    def branches(self, i: int, hidden: Tensor, cache: KVCache, prefix_len: int) -> Tensor:
        """A pass of sublayer i over B independent continuations of one prefix; the cache is read, not written.

        Every branch is a chain of r nodes at positions prefix_len.. that sees the first `prefix_len` cache rows and,
        causally, the keys and values that it makes itself from its own stream.

        Args:
            hidden: [B, r, d] residual streams; not modified.

        Returns:
            [B, r, d] streams after the sublayer.
        """
        block = self.weights.blocks[i // 2]
        streams = hidden.to(self.weights.devices[i // 2], copy=True)
        for part in streams.split(max(1, BRANCH_ROWS // hidden.shape[1])):
            if i % 2:
                self._mlp(block, part.flatten(0, 1))
            else:
                self._attend_branches(block, part, cache.keys[i // 2], cache.values[i // 2], prefix_len)
        return streams.to(hidden.device)

    def ids(self, tokens: Sequence[int]) -> Tensor:
        """Token ids [n] on the first device; the host does not wait for them to be there."""
        return torch.tensor(tokens).to(self.device, non_blocking=True)

    def embed(self, tokens: Tensor) -> Tensor:
        """[n] token ids -> [n, d] residual stream."""
        if self._spread:  # the LM head, which chose them, may be elsewhere
            tokens = tokens.to(self.device)
        return self._ops.embed(self.weights.embedding, tokens)

    def logits(self, hidden: Tensor, tokens: Tensor | None = None, norm: bool = True) -> Tensor:
        """LM head: [n, d] residual stream -> [n, V] float32.

        Args:
            tokens: the vocabulary entries asked for; None for all.
            norm: whether the final norm is applied before.
        """
        weights, ops = self.weights, self._ops
        if self._spread or hidden.dtype != self.arithmetic.activations:
            hidden = hidden.to(weights.head.device, self.arithmetic.activations)
        head = weights.head if tokens is None else ops.select(weights.head, tokens)
        made = ops.norm_linear(hidden, weights.norm, self.arch.eps, head) if norm else ops.linear(hidden, head)
        return made.float()

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Streams [..., d] as the LM head reads them, float32."""
        norm = self.weights.norm
        return F.rms_norm(hidden.to(norm.device).float(), norm.shape, norm.float(), self.arch.eps)

    def predict(self, hidden: Tensor) -> Tensor:
        """Argmax token id of each of n streams [n, d], the lowest among equals."""
        return self._top(hidden, confidence=False)[0]

    def predict_confident(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """`predict`, and the raw softmax probabilities of those tokens, [n] float32."""
        ids, mass = self._top(hidden, confidence=True)
        assert mass is not None
        return ids, mass.reciprocal()

    def _top(self, hidden: Tensor, confidence: bool) -> tuple[Tensor, Tensor | None]:
        """Ids, and `Operators.mass` over all V logits if asked for; of many streams never all [n, V] logits at once."""
        weights, ops, size = self.weights, self._ops, self.arch.vocab_size
        hidden = hidden.to(weights.head.device)
        step = size if len(hidden) <= FEW_NODES else HEAD_ROWS
        found: tuple[Tensor, Tensor, Tensor | None] | None = None
        for start in range(0, size, step):
            rows = weights.head[start : start + step]
            logits = ops.norm_linear(hidden, weights.norm, self.arch.eps, rows).float()
            best, ids = ops.top(logits)
            mass = ops.mass(logits, best) if confidence else None
            if found is None:
                found = best, ids, mass
                continue
            known, first, before = found
            most = torch.maximum(known, best)
            if mass is not None and before is not None:
                mass = before * (known - most).exp() + mass * (best - most).exp()
            found = most, torch.where(best > known, ids + start, first), mass
        assert found is not None
        return found[1:]

    def _place(self, what: Pass, device: torch.device) -> _Place:
        assert self._tables is not None, "new_cache comes first"
        n, start, tree = len(what.nodes), what.prefix_len, what.tree
        if tree is None or tree.is_chain:
            cos, sin = (table.narrow(0, start, n) for table in self._tables)
            mask = None
        else:
            positions = torch.tensor(tree.depths, device=self.device) + start
            cos, sin = (table.index_select(0, positions) for table in self._tables)
            mask = tree.mask().to(device)
        if device != self.device:
            cos, sin = cos.to(device), sin.to(device)
        first, end = what.unread
        seen = self._ops.seen(n, start - (end - first), mask, device)
        return _Place(start, what.first_row, cos, sin, seen, what.unread)

    def _branch_positions(self, b: int, r: int, prefix_len: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Rotary tables [B * r, D] of r positions from `prefix_len` on, B times; kept, since a search asks 2L times."""
        assert self._tables is not None, "new_cache comes first"
        key, kept = (r, prefix_len, device), self._branch_tables
        if kept is None or kept[0] != key or len(kept[1]) < b * r:
            positions = (t.narrow(0, prefix_len, r).to(device) for t in self._tables)
            cos, sin = (t.expand(b, r, -1).reshape(b * r, -1).contiguous() for t in positions)
            kept = self._branch_tables = key, cos, sin
        return kept[1].narrow(0, 0, b * r), kept[2].narrow(0, 0, b * r)

    def _attend_branches(self, block: Block, streams: Tensor, keys: Tensor, values: Tensor, prefix_len: int) -> None:
        """Attention of a block, in place, over streams [B, r, d]; keys and values [Hkv, cap, D] are its cache."""
        b, r, _ = streams.shape
        flat = streams.flatten(0, 1)
        cos, sin = self._branch_positions(b, r, prefix_len, flat.device)
        rows = keys.new_empty(2, self.arch.n_kv_heads, b * r, self.arch.head_dim)
        query = self._project(block, flat, cos, sin, rows[0], rows[1], 0)
        attended = self._ops.attend_branches(query, keys, values, prefix_len, rows[0], rows[1], b)
        self._ops.linear_add_(flat, attended, block.out, block.out_bias)

    def _project(
        self, block: Block, hidden: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, row: int
    ) -> Tensor:
        """Queries [n, Hq, D] of the nodes; their keys and values go to rows [row, row + n)."""
        qkv = self._ops.norm_linear(hidden, block.attn_norm, self.arch.eps, block.qkv, block.qkv_bias)
        return self._ops.rope_append(qkv, cos, sin, block.q_norm, block.k_norm, self.arch.eps, keys, values, row)

    def _attention(self, layer: int, hidden: Tensor, place: _Place, cache: KVCache) -> None:
        block, keys, values = self.weights.blocks[layer], cache.keys[layer], cache.values[layer]
        query = self._project(block, hidden, place.cos, place.sin, keys, values, place.row)
        attended = self._ops.attend(query, keys, values, place.prefix_len, place.row, place.seen, place.unread)
        self._ops.linear_add_(hidden, attended, block.out, block.out_bias)

    def _mlp(self, block: Block, hidden: Tensor) -> None:
        gate_up = self._ops.norm_linear(hidden, block.mlp_norm, self.arch.eps, block.gate_up, block.gate_up_bias)
        self._ops.swiglu_linear_add_(hidden, gate_up, block.down, block.down_bias)
