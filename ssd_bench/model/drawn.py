"""Random weights in a known model's sizes: passes and searches take as long as with its own weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ssd_bench.contract.shape import Shape
from ssd_bench.model.checkpoint import EMBEDDING, FAMILIES, HEAD
from ssd_bench.model.operators import Matrix
from ssd_bench.model.weights import Architecture, Weights, build, tensor_shapes

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
    rng, hf_config = torch.Generator(device).manual_seed(seed), config(arch)
    shapes = tensor_shapes(hf_config, arch, (EMBEDDING, HEAD))
    added_std = STD / (2 * arch.n_layers) ** 0.5  # of what is added to the residual stream, as in GPT-2

    def tensor(name: str) -> Tensor:
        sizes = tuple(shapes[name].values())
        if len(sizes) == 1:
            return torch.full(sizes, 0.0 if name.endswith(".bias") else 1.0, dtype=dtype, device=device)
        std = added_std if name.endswith(("o_proj.weight", "down_proj.weight")) else STD
        return torch.randn(sizes, dtype=dtype, device=device, generator=rng).mul_(std)

    return build(arch, hf_config, lambda names, _: {name: tensor(name) for name in names}, dtype, [device], pack)
