"""Weights of the decoder: loaded block by block, in the layout and dtypes of the backend's operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ssd_bench.contract.shape import ModelDims, Shape
from ssd_bench.errors import ConfigError
from ssd_bench.model.checkpoint import EMBEDDING, HEAD, Checkpoint
from ssd_bench.model.operators import HeadNorms, Matrix
from ssd_bench.model.rope import frequencies

if TYPE_CHECKING:
    from transformers import PretrainedConfig

NORM = "model.norm.weight"
LAYERS = "model.layers."
# names of a block's matrices in a checkpoint
ATTENTION = [f"self_attn.{x}_proj" for x in "qkvo"]
MLP = [f"mlp.{x}_proj" for x in ("gate", "up", "down")]
MATRICES = ("qkv", "out", "gate_up", "down")
"""Matrices of `Block`."""
MAX_HEAD_DIM = 2**14  # a config with a larger one is faulty, and its rotary frequencies would fill the memory
ACTIVATIONS = ("silu", "swish")  # two names of one function
# names, in messages, of sizes that are a product of two keys of config.json
Q_SIZE, KV_SIZE = "num_attention_heads * head_dim", "num_key_value_heads * head_dim"


@dataclass(frozen=True, kw_only=True)
class Architecture(Shape):
    """Sizes and constants of a checkpoint's config."""

    family: str
    context: int
    eps: float

    @classmethod
    def of(cls, config: PretrainedConfig) -> Architecture:
        """Return the architecture of a config.

        Raises:
            ConfigError: an unsupported variant of its family, which the checkpoint has checked.
        """
        if config.hidden_act not in ACTIVATIONS:
            raise ConfigError("config.hidden_act", config.hidden_act, " or ".join(ACTIVATIONS))
        if getattr(config, "is_causal", True) is False:  # transformers then attends to later tokens as well
            raise ConfigError("config.is_causal", False, "true, or no such key")
        layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
        if layer_types != {"full_attention"}:
            raise ConfigError("config.layer_types", sorted(layer_types), "full_attention in every layer")
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        if heads % kv_heads:
            raise ConfigError("config.num_key_value_heads", kv_heads, f"a divisor of num_attention_heads {heads}")
        head_dim = getattr(config, "head_dim", None)
        if not head_dim and config.hidden_size % heads:
            raise ConfigError("config.hidden_size", config.hidden_size, f"a multiple of num_attention_heads {heads}")
        head_dim = head_dim or config.hidden_size // heads
        if head_dim % 2 or head_dim > MAX_HEAD_DIM:
            raise ConfigError(
                "config.head_dim", head_dim, f"an even number (positions rotate pairs) of at most {MAX_HEAD_DIM}"
            )
        frequencies(config)
        return cls(
            family=config.model_type,
            n_layers=config.num_hidden_layers,
            width=config.hidden_size,
            n_heads=heads,
            n_kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate=config.intermediate_size,
            vocab_size=config.vocab_size,
            context=config.max_position_embeddings,
            eps=config.rms_norm_eps,
            tied=config.tie_word_embeddings,
        )

    def dims(self, name: str) -> ModelDims:
        return ModelDims(name, self.n_layers, self.n_params, self.context, self.vocab_size)


@dataclass(frozen=True)
class Block:
    """Weights of one block; matrices are [out, in].

    Rows of `qkv`: Hq heads of queries, Hkv heads of keys, Hkv heads of values, D rows each. Rows of `gate_up`: the gate
    projection, then the up projection.
    """

    attn_norm: Tensor
    qkv: Matrix
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Matrix
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Matrix
    gate_up_bias: Tensor | None
    down: Matrix
    down_bias: Tensor | None


@dataclass(frozen=True)
class Rounded:
    """Copies of a model's blocks and LM head with rounded matrices; embedding, norms and biases are shared.

    Attributes:
        nbytes: memory of the rounded matrices with scales and minima.
    """

    blocks: Sequence[Block]
    head: Matrix
    nbytes: int


