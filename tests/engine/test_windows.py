"""Drafts with a window of the cache: the rows read, parity with transformers under a mask, losslessness."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig

from methods.ar import AR
from methods.window_draft import WindowDraft
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Context, LayerDraft, Taps
from ssd_bench.contract.tree import TokenTree
from ssd_bench.contract.window import Window
from ssd_bench.model.arithmetic import available_levels
from ssd_bench.model.backends import graphs
from ssd_bench.model.backends.cpu import native_problem
from ssd_bench.model.decoder import NO_ROWS, Decoder, Pass
from ssd_bench.model.kv_cache import KVCache
from tests.conftest import LAYERS, SIZES, VOCAB, rope, save_model
from tests.interpreted import NARROW_LANES, load
from tests.lossless import DIMS, Drafting, Load, check_greedy, check_sampled, decode
from tests.runs import config

FULL = LayerSet.full(LAYERS)
TREE = TokenTree((3, 5, 7, 9, 11, 13), (-1, 0, 0, 1, 3, 2))
PREFIX = 200
ON_CPU = ["torch", *(f"native {level.name}" for level in available_levels())]
WINDOWS = [Window(4, 30), Window(0, 1), Window(1, 72), Window(64, 73)]
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Largest difference of logits: rounding of sums; of keys, values and inputs of products, in Triton of streams."""


def windowed(window: Window, layer_set: LayerSet = FULL, max_len: int = 4, **options: Any) -> Drafting:
    return Drafting(LayerDraft(replace(layer_set, window=window), max_len, **options), reuse_prefix=True)


def random_windowed(rng: random.Random) -> Drafting:
    """Return a method with any layer set, any window shorter than most contexts, exits and siblings."""
    share = rng.choice([0.0, 0.3, 0.6])
    layer_set = LayerSet(LAYERS, frozenset(i for i in range(2 * LAYERS) if rng.random() < share))
    widths = tuple((bound, rng.randint(1, 6)) for bound in rng.choice([(), (0.3, 0.0)]))
    window = Window(rng.choice([0, 1, 4]), rng.choice([1, 2, 5, 20]))
    return windowed(window, layer_set, rng.randint(1, 8), stop_below=rng.choice([0.0, 0.1]), widths=widths)


def test_a_window_is_the_first_and_the_last_positions() -> None:
    """The token drafted at position p reads the sinks and the last positions up to its own."""
    for sinks, recent, prefix in product((0, 1, 4), (1, 2, 7), range(20)):
        window, positions = Window(sinks, recent), range(prefix + 1)
        first, end = window.unread(prefix)
        read = [p for p in positions if not first <= p < end]
        assert read == sorted({*positions[:sinks], *positions[-recent:]})
        assert window.count_read(prefix + 1) == len(read) and 0 <= first <= end <= prefix
        assert ((first, end) == (0, 0)) == (len(read) == prefix + 1)


def test_every_drafted_token_has_a_window_of_its_own(decoders: Load, passes: list[Pass]) -> None:
    """Drafting moves it on by one position per token; verification reads everything."""
    window = Window(2, 3)
    made = decode(decoders(), windowed(window, max_len=3), list(range(3, 10)), 9)
    expected = [(0, 7, NO_ROWS)]
    for step in made.steps:
        prefixes = range(step.context_len, step.context_len + step.draft_len)
        expected += [(prefix, 1, window.unread(prefix)) for prefix in prefixes]
        expected.append((step.context_len, step.tree_nodes, NO_ROWS))
    seen = [(one.prefix_len, len(one.nodes), one.unread) for one in passes]
    assert seen == expected and seen[1:4] == [(7, 1, (2, 5)), (8, 1, (2, 6)), (9, 1, (2, 7))]
    assert {step.layer_set and step.layer_set.window for step in made.steps} == {window}


# ---- the model


