"""One decoder for the llama, qwen2 and qwen3 families, written as 2L sublayers, with one forward over nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ssd_bench.errors import ConfigError
from ssd_bench.model.backends.select import NODE_LIMIT
from ssd_bench.model.kv_cache import BUCKET, KVCache
from ssd_bench.model.rope import frequencies, tables
from ssd_bench.model.shape import ModelDims, Shape

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from ssd_bench.model.backends.interface import Ops
    from ssd_bench.model.checkpoint import Checkpoint

EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
ATTENTION, MLP = (
    [f"self_attn.{x}_proj" for x in "qkvo"],
    [f"mlp.{x}_proj" for x in ("gate", "up", "down")],
)  # of a block
FAMILIES = ("llama", "qwen2", "qwen3")
HEAD_ROWS = 2048  # rows of the LM head that a prediction over many nodes upcasts at a time
BRANCH_ROWS = 640  # rows of a search per pass: bounds activation memory at any number of branches
NO_TAP: tuple[float, Tensor | None] = (float("inf"), None)  # beyond the last boundary
PREFILL_CHUNK = 512  # prompt positions per forward pass: bounds activation memory at any prompt length


@dataclass(frozen=True, kw_only=True)
class Architecture(Shape):
    """What the decoder needs to know of a checkpoint's config."""

    family: str
    context: int
    eps: float

    @classmethod
    def of(cls, config: PretrainedConfig) -> Architecture:
        """The architecture of a config.

        Raises:
            ConfigError: another family, or a variant of a family that this decoder does not compute.
        """
        if config.model_type not in FAMILIES:
            raise ConfigError("config.model_type", config.model_type, f"one of {', '.join(FAMILIES)}")
        if config.hidden_act != "silu":
            raise ConfigError("config.hidden_act", config.hidden_act, "silu")
        layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
        if layer_types != {"full_attention"}:
            raise ConfigError("config.layer_types", sorted(layer_types), "full_attention in every layer")
        frequencies(config)
        return cls(
            family=config.model_type,
            n_layers=config.num_hidden_layers,
            width=config.hidden_size,
            n_heads=config.num_attention_heads,
            n_kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            intermediate=config.intermediate_size,
            vocab_size=config.vocab_size,
            context=config.max_position_embeddings,
            eps=config.rms_norm_eps,
            tied=config.tie_word_embeddings,
        )

    def dims(self, name: str) -> ModelDims:
        """The sizes that methods check their settings against."""
        return ModelDims(name, self.n_layers, self.n_params, self.context, self.vocab_size)


@dataclass(frozen=True)
class Block:
    """Weights of one block; q, k, v and gate, up are stored as one matrix each, row-major [out, in]."""

    attn_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True)
class Nodes:
    """n nodes after a visible prefix: each sees cache rows [0, prefix_len) and, among the nodes, its ancestors.

    Attributes:
        prefix_len: visible committed rows.
        row: first scratch row; node i writes its keys and values to row + i.
        cos, sin: [n, D] rotary tables at the nodes' positions.
        mask: [n, n] bool, (i, j) says whether node i sees node j; None: a chain.
    """

    prefix_len: int
    row: int
    cos: Tensor
    sin: Tensor
    mask: Tensor | None = None

    def to(self, device: torch.device) -> Nodes:
        mask = None if self.mask is None else self.mask.to(device)
        return Nodes(self.prefix_len, self.row, self.cos.to(device), self.sin.to(device), mask)


