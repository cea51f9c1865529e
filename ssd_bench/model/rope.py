"""Rotary position embeddings: frequencies of a checkpoint's config, tables of cosines and sines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ssd_bench.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# "dynamic" differs from "default" only beyond max_position_embeddings, where no prompt gets
SUPPORTED = ("default", "linear", "dynamic", "llama3", "yarn")


def frequencies(config: PretrainedConfig) -> tuple[Tensor, float]:
    """Inverse frequencies [D/2] (float32) and the attention scaling of a model's rotary embedding.

    transformers reads the base from `rope_theta` (checkpoints saved before version 5) or `rope_parameters`
    into one place; that place is the only one looked at here.

    Raises:
        ConfigError: a scaling that no model of these families uses, or a config without a base.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = config.rope_parameters or {}
    kind = parameters.get("rope_type", "default")
    if kind not in SUPPORTED:
        raise ConfigError("config.rope_parameters.rope_type", kind, f"one of {', '.join(SUPPORTED)}")
    if "rope_theta" not in parameters:
        raise ConfigError("config.rope_parameters", parameters, "a rotary base, in rope_theta")
    if kind in ("default", "dynamic"):
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        return 1.0 / (parameters["rope_theta"] ** exponents), 1.0
    inverse, scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return inverse.float(), float(scaling)


def tables(inverse: Tensor, scaling: float, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, D] in float32, both halves of a head alike, scaled for attention."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), inverse)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos() * scaling, angles.sin() * scaling
