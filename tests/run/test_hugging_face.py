"""Hugging Face `generate` and our AR: same tokens, ends and distribution; what it cannot load is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import chisquare

from methods.ar import AR
from ssd_bench.engine.sampling import Decoding, warp
from ssd_bench.errors import ConfigError
from ssd_bench.model.checkpoint import EMBEDDED
from ssd_bench.model.decoder import Decoder
from ssd_bench.run.hardware import Hardware
from ssd_bench.run.hugging_face import HuggingFace
from tests.conftest import VOCAB
from tests.engine.test_engine import random_prompt
from tests.lossless import engine_for

NONE: frozenset[int] = frozenset()


def hardware(dtype: str = "float32") -> Hardware:
    return Hardware.of("cpu", dtype, 1, 0, "auto", "auto", None)


def stock(
    folder: Path, new: int, eos: frozenset[int] = NONE, context: int = 256, dtype: str = "float32", **options: Any
) -> HuggingFace:
    return HuggingFace(folder, hardware(dtype), Decoding(max_new_tokens=new, **options), eos, context)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_its_greedy_tokens_and_ends_are_those_of_ar(
    family: str, checkpoints: dict[str, Path], decoders: Callable[..., Decoder]
) -> None:
    reasons = set()
    for seed in range(12):
        prompt, new = random_prompt(seed), (1, 2, 24)[seed % 3]
        eos, room = (NONE, 5) if seed % 2 else (frozenset(range(0, VOCAB, 3)), new)
        context = len(prompt) + room
        engine = engine_for(decoders(family), context, new, eos)
        ours = engine.generate(AR(), prompt)
        theirs = stock(checkpoints[family], new, eos, context, "float64").generate(prompt)
        assert (theirs.output, theirs.finish_reason) == (ours.output, ours.finish_reason)
        assert theirs.steps == [] and theirs.prefill_ms > 0 and theirs.decode_ms >= 0
        reasons.add(theirs.finish_reason)
    assert reasons == {"eos", "length", "context"}


def test_an_output_may_be_shorter_than_the_decodings(checkpoints: dict[str, Path]) -> None:
    model = stock(checkpoints["llama"], 9)
    whole = model.generate([5, 6, 7]).output
    assert len(whole) == 9 and model.generate([5, 6, 7], max_new=4).output == whole[:4]


def test_nothing_of_the_checkpoints_own_generation_settings_counts(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoints["llama"], folder)
    own = {"repetition_penalty": 9.0, "eos_token_id": list(range(VOCAB)), "do_sample": True, "temperature": 9.0}
    (folder / "generation_config.json").write_text(json.dumps(own), encoding="utf-8")
    expected = stock(checkpoints["llama"], 12).generate([3, 4]).output
    assert stock(folder, 12).generate([3, 4]).output == expected and len(expected) == 12


def test_sampling_has_the_distribution_of_the_runs_warpers(
    checkpoints: dict[str, Path], decoders: Callable[..., Decoder]
) -> None:
    prompt, warpers = [4, 9, 11], {"mode": "sample", "temperature": 0.7, "top_p": 0.8, "top_k": 12}
    model = stock(checkpoints["llama"], 1, dtype="float64", **warpers)
    drawn = [model.generate(prompt, seed).output[0] for seed in range(400)]
    assert drawn[:5] == [model.generate(prompt, seed).output[0] for seed in range(5)]
    decoder = decoders("llama")
    with torch.inference_mode():
        last, _ = decoder.prefill(torch.tensor(prompt), decoder.new_cache(8))
        probs = warp(decoder.logits(last), Decoding(max_new_tokens=1, **warpers))[0]  # type: ignore[arg-type]
    counts = torch.bincount(torch.tensor(drawn), minlength=VOCAB)
    kept = probs > 0
    assert 1 < kept.sum() < 12 and counts[~kept].sum() == 0
    expected = probs[kept].double() / probs[kept].double().sum() * len(drawn)
    assert chisquare(counts[kept].numpy(), expected.numpy()).pvalue > 1e-3


def test_its_weights_are_counted_once() -> None:
    folder = EMBEDDED / "miniature"
    about = stock(folder, 1).about
    stored = load_file(folder / "model.safetensors")
    weights = 4 * sum(tensor.numel() for tensor in stored.values())
    assert weights <= about["weight_bytes"] <= weights + 4096  # frequencies of the positions are a buffer
    assert (about["class"], about["attention"]) == ("LlamaForCausalLM", "sdpa")


def test_weights_that_transformers_does_not_find_are_named(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoints["qwen3"], folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"not found: model.layers.1.mlp.up_proj.weight"):
        stock(folder, 1)