class Decoder:
    """The model: embedding, 2L sublayers (2i attention of block i, 2i+1 its MLP, norm and residual included), head.

    Activations and residual stream have `act_dtype`, which the arithmetic of the operators says: float32 on a CPU,
    where 16-bit weights and caches are read as they are, else the weights' dtype.

    Args:
        arch: sizes.
        blocks, embedding, norm, head: weights, already on their devices.
        rope: inverse frequencies and attention scaling.
        ops: the operators of `ssd_bench.model.backends`.
    """

    def __init__(
        self, arch: Architecture, blocks: Sequence[Block], embedding: Tensor, norm: Tensor, head: Tensor,
        rope: tuple[Tensor, float], ops: Ops,
    ):  # fmt: skip
        self.arch, self.blocks, self.ops = arch, blocks, ops
        self.embedding, self.norm, self.head_weight, self._rope = embedding, norm, head, rope
        self.dtype = embedding.dtype
        self.act_dtype = ops.arithmetic.activations
        self.devices = [block.qkv.device for block in blocks]
        self.device = self.devices[0]
        self.all_sublayers = tuple(range(2 * arch.n_layers))
        self._spread = len(set(self.devices)) > 1
        self._tables: tuple[Tensor, Tensor] | None = None
        self._branch_tables: tuple[tuple[object, ...], Tensor, Tensor] | None = None

    @classmethod
    def load(cls, checkpoint: Checkpoint, dtype: torch.dtype, devices: Sequence[torch.device], ops: Ops) -> Decoder:
        """Read a checkpoint block by block, blocks spread evenly over `devices` in order.

        Raises:
            ConfigError: unsupported architecture, or weights that are missing or not all read.
        """
        arch = architecture(checkpoint)
        placement = [devices[i * len(devices) // arch.n_layers] for i in range(arch.n_layers)]
        # the largest tensors first, while little else is in memory
        embedding = _take(checkpoint, [EMBEDDING], dtype)[EMBEDDING].to(placement[0])
        head = embedding if arch.tied else _take(checkpoint, [HEAD], dtype)[HEAD]
        head = head.to(placement[-1])
        norm = _take(checkpoint, [NORM], dtype)[NORM].to(placement[-1], ops.arithmetic.activations)
        blocks = [_load_block(checkpoint, i, arch, dtype, placement[i], ops) for i in range(arch.n_layers)]
        return cls(arch, blocks, embedding, norm, head, frequencies(checkpoint.config), ops)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, tied ones once."""
        tensors = [self.embedding, self.norm, self.head_weight]
        tensors += [t for block in self.blocks for t in vars(block).values() if t is not None]
        return sum(nbytes for _, nbytes in {(t.data_ptr(), t.nbytes) for t in tensors})

    def new_cache(self, capacity: int, bucket: int = BUCKET) -> KVCache:
        """An empty cache of up to `capacity` rows, with rotary tables that reach as far."""
        self._branch_tables = None
        self._tables = tuple(t.to(self.device) for t in tables(*self._rope, capacity))  # type: ignore[assignment]
        return KVCache(self.devices, self.arch.n_kv_heads, self.arch.head_dim, capacity, self.dtype, bucket)

    def nodes(self, n: int, prefix_len: int, row: int | None = None, position: int | None = None) -> Nodes:
        """A chain of n nodes after `prefix_len` visible rows, at consecutive positions from `position` on.

        Args:
            row: first scratch row (default: right after the prefix).
            position: position of the first node (default: prefix_len).
        """
        assert self._tables is not None, "new_cache comes first"
        cos, sin = self._tables
        position = prefix_len if position is None else position
        return Nodes(
            prefix_len, prefix_len if row is None else row, cos.narrow(0, position, n), sin.narrow(0, position, n)
        )

    def tree_nodes(self, depths: Sequence[int], mask: Tensor, prefix_len: int) -> Nodes:
        """The nodes of a tree right after the prefix: positions prefix_len + depth, `mask` [n, n] of ancestors."""
        assert self._tables is not None, "new_cache comes first"
        positions = torch.tensor(depths, device=self.device) + prefix_len
        cos, sin = (table.index_select(0, positions) for table in self._tables)
        return Nodes(prefix_len, prefix_len, cos, sin, mask.to(self.device))

    def embed(self, tokens: Tensor) -> Tensor:
        """[n] token ids -> [n, d] residual stream."""
        return F.embedding(tokens, self.embedding).to(self.act_dtype)

    def logits(self, hidden: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Final norm and LM head: [n, d] residual stream -> [n, V] float32; of the given vocabulary entries only."""
        if self._spread:
            hidden = hidden.to(self.head_weight.device)
        head = self.head_weight if tokens is None else self.head_weight.index_select(0, tokens)
        return self.ops.norm_linear(hidden, self.norm, self.arch.eps, head, None).float()

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Streams [..., d] as the LM head reads them, float32."""
        hidden = hidden.to(self.norm.device).float()
        return F.rms_norm(hidden, self.norm.shape, self.norm.float(), self.arch.eps)

    def predict(self, hidden: Tensor) -> Tensor:
        """Argmax token id of each of n streams [n, d], the lowest among equals."""
        return self._top(hidden, confidence=False)[0]

    def predict_confident(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """`predict`, and the raw softmax probabilities of those tokens, [n] float32."""
        ids, best, mass = self._top(hidden, confidence=True)
        return ids, (best - mass).exp()

    def _top(self, hidden: Tensor, confidence: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, their logits and, if asked for, the log of the exponentials' sum; never all [n, V] logits at once."""
        hidden = hidden.to(self.head_weight.device)
        step = len(self.head_weight) if len(hidden) <= NODE_LIMIT else HEAD_ROWS
        best = hidden.new_full((len(hidden),), float("-inf"), dtype=torch.float32)
        ids, mass = torch.zeros_like(best, dtype=torch.long), best
        for start in range(0, len(self.head_weight), step):
            rows = self.head_weight[start : start + step]
            logits = self.ops.norm_linear(hidden, self.norm, self.arch.eps, rows, None).float()
            top, at = logits.max(-1)
            ids = torch.where(top > best, at + start, ids)
            best = torch.maximum(best, top)
            if confidence:
                mass = torch.logaddexp(mass, logits.logsumexp(-1))
        return ids, best, mass

    def forward(
        self, hidden: Tensor, nodes: Nodes, cache: KVCache, sublayers: Sequence[int], taps: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Run sublayers, in ascending order, over nodes; the others pass the stream through.

        Args:
            hidden: [n, d] residual stream entering the first sublayer; overwritten.
            nodes: what each node sees and where its keys and values go.
            cache: rows [0, prefix_len) are read, scratch rows [row, row + n) written.
            sublayers: indices in [0, 2L).
            taps: ascending boundaries in [0, 2L] whose stream is kept.

        Returns:
            The stream [n, d] after the last sublayer (the same storage unless devices change), and the tapped
            states [len(taps), n, d] on the first device, None without taps.
        """
        cache.reserve(nodes.row + len(hidden))
        kept = hidden.new_empty(len(taps), *hidden.shape) if taps else None
        waiting = iter(()) if kept is None else zip(taps, kept.unbind())
        tap, slot = next(waiting, NO_TAP)
        for i in sublayers:
            while tap <= i:
                slot.copy_(hidden)  # type: ignore[union-attr]
                tap, slot = next(waiting, NO_TAP)
            if self._spread and hidden.device != self.devices[i // 2]:
                hidden, nodes = hidden.to(self.devices[i // 2]), nodes.to(self.devices[i // 2])
            if i % 2:
                self._mlp(self.blocks[i // 2], hidden)
            else:
                self._attention(i // 2, hidden, nodes, cache)
        while slot is not None:
            slot.copy_(hidden)
            tap, slot = next(waiting, NO_TAP)
        return hidden, kept

    def prefill(self, tokens: Tensor, cache: KVCache, taps: Sequence[int] = ()) -> tuple[Tensor, Tensor | None]:
        """Full pass over a prompt into an empty cache, in chunks; commits its rows.

        Returns:
            The stream [1, d] of the last position before the final norm, and the tapped states
            [len(taps), P, d] (None without taps).
        """
        cache.reset()
        kept = []
        for chunk in tokens.split(PREFILL_CHUNK):
            nodes = self.nodes(len(chunk), cache.length)
            hidden, tapped = self.forward(self.embed(chunk), nodes, cache, self.all_sublayers, taps)
            cache.commit(range(len(chunk)))
            if tapped is not None:
                kept.append(tapped)
        return hidden[-1:].clone(), torch.cat(kept, dim=1) if kept else None

    def branches(self, i: int, hidden: Tensor, cache: KVCache, prefix_len: int) -> Tensor:
        """Sublayer i over B independent continuations of one prefix; the cache is read, not written.

        Every branch is a chain of r nodes at positions prefix_len.. that sees the first `prefix_len` cache rows and,
        causally, the keys and values that it makes itself from its own stream.

        Args:
            hidden: [B, r, d] residual streams; not modified.

        Returns:
            [B, r, d] streams after the sublayer.
        """
        block = self.blocks[i // 2]
        streams = hidden.to(block.qkv.device, copy=True)
        for part in streams.split(max(1, BRANCH_ROWS // hidden.shape[1])):
            if i % 2:
                self._mlp(block, part.flatten(0, 1))
            else:
                self._attend_branches(block, part, cache.keys[i // 2], cache.values[i // 2], prefix_len)
        return streams.to(hidden.device)

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
        attended = self.ops.attend_branches(query, keys, values, prefix_len, rows[0], rows[1], b)
        self.ops.linear_add_(flat, attended, block.out, block.out_bias)

    def _project(
        self, block: Block, hidden: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, row: int
    ) -> Tensor:
        """Queries [n, Hq, D] of the nodes; their keys and values go to rows [row, row + n)."""
        qkv = self.ops.norm_linear(hidden, block.attn_norm, self.arch.eps, block.qkv, block.qkv_bias)
        return self.ops.rope_append(qkv, cos, sin, block.q_norm, block.k_norm, self.arch.eps, keys, values, row)

    def _attention(self, layer: int, hidden: Tensor, nodes: Nodes, cache: KVCache) -> None:
        block, keys, values = self.blocks[layer], cache.keys[layer], cache.values[layer]
        query = self._project(block, hidden, nodes.cos, nodes.sin, keys, values, nodes.row)
        attended = self.ops.attend(query, keys, values, nodes.prefix_len, nodes.row, nodes.mask)
        self.ops.linear_add_(hidden, attended, block.out, block.out_bias)

    def _mlp(self, block: Block, hidden: Tensor) -> None:
        gate_up = self.ops.norm_linear(hidden, block.mlp_norm, self.arch.eps, block.gate_up, block.gate_up_bias)
        self.ops.swiglu_linear_add_(hidden, gate_up, block.down)
        if block.down_bias is not None:
            hidden += block.down_bias


def architecture(checkpoint: Checkpoint) -> Architecture:
    """The architecture of a checkpoint whose tensors are all read by it; loads no weights.

    Raises:
        ConfigError: an unsupported architecture; quantised weights; tensors that nothing would read.
    """
    arch = Architecture.of(checkpoint.config)
    blocks = (name for i in range(arch.n_layers) for name in _block_tensors(checkpoint, i, arch.family))
    checkpoint.check_all_read({EMBEDDING, NORM, HEAD, *blocks})
    return arch


def _block_tensors(checkpoint: Checkpoint, index: int, family: str) -> list[str]:
    """Names of a block's tensors: all that it needs, and the biases that there are."""
    needed = [f"{name}.weight" for name in (*ATTENTION, *MLP, "input_layernorm", "post_attention_layernorm")]
    if family == "qwen3":
        needed += ["self_attn.q_norm.weight", "self_attn.k_norm.weight"]
    prefix = f"model.layers.{index}."
    biases = [f"{name}.bias" for name in (*ATTENTION, *MLP) if f"{prefix}{name}.bias" in checkpoint.shards]
    return [prefix + name for name in needed + biases]


def _take(checkpoint: Checkpoint, names: list[str], dtype: torch.dtype) -> dict[str, Tensor]:
    missing = [name for name in names if name not in checkpoint.shards]
    if missing:
        raise ConfigError("model", str(checkpoint.folder), f"weights with the tensors {', '.join(missing)}")
    return checkpoint.read(names, dtype)


def _load_block(
    checkpoint: Checkpoint, index: int, arch: Architecture, dtype: torch.dtype, device: torch.device, ops: Ops
) -> Block:
    prefix = f"model.layers.{index}."
    tensors = _take(checkpoint, _block_tensors(checkpoint, index, arch.family), dtype)
    small = ops.arithmetic.activations  # vectors: norms and biases

    def matrix(*names: str) -> Tensor:
        parts = [tensors[f"{prefix}{name}.weight"].to(device) for name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def vector(name: str) -> Tensor | None:
        tensor = tensors.get(prefix + name)
        return None if tensor is None else tensor.to(device, small)

    def bias(*names: str) -> Tensor | None:
        parts = [vector(f"{name}.bias") for name in names]
        present = [part for part in parts if part is not None]
        return torch.cat(present) if present else None

    norms = {n: vector(f"{n}_layernorm.weight") for n in ("input", "post_attention")}
    return Block(
        attn_norm=norms["input"], qkv=matrix(*ATTENTION[:3]), qkv_bias=bias(*ATTENTION[:3]),  # type: ignore[arg-type]
        q_norm=vector("self_attn.q_norm.weight"), k_norm=vector("self_attn.k_norm.weight"),
        out=matrix(ATTENTION[3]), out_bias=bias(ATTENTION[3]),
        mlp_norm=norms["post_attention"], gate_up=matrix(*MLP[:2]), gate_up_bias=bias(*MLP[:2]),  # type: ignore[arg-type]
        down=matrix(MLP[2]), down_bias=bias(MLP[2]),
    )  # fmt: skip
