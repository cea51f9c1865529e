"""Conversion of a GGUF file to a folder in Hugging Face format, tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssd_bench.errors import ConfigError
from ssd_bench.model.headers import silence_transformers

if TYPE_CHECKING:
    from torch import Tensor

MODEL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Names of tensors in a GGUF file -> names in a checkpoint of llama, qwen2 and qwen3."""

SHARD_BYTES = 2**28  # at most, unless one tensor is larger: a shard is in memory twice while it is saved
CHUNK_WEIGHTS = 2**22  # most weights in float32 at a time


def convert(source: Path, target: Path, description: str) -> None:
    """Write a GGUF file's config, tokenizer, chat template and dequantised weights (bfloat16) into a folder.

    Raises:
        ConfigError: the file has tensors that no model of this project has.
    """
    import gguf
    from safetensors.torch import save_file
    from tqdm import tqdm

    origin: dict[str, Any] = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
    tensors = {checkpoint_name(tensor.name): tensor for tensor in gguf.GGUFReader(source).tensors}
    config = _save_texts(origin, target, tied=MODEL_NAMES["output"] + ".weight" not in tensors)
    shards = _shards({name: 2 * int(tensor.n_elements) for name, tensor in tensors.items()})
    files = {f"model-{i + 1:05}-of-{len(shards):05}.safetensors": names for i, names in enumerate(shards)}
    total = sum(2 * int(tensor.n_elements) for tensor in tensors.values())
    with tqdm(total=total, desc=description, unit="B", unit_scale=True, disable=None) as bar:
        for file, names in files.items():
            shard = {name: _dequantise(source, tensors[name], name, config) for name in names}
            save_file(shard, target / file, metadata={"format": "pt"})
            bar.update(sum(2 * int(tensors[name].n_elements) for name in names))
    index = {
        "metadata": {"total_size": total},
        "weight_map": {name: file for file, names in files.items() for name in names},
    }
    (target / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")


def checkpoint_name(name: str) -> str:
    """Return the checkpoint name of a GGUF tensor.

    Raises:
        ConfigError: no model of this project has the tensor.
    """
    stem, _, kind = name.rpartition(".")
    block, _, part = stem.removeprefix("blk.").partition(".")
    if stem in MODEL_NAMES:
        return f"{MODEL_NAMES[stem]}.{kind}"
    if stem.startswith("blk.") and block.isdecimal() and part in BLOCK_NAMES:
        return f"model.layers.{block}.{BLOCK_NAMES[part]}.{kind}"
    raise ConfigError("model.gguf", name, "a file of a llama, qwen2 or qwen3 model, which has no such tensor")


def _save_texts(origin: Mapping[str, Any], target: Path, tied: bool) -> dict[str, Any]:
    """Write the tokenizer, chat template, generation_config.json and config.json; return the config."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    with silence_transformers():
        config = AutoConfig.from_pretrained(**origin, trust_remote_code=False)
        # with the config, which it would otherwise read from the file again
        AutoTokenizer.from_pretrained(**origin, config=config, trust_remote_code=False).save_pretrained(target)
        GenerationConfig.from_model_config(config).save_pretrained(target)
    values: dict[str, Any] = config.to_dict() | {"dtype": "bfloat16", "tie_word_embeddings": tied}
    values["architectures"] = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    for key in ("quantization_config", "_name_or_path"):  # the latter is the file's folder on this machine
        values.pop(key, None)
    (target / "config.json").write_text(json.dumps(values, indent=2, default=str), encoding="utf-8")
    return values


def _shards(sizes: Mapping[str, int]) -> Sequence[Sequence[str]]:
    """Return the names in groups of at most `SHARD_BYTES`, in their order."""
    shards: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if size > room:
            shards.append([])
            room = SHARD_BYTES
        shards[-1].append(name)
        room -= size
    return shards


def _dequantise(source: Path, tensor: Any, name: str, config: Mapping[str, Any]) -> Tensor:
    """Return a tensor in bfloat16, dequantised a few rows at a time.

    The reader's own array maps the file, whose pages would all stay in memory.
    """
    import numpy as np
    import torch
    from gguf import quants

    shape = tuple(int(size) for size in reversed(tensor.shape))
    rows = shape[0] if len(shape) > 1 else 1
    weights = torch.empty(rows, int(tensor.n_elements) // rows, dtype=torch.bfloat16)
    row_bytes, step = int(tensor.n_bytes) // rows, max(1, CHUNK_WEIGHTS // weights.shape[1])
    for first in range(0, rows, step):
        chunk = weights[first : first + step]
        count, offset = len(chunk) * row_bytes, int(tensor.data_offset) + first * row_bytes
        stored = np.fromfile(source, np.uint8, count, offset=offset).view(tensor.data.dtype).reshape(len(chunk), -1)
        chunk.copy_(torch.from_numpy(quants.dequantize(stored, tensor.tensor_type)))
    weights = weights.view(shape)
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    if config["model_type"] == "llama" and heads:
        # GGUF rotates neighbouring rows of a head, transformers row j and row j + D/2
        pairs = weights.view(config[heads], -1, 2, *shape[1:])
        weights = pairs.transpose(1, 2).reshape(shape)
    return weights
