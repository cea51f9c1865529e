"""Random weights in a known model's sizes: passes and searches take as long as with its own weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ssd_bench.contract.shape import Shape
from ssd_bench.model.operators import Matrix
from ssd_bench.model.weights import FAMILIES, Architecture, Block, Weights

if TYPE_CHECKING:
    from transformers import PretrainedConfig

STD = 0.02
ROPE_BASE = 500_000.0


def architecture(name: str, shape: Shape, context: int) -> Architecture:
    """Return a model's sizes as an architecture, with the family from the beginning of its name."""
    family = next((family for family in FAMILIES if name.startswith(family)), "llama")
    return Architecture(**asdict(shape) | {"context": context}, family=family, eps=1e-5)


def config(arch: Architecture) -> PretrainedConfig:
    """Return transformers' config with these sizes."""
    from transformers import CONFIG_MAPPING

    sizes = {
        "num_hidden_layers": arch.n_layers,
        "hidden_size": arch.width,
        "num_attention_heads": arch.n_heads,
        "num_key_value_heads": arch.n_kv_heads,
        "head_dim": arch.head_dim,
        "intermediate_size": arch.intermediate,
        "vocab_size": arch.vocab_size,
        "tie_word_embeddings": arch.tied,
        "max_position_embeddings": arch.context,
        "rms_norm_eps": arch.eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_BASE},
    }
    kind: Any = CONFIG_MAPPING[arch.family]
    return kind(**sizes)


def draw(
    arch: Architecture, dtype: torch.dtype, device: torch.device, pack: Callable[[Tensor], Matrix], seed: int = 0
) -> Weights:
    """Draw normal weights with the standard deviation of an untrained model; norms are ones, biases zeros.

    As in `weights.load`, `pack` packs matrices.
    """
    rng = torch.Generator(device).manual_seed(seed)
    heads, rows = arch.n_heads * arch.head_dim, (arch.n_heads + 2 * arch.n_kv_heads) * arch.head_dim

    def matrix(out: int, inner: int, std: float = STD) -> Matrix:
        return pack(torch.randn(out, inner, dtype=dtype, device=device, generator=rng).mul_(std))

    def norm(size: int) -> Tensor:
        return pack(torch.ones(size, dtype=dtype, device=device))

    def block() -> Block:
        small = STD / (2 * arch.n_layers) ** 0.5  # std of what is added to the residual stream, as in GPT-2
        normed = arch.family == "qwen3"
        return Block(
            attn_norm=norm(arch.width),
            qkv=matrix(rows, arch.width),
            qkv_bias=pack(torch.zeros(rows, dtype=dtype, device=device)) if arch.family == "qwen2" else None,
            q_norm=norm(arch.head_dim) if normed else None,
            k_norm=norm(arch.head_dim) if normed else None,
            out=matrix(arch.width, heads, small),
            out_bias=None,
            mlp_norm=norm(arch.width),
            gate_up=matrix(2 * arch.intermediate, arch.width),
            gate_up_bias=None,
            down=matrix(arch.width, arch.intermediate, small),
            down_bias=None,
        )

    embedding = matrix(arch.vocab_size, arch.width)
    head = embedding if arch.tied else matrix(arch.vocab_size, arch.width)
    inverse = 1.0 / ROPE_BASE ** (torch.arange(0, arch.head_dim, 2).float() / arch.head_dim)
    blocks = [block() for _ in range(arch.n_layers)]
    return Weights(arch, blocks, embedding, norm(arch.width), head, (inverse, 1.0), dtype, [device] * arch.n_layers)
