"""Rotary position embeddings (RoPE, Su et al. 2021, arXiv:2104.09864): frequencies, tables of cosines and sines."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from torch import Tensor

from ssd_bench.errors import ConfigError
from ssd_bench.settings import Range, fits

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# "dynamic" differs from "default" only at positions beyond max_position_embeddings, which no sequence reaches
PARAMETERS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
"""Supported values of rope_type, with their parameters besides the base."""


def frequencies(config: PretrainedConfig) -> tuple[Tensor, float]:
    """Return the inverse frequencies [D/2] (float32) and the attention scaling of a model's rotary embedding.

    Only `rope_parameters` is read: transformers moves the base there from `rope_theta` of older checkpoints.

    Raises:
        ConfigError: an unsupported scaling type, missing parameters, or a config without a base.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = config.rope_parameters or {}
    kind = parameters.get("rope_type", "default")
    if kind not in [*PARAMETERS]:
        raise ConfigError("config.rope_parameters.rope_type", kind, f"one of {', '.join(PARAMETERS)}")
    _check(parameters, kind)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if kind in ("default", "dynamic"):
        # pair j rotates by the angle base^(-2j / D) per position, j = 0 .. D/2 - 1
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        return 1.0 / (parameters["rope_theta"] ** exponents), 1.0
    try:
        inverse, scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        valid = inverse.shape == (head_dim // 2,) and bool(inverse.isfinite().all()) and math.isfinite(scaling)
    except Exception as error:  # arithmetic or type errors, depending on the config
        raise ConfigError("config.rope_parameters", parameters, f"the parameters of {kind} ({error})") from error
    if not valid:
        expected = f"parameters that give {head_dim // 2} finite frequencies"
        raise ConfigError("config.rope_parameters", parameters, expected)
    return inverse.float(), float(scaling)


def _check(parameters: dict[str, Any], kind: str) -> None:
    if "rope_theta" not in parameters:
        raise ConfigError("config.rope_parameters", parameters, "a rotary base, in rope_theta")
    for key in ("rope_theta", *PARAMETERS[kind]):
        if not fits(Annotated[float, Range(above=0)], parameters.get(key)):
            raise ConfigError(f"config.rope_parameters.{key}", parameters.get(key), f"a number above 0, for {kind}")
    if kind == "default" and parameters.get("factor", 1) != 1:
        raise ConfigError("config.rope_parameters", parameters, "a rope_type with its factor")
    if kind == "llama3" and parameters["low_freq_factor"] >= parameters["high_freq_factor"]:
        raise ConfigError("config.rope_parameters", parameters, "a low_freq_factor below its high_freq_factor")


class Rotation(NamedTuple):
    """Cosines and sines [n, D] that rotate queries and keys at n positions; both halves of a row are equal."""

    cos: Tensor
    sin: Tensor

    def narrow(self, first: int, n: int) -> Rotation:
        """Return the rotation of n positions from `first` on."""
        return Rotation(self.cos.narrow(0, first, n), self.sin.narrow(0, first, n))

    def to(self, device: torch.device) -> Rotation:
        return Rotation(self.cos.to(device), self.sin.to(device))


def rotary_tables(inverse: Tensor, scaling: float, positions: int) -> Rotation:
    """Return the rotation of positions 0, 1, .. in float32, scaled for attention."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), inverse)
    angles = torch.cat((angles, angles), dim=-1)  # rotate_half: dimensions j and j + D/2 are one pair, with one angle
    return Rotation(angles.cos() * scaling, angles.sin() * scaling)
