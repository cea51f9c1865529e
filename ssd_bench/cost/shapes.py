"""The sizes of a model that decide its speed: of the papers' models, of the record's, or of any Hugging Face config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ssd_bench.errors import ConfigError
from ssd_bench.model.shape import Shape

# From the config.json of the named repositories:
#   layers, width, heads, KV heads, head size, intermediate, vocabulary, tied
SHAPES: dict[str, Shape] = {
    # the models of this project
    "miniature": Shape(16, 128, 2, 2, 64, 256, 2048, True),
    "miniature_plain": Shape(16, 128, 2, 2, 64, 256, 2048, True),
    "smollm2_135m": Shape(30, 576, 9, 3, 64, 1536, 49152, True),  # HuggingFaceTB/SmolLM2-135M-Instruct
    # SWIFT, KNN-SSD, ConfLayers
    "llama2_7b": Shape(32, 4096, 32, 32, 128, 11008, 32000),  # meta-llama/Llama-2-7b-hf
    "llama2_13b": Shape(40, 5120, 40, 40, 128, 13824, 32000),  # meta-llama/Llama-2-13b-hf
    "llama2_70b": Shape(80, 8192, 64, 8, 128, 28672, 32000),  # meta-llama/Llama-2-70b-hf
    "codellama_13b": Shape(40, 5120, 40, 40, 128, 13824, 32016),  # codellama/CodeLlama-13b-hf
    "codellama_34b": Shape(48, 8192, 64, 8, 128, 22016, 32000),  # codellama/CodeLlama-34b-hf
    "yi_34b": Shape(60, 7168, 56, 8, 128, 20480, 64000),  # 01-ai/Yi-34B
    "deepseek_coder_33b": Shape(62, 7168, 56, 8, 128, 19200, 32256),  # deepseek-ai/deepseek-coder-33b-base
    "qwen2_5_14b": Shape(48, 5120, 40, 8, 128, 13824, 152064),  # Qwen/Qwen2.5-14B
    "qwen2_5_math_72b": Shape(80, 8192, 64, 8, 128, 29568, 152064),  # Qwen/Qwen2.5-Math-72B
    # ConfLayers, KnapSpec
    "llama3_8b": Shape(32, 4096, 32, 8, 128, 14336, 128256),  # meta-llama/Meta-Llama-3-8B
    "llama3_70b": Shape(80, 8192, 64, 8, 128, 28672, 128256),  # meta-llama/Meta-Llama-3-70B
    "llama3_1_8b": Shape(32, 4096, 32, 8, 128, 14336, 128256),  # meta-llama/Llama-3.1-8B
    "llama3_1_70b": Shape(80, 8192, 64, 8, 128, 28672, 128256),  # meta-llama/Llama-3.1-70B
    "llama3_2_1b": Shape(16, 2048, 32, 8, 64, 8192, 128256, True),  # meta-llama/Llama-3.2-1B
    "llama3_2_3b": Shape(28, 3072, 24, 8, 128, 8192, 128256, True),  # meta-llama/Llama-3.2-3B
    "qwen3_4b": Shape(36, 2560, 32, 8, 128, 9728, 151936, True),  # Qwen/Qwen3-4B
    "qwen3_8b": Shape(36, 4096, 32, 8, 128, 12288, 151936),  # Qwen/Qwen3-8B
    "qwen3_14b": Shape(40, 5120, 40, 8, 128, 17408, 151936),  # Qwen/Qwen3-14B
    "qwen3_32b": Shape(64, 5120, 64, 8, 128, 25600, 151936),  # Qwen/Qwen3-32B
}  # fmt: skip
TUNED = {
    "smollm2_135m_hub": "smollm2_135m",
    "llama2_13b_chat": "llama2_13b",
    "llama2_70b_chat": "llama2_70b",
    "layerskip_llama2_13b": "llama2_13b",
    "llama3_70b_instruct": "llama3_70b",
    "qwen2_5_14b_instruct": "qwen2_5_14b",
    "yi_34b_chat": "yi_34b",
    "deepseek_coder_33b_instruct": "deepseek_coder_33b",
}
"""Models of `conf/model` with the sizes of another one."""

SHAPES |= {name: SHAPES[base] for name, base in TUNED.items()}


def shape_named(name: str) -> Shape:
    """The sizes of a model in `SHAPES`, or those in a `config.json` if the name is a path to one.

    Raises:
        ConfigError: neither.
    """
    if name in SHAPES:
        return SHAPES[name]
    if name.endswith(".json"):
        return shape_of(Path(name))
    raise ConfigError("model", name, f"one of {', '.join(sorted(SHAPES))}, or a path to a model's config.json")


def shape_of(path: Path) -> Shape:
    """The sizes in a Hugging Face `config.json`.

    Raises:
        ConfigError: no such file, or it lacks a size.
    """
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        return Shape(
            int(config["num_hidden_layers"]), width, heads, int(config.get("num_key_value_heads") or heads),
            int(config.get("head_dim") or width // heads), int(config["intermediate_size"]),
            int(config["vocab_size"]), bool(config.get("tie_word_embeddings", False)),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError("model", str(path), f"a config.json with the sizes of a decoder ({reason})") from error
