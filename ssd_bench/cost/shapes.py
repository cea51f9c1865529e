"""Shapes of models, the sizes that decide their speed: from `conf/model` or from any Hugging Face config."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ssd_bench.conf import CONF, choices, config_file, plug_in_with
from ssd_bench.contract.shape import Shape
from ssd_bench.errors import ConfigError


@cache
def known_shape(name: str) -> Shape | None:
    """Return a model's sizes from `conf/model` or a plug-in; None if unknown there."""
    if config_file("model", name) is None:
        return None
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        sizes = compose(f"model/{name}").model.get("shape")
    return None if sizes is None else Shape(**sizes)


def shaped_models() -> list[str]:
    """Return the models with known sizes, including plug-ins; unreadable configs are left out."""
    return [name for name in choices("model") if _is_shaped(name)]


def _is_shaped(name: str) -> bool:
    try:
        return known_shape(name) is not None
    except (HydraException, OmegaConfBaseException, YAMLError, UnicodeDecodeError, TypeError):
        if config_file("model", name) == CONF / "model" / f"{name}.yaml":
            raise
        return False  # a fault of a plug-in concerns only those who choose its model


def shape_named(name: str) -> Shape:
    """Return the sizes of a model in `conf/model`, or in a `config.json` if the name is a path.

    Raises:
        ConfigError: the name is neither, or several packages have it.
    """
    plug_in_with("model", name)
    if (shape := known_shape(name)) is not None:
        return shape
    if name.endswith(".json"):
        return read_shape(Path(name))
    raise ConfigError("model", name, f"one of {', '.join(shaped_models())}, or a path to a model's config.json")


def read_shape(path: Path) -> Shape:
    """Return the sizes in a Hugging Face `config.json`.

    Raises:
        ConfigError: no such file, or it lacks a size.
    """
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        return Shape(
            int(config["num_hidden_layers"]),
            width,
            heads,
            int(config.get("num_key_value_heads") or heads),
            int(config.get("head_dim") or width // heads),
            int(config["intermediate_size"]),
            int(config["vocab_size"]),
            bool(config.get("tie_word_embeddings", False)),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError("model", str(path), f"a config.json with the sizes of a decoder ({reason})") from error
