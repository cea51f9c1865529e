"""Weights moved off the grid of a rounded file: by at most half a step, and evenly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFWriter, quants
from safetensors.torch import load_file, save_file

from ssd_bench.errors import ConfigError
from studies.unrounded import LOWEST_BITS, flip_lowest_bits, main, move_weights

GROUP = {GGMLQuantizationType.Q6_K: 16}
"""Format -> weights with one scale; 32 in the others."""


def write_blocks(path: Path, kind: GGMLQuantizationType, rows: int = 4) -> None:
    """Write a file with a tensor of random blocks in a format, and one in float32."""
    _, size = GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (rows, size), dtype=np.uint8)
    scale = np.full((rows, 1), 0.01, np.float16).view(np.uint8)
    for first in {"Q4_K": (0, 2), "Q6_K": (size - 2,)}.get(kind.name, (0,)):
        blocks[:, first : first + 2] = scale
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("rounded", blocks, raw_dtype=kind)
    writer.add_tensor("exact", random.normal(size=8).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read(path: Path) -> dict[str, np.ndarray]:
    return {t.name: quants.dequantize(np.array(t.data), t.tensor_type).copy() for t in GGUFReader(path).tensors}


@pytest.mark.parametrize("kind", LOWEST_BITS, ids=lambda kind: kind.name)
def test_flipped_bits_move_every_weight_by_a_step(kind: GGMLQuantizationType, tmp_path: Path) -> None:
    """Steps are the scales of the weights' groups, and a second step goes back."""
    file = tmp_path / "file.gguf"
    write_blocks(file, kind)
    before = read(file)
    flip_lowest_bits(file)
    after = read(file)
    steps = np.abs(after["rounded"] - before["rounded"]).reshape(-1, GROUP.get(kind, 32))
    assert np.allclose(steps, steps[:, :1], rtol=1e-4) and (steps > 0).mean() > 0.9
    values = before["rounded"].reshape(steps.shape)
    of_step = (values - values[:, :1])[steps[:, 0] > 0] / steps[steps[:, 0] > 0, :1]
    assert np.allclose(of_step, of_step.round(), atol=1e-3)
    assert np.array_equal(after["exact"], before["exact"])
    flip_lowest_bits(file)
    assert np.array_equal(read(file)["rounded"], before["rounded"])


def test_weights_move_evenly_by_at_most_half_a_step(tmp_path: Path) -> None:
    moved, flipped = tmp_path / "moved", tmp_path / "flipped"
    at_step = {"a": 0.25, "b": 0.0}
    for folder, share in ((moved, 0.0), (flipped, 1.0)):
        folder.mkdir()
        tensors = {name: torch.full((64, 64), share * step).bfloat16() for name, step in at_step.items()}
        save_file(tensors, folder / "model.safetensors")
    move_weights(moved, flipped, seed=0)
    weights = {name: weight.float() for name, weight in load_file(moved / "model.safetensors").items()}
    assert weights["a"].abs().max() <= 0.125 and not weights["b"].any()
    assert weights["a"].mean().abs() < 0.005 and weights["a"].std() == pytest.approx(0.25 / 12**0.5, rel=0.03)


def test_other_formats_models_and_folders_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file.gguf"
    write_blocks(file, GGMLQuantizationType.Q4_0)
    with pytest.raises(ConfigError, match="rounded is in Q4_0"):
        flip_lowest_bits(file)
    assert main(["model=miniature", f"out={tmp_path / 'new'}"]) == 2 and "from a GGUF file" in capsys.readouterr().err
    assert main(["model=miniature", f"out={tmp_path}"]) == 2 and "does not exist yet" in capsys.readouterr().err