PROMPT = torch.randint(VOCAB, (PREFIX,), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def folders(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models with and without shared KV heads; a small one for Triton's interpreter."""
    root = tmp_path_factory.mktemp("models")
    made = {"grouped": checkpoints["llama"], "head norms": checkpoints["qwen3"]}
    for name, blocks, heads in (("multi-head", LAYERS, 4), ("small", 1, 2)):
        sizes = {"num_hidden_layers": blocks, "num_attention_heads": heads, "num_key_value_heads": heads}
        made[name] = save_model(LlamaConfig(**SIZES | sizes, rope_parameters=rope(1e4)), root / name)
    return made


@cache
def ours(folder: Path, backend: str, dtype: torch.dtype) -> Decoder:
    """Return the decoder of torch, a level of the native kernels, or Triton's kernels in its interpreter."""
    kernels, _, isa = backend.partition(" ")
    if isa and (problem := native_problem(isa)):
        pytest.skip(f"level {isa} is not tested: {problem}")
    if kernels == "graphs":
        pytest.importorskip("triton")
    return load(folder, kernels, dtype, isa or "auto")


def prompted(decoder: Decoder, folder: Path, dtype: torch.dtype) -> KVCache:
    """Return a cache with the prompt's rows, by PyTorch's operators, and room for a tree."""
    plain = ours(folder, "torch", dtype)
    filled, made = plain.new_cache(PREFIX), decoder.new_cache(PREFIX + len(TREE))
    plain.prefill(PROMPT, filled)
    made.reserve(PREFIX + len(TREE))
    for rows, source in zip((*made.keys, *made.values), (*filled.keys, *filled.values), strict=True):
        rows[:, :PREFIX] = source[:, :PREFIX]
    return made


@cache
def theirs(folder: Path, dtype: torch.dtype) -> Any:
    options = {"dtype": dtype, "attn_implementation": "eager"}
    return AutoModelForCausalLM.from_pretrained(folder, **options).float()


@cache
def masked_logits(folder: Path, dtype: torch.dtype, tree: TokenTree, unread: tuple[int, int]) -> Tensor:
    """Return transformers' float32 logits of a tree after the prompt, under an explicit mask.

    Args:
        dtype: what weights are rounded to.
    """
    visible = torch.cat([torch.ones(len(tree), PREFIX, dtype=torch.bool), tree.mask().bool()], dim=1)
    visible[:, slice(*unread)] = False
    mask = torch.zeros(visible.shape).masked_fill_(~visible, torch.finfo(torch.float32).min)
    with torch.no_grad():
        made = theirs(folder, dtype)(
            torch.tensor(tree.tokens)[None],
            attention_mask=mask[None, None],
            past_key_values=theirs(folder, dtype)(PROMPT[None], past_key_values=DynamicCache()).past_key_values,
            position_ids=torch.tensor(tree.depths)[None] + PREFIX,
        )
    return made.logits[0]


def run(decoder: Decoder, rows: KVCache, tree: TokenTree, unread: tuple[int, int] = NO_ROWS) -> Tensor:
    what = Pass(decoder.all_sublayers, torch.tensor(tree.tokens), PREFIX, tree, unread=unread)
    return decoder.logits(decoder.run(what, rows)[0])


FAMILIES = ("grouped", "head norms", "multi-head")
# Triton's interpreter takes seconds per pass, and has no products of bfloat16
CASES = [
    *product(ON_CPU, FAMILIES, WINDOWS, (torch.float32, torch.bfloat16)),
    ("graphs", "small", WINDOWS[0], torch.float32),
]


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "LANES", NARROW_LANES)


@pytest.mark.parametrize(("backend", "family", "window", "dtype"), CASES)
def test_parity_with_transformers_under_a_mask(
    backend: str, family: str, window: Window, dtype: torch.dtype, folders: dict[str, Path]
) -> None:
    """One token, a chain and a tree after a prompt; without the window logits differ by far more."""
    decoder = ours(folders[family], backend, dtype)
    rows, unread = prompted(decoder, folders[family], dtype), window.unread(PREFIX)
    for tree in (TokenTree.chain(TREE.tokens[:1]), TokenTree.chain(TREE.tokens), TREE):
        expected = masked_logits(folders[family], dtype, tree, unread)
        assert (run(decoder, rows, tree, unread) - expected).abs().max() <= TOLERANCES[dtype]
    assert (run(decoder, rows, TREE) - expected).abs().max() > 4 * TOLERANCES[dtype]


def test_the_gpus_kernels_do_not_read_unread_rows(folders: dict[str, Path]) -> None:
    """They leave out a whole split of rows: logits have the same bits for any content."""
    folder, window, dtype = folders["small"], WINDOWS[1], torch.float16
    decoder = ours(folder, "graphs", dtype)
    rows, unread = prompted(decoder, folder, dtype), window.unread(PREFIX)
    before = run(decoder, rows, TREE, unread)
    assert (before - masked_logits(folder, dtype, TREE, unread)).abs().max() <= TOLERANCES[dtype]
    for part in (*rows.keys, *rows.values):
        part[:, slice(*unread)] = torch.nan
    assert torch.equal(run(decoder, rows, TREE, unread), before)


# ---- the decode loop


def test_greedy_equals_ar_with_any_window(decoders: Load, rests: list[int]) -> None:
    """A window turns `reuse_prefix` off: its states are not the full model's."""
    assert check_greedy(random_windowed, decoders) > 25
    assert rests == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_greedy_equals_ar_with_any_window(dtype: torch.dtype, decoders: Load) -> None:
    """Contexts have several blocks and chunks."""
    decoder, accepted = decoders("qwen3", dtype, "native"), 0
    for seed in range(12):
        rng = random.Random(seed)
        prompt = [rng.randrange(VOCAB) for _ in range(rng.choice([60, 130, 200]))]
        method = random_windowed(rng)
        made, expected = (decode(decoder, one, prompt, 30) for one in (method, AR()))
        assert made.output == expected.output, f"case {seed}"
        accepted += sum(step.accepted_len for step in made.steps)
    assert accepted > 30


def test_samples_are_distributed_as_ar_s_with_a_window_and_siblings(decoders: Load) -> None:
    skip = LayerSet.skipping(LAYERS, attn=[1])
    check_sampled(lambda: windowed(Window(1, 1), skip, 2, widths=((0.5, 2), (0.0, 3))), decoders)


def test_the_preset_has_the_window_of_magicdec() -> None:
    method: WindowDraft = instantiate(config("window_draft"))
    assert method.taps == Taps() and not method.reuse_prefix
    method.check(DIMS)
    assert method.propose(Context(1, 9, [3], 20)) == LayerDraft(replace(FULL, window=Window(4, 252)), 4)