@dataclass(frozen=True)
class Weights:
    """All weights of a model.

    Attributes:
        embedding, norm, head: a tied head is the embedding's tensor, or its copy on another device.
        rope: inverse frequencies and attention scaling of the rotary embedding.
        dtype: of the matrices.
        devices: of every block, length L.
    """

    arch: Architecture
    blocks: Sequence[Block]
    embedding: Matrix
    norm: Tensor
    head: Matrix
    rope: tuple[Tensor, float]
    dtype: torch.dtype
    devices: Sequence[torch.device]

    @cached_property
    def head_norms(self) -> Sequence[HeadNorms]:
        return [HeadNorms(block.q_norm, block.k_norm, self.arch.eps) for block in self.blocks]

    @property
    def nbytes(self) -> int:
        """Bytes of all weights; embedding and tied head count once if they share memory."""
        tensors: list[Matrix | Tensor] = [self.embedding, self.norm, self.head]
        tensors += [t for block in self.blocks for t in vars(block).values() if t is not None]
        return sum(nbytes for _, nbytes in {(t.data_ptr(), t.nbytes) for t in tensors})  # a set: shared memory once

    def rounded(self, to_bits: Callable[[Matrix], Matrix]) -> Rounded:
        """Return rounded matrices for decoding; the embedding stays, since a token reads only one row."""
        blocks = [replace(block, **{name: to_bits(getattr(block, name)) for name in MATRICES}) for block in self.blocks]
        head = to_bits(self.head)
        nbytes = sum(getattr(block, name).nbytes for block in blocks for name in MATRICES) + head.nbytes
        return Rounded(blocks, head, nbytes)


def declared_architecture(checkpoint: Checkpoint) -> Architecture:
    """Return the architecture in config.json, before the weights are downloaded.

    Raises:
        ConfigError: an unsupported architecture; quantised weights; EOS ids outside the vocabulary.
    """
    _ = checkpoint.eos_ids  # invalid ids are refused here, before the weights are downloaded
    try:
        return Architecture.of(checkpoint.config)
    except ConfigError as error:
        raise error.with_note(f", in {checkpoint.folder / 'config.json'}") from error


def architecture(checkpoint: Checkpoint) -> Architecture:
    """Check that a checkpoint's files hold exactly its config's tensors, without loading them; return the architecture.

    The head is tied as in transformers: if config.json says so, unless the files hold a head with other numbers.

    Raises:
        ConfigError: as `declared_architecture`; weights that cannot be downloaded, or differ from the config's tensors.
    """
    arch = declared_architecture(checkpoint)
    layers = {name.split(".")[2] for name in checkpoint.headers if name.startswith(LAYERS)}
    if len(layers) != arch.n_layers:
        expected = f"{len(layers)}, as many as the weights in {checkpoint.folder} have (tensors {LAYERS}*)"
        raise ConfigError("config.num_hidden_layers", arch.n_layers, expected)
    # untied: both tensors are needed; tied: one of them may be absent, as in transformers
    embeddings = [name for name in (EMBEDDING, HEAD) if name in checkpoint.headers or not arch.tied] or [EMBEDDING]
    checkpoint.check_all_read(tensor_shapes(checkpoint.config, arch, embeddings))
    return replace(arch, tied=arch.tied and not checkpoint.head_differs)


