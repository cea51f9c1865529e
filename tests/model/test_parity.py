"""Our decoder against transformers' models, in the hub's cache: families, rotary embeddings, ties, biases, heads."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from ssd_bench.contract.tree import TokenTree
from ssd_bench.model.backend import select
from ssd_bench.model.backends.cpu import native_problem
from ssd_bench.model.checkpoint import ModelSource
from ssd_bench.model.decoder import Decoder, Pass
from ssd_bench.model.template import PLAIN
from tests.conftest import CONTEXT, FAMILIES, LLAMA3, SIZES, VOCAB, rope, save_model
from tests.model.test_model import KERNELS

TOLERANCE = 1e-4  # of a float32 logit
ORIGINAL = CONTEXT // 4  # context before it was stretched
CLASSES: dict[str, type[PretrainedConfig]] = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
ROPES = {
    "default": rope(1e4),
    "linear": rope(1e4, "linear", factor=4.0),
    "dynamic": rope(1e4, "dynamic", factor=4.0, original_max_position_embeddings=ORIGINAL),
    "llama3": rope(5e5, "llama3", **LLAMA3 | {"original_max_position_embeddings": ORIGINAL}),
    "yarn": rope(1e6, "yarn", factor=4.0, original_max_position_embeddings=ORIGINAL),
}
GROUPS = [(1, 1), (3, 1), (7, 1), (8, 1), (3, 3), (9, 3), (21, 3), (24, 3), (7, 7), (14, 7), (8, 8), (16, 8), (56, 8)]
"""Numbers of heads and KV heads."""

BIASES = {"llama": ("attention_bias", "mlp_bias"), "qwen2": (), "qwen3": ("attention_bias",)}
"""Optional biases; qwen2 always has biases of queries, keys and values."""

CASES: dict[str, tuple[str, dict[str, Any]]] = (
    {
        f"{family}, {kind}, {'tied' if i % 2 else 'untied'}": (
            family,
            {"rope_parameters": ROPES[kind], "tie_word_embeddings": i % 2 > 0},
        )
        for i, (family, kind) in enumerate(itertools.product(CLASSES, ROPES))
    }
    | {
        f"{family}, {heads} heads, {kv_heads} KV": (
            family,
            {
                "num_attention_heads": heads,
                "num_key_value_heads": kv_heads,
                "hidden_size": 8 * heads,
                # so that logits, and what they round, are as large for any width
                "initializer_range": 0.4 * heads**-0.5,
            },
        )
        for family, (heads, kv_heads) in zip(itertools.cycle(CLASSES), GROUPS)
    }
    | {
        f"{family}, {' and '.join(biases)}": (family, dict.fromkeys(biases, True))
        for family, may in BIASES.items()
        for n in range(1, len(may) + 1)
        for biases in itertools.combinations(may, n)
    }
)


def tokens_and_tree(n: int) -> tuple[Tensor, TokenTree]:
    """Tokens, and a tree behind them with the last one as root."""
    ids = torch.randint(VOCAB, (n - 4,), generator=torch.Generator().manual_seed(0))
    return ids, TokenTree((int(ids[-1]), 5, 7, 9, 11, 13), (-1, 0, 0, 1, 3, 2))


@lru_cache(maxsize=8)  # all kernels are compared with them
def expected_logits(folder: Path, n: int) -> tuple[Tensor, Tensor]:
    """Logits of transformers: of all tokens, and at the end of every path of the tree."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    ids, tree = tokens_and_tree(n)
    paths = [[i for i in range(len(tree)) if tree.mask()[node, i]] for node in range(len(tree))]
    # what fills a row up comes after its path, which does not see it
    rows = torch.zeros(len(tree), len(ids) - 1 + max(map(len, paths)), dtype=torch.long)
    rows[:, : len(ids) - 1] = ids[:-1]
    for row, path in zip(rows, paths):
        row[len(ids) - 1 : len(ids) - 1 + len(path)] = torch.tensor([tree.tokens[i] for i in path])
    with torch.no_grad():
        along, behind = model(ids[None]).logits[0], model(rows).logits
    return along, torch.stack([logits[len(ids) - 2 + len(path)] for logits, path in zip(behind, paths)])


def agrees(decoder: Decoder, folder: Path, n: int) -> None:
    """Prefill, cached steps and a tree up to `n` positions: max |logit difference| <= 1e-4 (HF sees its paths)."""
    ids, tree = tokens_and_tree(n)
    steps, (expected, at_nodes) = n - 10, expected_logits(folder, n)
    cache = decoder.new_cache(n + 8)
    last, _ = decoder.prefill(ids[:steps], cache)
    got = [decoder.logits(last)]
    for token in ids[steps:-1]:
        hidden, _ = decoder.run(Pass(decoder.all_sublayers, token[None], cache.length), cache)
        got.append(decoder.logits(hidden))
        cache.commit([0])
    assert (torch.cat(got) - expected[steps - 1 : -1]).abs().max() <= TOLERANCE
    hidden, _ = decoder.run(Pass(decoder.all_sublayers, torch.tensor(tree.tokens), cache.length, tree), cache)
    assert (at_nodes - decoder.logits(hidden)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_parity_within_the_original_context(
    family: str, kernels: str, checkpoints: dict[str, Path], decoders: Callable[..., Decoder]
) -> None:
    agrees(decoders(family, torch.float32, kernels), checkpoints[family], 40)


def in_the_hubs_cache(folder: Path, cache: Path) -> Path:
    """A checkpoint named some/model: files in `blobs`, a snapshot of links, a branch."""
    repository, commit = cache / "models--some--model", "c" * 40
    snapshot = repository / "snapshots" / commit
    for made in (repository / "blobs", repository / "refs", snapshot):
        made.mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit, encoding="utf-8")
    for i, file in enumerate(sorted(folder.iterdir())):
        os.replace(file, repository / "blobs" / str(i))
        (snapshot / file.name).symlink_to(Path("../../blobs") / str(i))
    return snapshot


@pytest.mark.parametrize("name", CASES)
def test_parity_at_four_times_the_original_context(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load shards from the hub's cache."""
    family, settings = CASES[name]
    config = CLASSES[family](**SIZES | {"rope_parameters": ROPES["default"], "head_dim": 8} | settings)
    folder = save_model(config, tmp_path / "saved", shard="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    snapshot = in_the_hubs_cache(folder, tmp_path / "hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    opened = ModelSource("m", "plain", hub="some/model", revision="main").open()
    assert (opened.folder, opened.template, opened.commit) == (snapshot, PLAIN, "c" * 40)
    for kernels in ("torch", "native") if not native_problem() else ("torch",):
        decoder = select("cpu", torch.float32, kernels).load(opened, torch.float32, [torch.device("cpu")])
        assert decoder.arch.context == CONTEXT
        agrees(decoder, snapshot, CONTEXT)
