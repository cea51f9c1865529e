"""Our decoder against transformers' models: families, rotary embeddings, ties, biases, heads; and two real ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from ssd_bench.compose.build import build
from ssd_bench.contract.tree import TokenTree
from ssd_bench.model.backend import select
from ssd_bench.model.backends.cpu import native_problem
from ssd_bench.model.checkpoint import Checkpoint, ModelSource
from ssd_bench.model.decoder import Decoder, Pass
from ssd_bench.model.template import PLAIN
from ssd_bench.model.weights import architecture
from ssd_bench.paths import cache_dir
from tests.conftest import CONTEXT, FAMILIES, LLAMA3, SIZES, VOCAB, rope, save_model
from tests.model.test_model import KERNELS
from tests.model.test_weights_files import COMMIT, cached, relative
from tests.runs import composed

BOTH = ["torch"] if native_problem() else ["torch", "native"]
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


Ids = tuple[int, ...]


def random_ids(n: int) -> Ids:
    return tuple(torch.randint(VOCAB, (n,), generator=torch.Generator().manual_seed(0)).tolist())


def tree_behind(ids: Ids) -> TokenTree:
    """Return a tree with the last token as its root; its longest path has 4 tokens."""
    return TokenTree((ids[-1], *ids[:5]), (-1, 0, 0, 1, 3, 2))


@lru_cache(maxsize=8)  # all kernels are compared with them
def expected_logits(folder: Path, ids: Ids) -> tuple[Tensor, Tensor]:
    """Logits of transformers: of all tokens, and at the end of every path of the tree."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    tree, prefix = tree_behind(ids), len(ids) - 1
    paths = [[i for i in range(len(tree)) if tree.mask()[node, i]] for node in range(len(tree))]
    # what fills a row up comes after its path, which does not see it
    rows = [(*ids[:-1], *(tree.tokens[i] for i in path), *[0] * (4 - len(path))) for path in paths]
    with torch.no_grad():
        along, behind = model(torch.tensor([ids])).logits[0], model(torch.tensor(rows)).logits
    return along, torch.stack([logits[prefix - 1 + len(path)] for logits, path in zip(behind, paths)])


def agrees(decoder: Decoder, folder: Path, ids: Ids) -> None:
    """Prefill, cached steps and a tree behind the tokens: max |logit difference| <= 1e-4 (HF sees its paths)."""
    steps, tree, (expected, at_nodes) = len(ids) - 6, tree_behind(ids), expected_logits(folder, ids)
    cache = decoder.new_cache(len(ids) + 12)
    last, _ = decoder.prefill(torch.tensor(ids[:steps]), cache)
    got = [decoder.logits(last)]
    for token in torch.tensor(ids[steps:-1]):
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
    agrees(decoders(family, torch.float32, kernels), checkpoints[family], random_ids(36))


@pytest.mark.parametrize("name", CASES)
def test_parity_at_four_times_the_original_context(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load shards from the hub's cache."""
    family, settings = CASES[name]
    config = CLASSES[family](**SIZES | {"rope_parameters": ROPES["default"], "head_dim": 8} | settings)
    folder = save_model(config, tmp_path / "saved", shard="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    snapshot = cached(folder, relative)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(COMMIT, encoding="utf-8")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    opened = ModelSource("m", "plain", hub="some/model", revision="main").open()
    assert (opened.folder, opened.template, opened.commit) == (snapshot, PLAIN, COMMIT)
    for kernels in BOTH:
        decoder = select("cpu", torch.float32, kernels).load(opened, torch.float32, [torch.device("cpu")])
        assert decoder.arch.context == CONTEXT
        agrees(decoder, snapshot, random_ids(CONTEXT - 4))


def check_real_model(checkpoint: Checkpoint, rope_theta: float, all_kernels: Sequence[str]) -> None:
    assert checkpoint.config.rope_parameters["rope_theta"] == rope_theta
    ids = tuple(checkpoint.tokenizer(" ".join(["A train leaves at nine and covers sixty miles."] * 3))["input_ids"])
    for kernels in all_kernels:
        decoder = select("cpu", torch.float32, kernels).load(checkpoint, torch.float32, [torch.device("cpu")])
        agrees(decoder, checkpoint.folder, ids)


@pytest.mark.smollm2
def test_parity_of_smollm2() -> None:
    check_real_model(build(composed("model=smollm2_135m"), "model").open(), 100_000, BOTH)


@pytest.mark.smollm2
def test_parity_of_qwen2_5_coder() -> None:
    """A real model with biases, an untied head and the largest activations, if it was fetched."""
    source = build(composed("model=qwen2_5_coder_0_5b"), "model")
    if not (source.packaged.converted(cache_dir()) / "config.json").is_file():
        pytest.skip("needs 0.5 GB: make weights MODEL=qwen2_5_coder_0_5b")
    checkpoint = source.open()
    prompt = checkpoint.tokenizer.decode(source.prompting.ids(checkpoint.tokenizer, ["Write a haiku."]))
    assert prompt.endswith("<|im_start|>user\nWrite a haiku.<|im_end|>\n<|im_start|>assistant\n")
    source.check_shape(architecture(checkpoint))
    check_real_model(checkpoint, 1_000_000, BOTH[-1:])