def tensor_shapes(config: PretrainedConfig, arch: Architecture, embeddings: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the shapes of all tensors by name, keys of config.json -> sizes; `embeddings`: embedding, head or both."""
    embedding_sizes = {"vocab_size": arch.vocab_size, "hidden_size": arch.width}
    block_shapes = _block_shapes(config, arch)
    blocks = {f"{LAYERS}{i}.{name}": sizes for i in range(arch.n_layers) for name, sizes in block_shapes.items()}
    return {NORM: {"hidden_size": arch.width}} | dict.fromkeys(embeddings, embedding_sizes) | blocks


def load(
    checkpoint: Checkpoint, dtype: torch.dtype, devices: Sequence[torch.device], pack: Callable[[Tensor], Matrix]
) -> Weights:
    """Load a checkpoint block by block, blocks spread evenly over `devices` in order.

    Args:
        pack: converts a matrix [out, in] or a vector, on its device, to the operators' layout, as soon as it is read,
            so that at most one block is in memory twice.

    Raises:
        ConfigError: as `architecture`.
    """
    arch = architecture(checkpoint)
    embedding = EMBEDDING if EMBEDDING in checkpoint.headers else HEAD  # tied: the files may hold the head alone
    return build(arch, checkpoint.config, checkpoint.read, dtype, devices, pack, embedding)


def build(
    arch: Architecture,
    config: PretrainedConfig,
    read: Callable[[list[str], torch.dtype], Mapping[str, Tensor]],
    dtype: torch.dtype,
    devices: Sequence[torch.device],
    pack: Callable[[Tensor], Matrix],
    embedding_name: str = EMBEDDING,
) -> Weights:
    """Build weights from tensors that `read` returns by name, as `load` does."""
    placement = [devices[i * len(devices) // arch.n_layers] for i in range(arch.n_layers)]

    def alone(name: str, device: torch.device) -> Matrix:
        return _packed([read([name], dtype)[name]], device, pack)

    # the largest tensors first, while little else is in memory
    embedding = alone(embedding_name, placement[0])
    if arch.tied:
        head = embedding if placement[-1] == placement[0] else embedding.to(placement[-1])
    else:
        head = alone(HEAD, placement[-1])
    norm = alone(NORM, placement[-1])
    names, blocks = _block_shapes(config, arch), []
    for i, device in enumerate(placement):
        prefix = f"{LAYERS}{i}."
        blocks.append(_block(read([prefix + name for name in names], dtype), prefix, device, pack))
    return Weights(arch, blocks, embedding, norm, head, frequencies(config), dtype, placement)


def _packed(tensors: Sequence[Tensor], device: torch.device, pack: Callable[[Tensor], Matrix]) -> Matrix:
    moved = [tensor.to(device) for tensor in tensors]
    matrix = pack(moved[0] if len(moved) == 1 else torch.cat(moved))
    return matrix.clone() if matrix is tensors[0] else matrix  # else it would keep the whole file mapped


def _block_shapes(config: PretrainedConfig, arch: Architecture) -> dict[str, dict[str, int]]:
    """Return the shapes of a block's tensors by name: keys of config.json -> sizes."""
    width, q, kv, inner = (
        {"hidden_size": arch.width},
        {Q_SIZE: arch.n_heads * arch.head_dim},
        {KV_SIZE: arch.n_kv_heads * arch.head_dim},
        {"intermediate_size": arch.intermediate},
    )
    outputs = dict(zip(ATTENTION, (q, kv, kv, width))) | dict(zip(MLP, (inner, inner, width)))
    inputs = dict(zip(ATTENTION, (width, width, width, q))) | dict(zip(MLP, (width, width, inner)))
    shapes = {f"{name}.weight": outputs[name] | inputs[name] for name in outputs}  # [out, in]
    shapes |= {f"{name}.weight": width for name in ("input_layernorm", "post_attention_layernorm")}
    if arch.family == "qwen3":
        shapes |= {f"self_attn.{x}_norm.weight": {"head_dim": arch.head_dim} for x in "qk"}
    # biases as in transformers: qwen2 always has them on q, k and v; for llama and qwen3, keys of config.json decide
    biased = [*ATTENTION[:3]] if arch.family == "qwen2" else ATTENTION if config.attention_bias else []
    biased = [*biased, *(MLP if arch.family == "llama" and config.mlp_bias else [])]
    return shapes | {f"{name}.bias": outputs[name] for name in biased}


def _block(tensors: Mapping[str, Tensor], prefix: str, device: torch.device, pack: Callable[[Tensor], Matrix]) -> Block:
    def optional(kind: str, *names: str) -> Matrix | None:
        """Return the named tensors as one packed tensor; None if the block lacks them."""
        parts = [tensors[key] for name in names if (key := f"{prefix}{name}.{kind}") in tensors]
        return _packed(parts, device, pack) if parts else None

    def weight(*names: str) -> Matrix:
        matrix = optional("weight", *names)
        assert matrix is not None, "`architecture` has checked that the files have it"
        return matrix

    return Block(
        attn_norm=weight("input_layernorm"),
        qkv=weight(*ATTENTION[:3]),
        qkv_bias=optional("bias", *ATTENTION[:3]),
        q_norm=optional("weight", "self_attn.q_norm"),
        k_norm=optional("weight", "self_attn.k_norm"),
        out=weight(ATTENTION[3]),
        out_bias=optional("bias", ATTENTION[3]),
        mlp_norm=weight("post_attention_layernorm"),
        gate_up=weight(*MLP[:2]),
        gate_up_bias=optional("bias", *MLP[:2]),
        down=weight(MLP[2]),
        down_bias=optional("bias", MLP[2]),
    )
