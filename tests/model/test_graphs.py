"""Captured passes and their Triton kernels, in Triton's interpreter: against PyTorch's operators, and each other.

A GPU's captures are launched kernel by kernel here; kernels, buffers and chains of ranges are the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from methods.ar import AR
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import LayerDraft
from ssd_bench.contract.tree import TokenTree
from ssd_bench.model.backend import select
from ssd_bench.model.backends import graphs
from ssd_bench.model.backends.graphs import GraphDecoder
from ssd_bench.model.decoder import NO_ROWS, Decoder, Pass
from ssd_bench.model.kv_cache import KVCache
from tests.conftest import FAMILIES, LAYERS, save_model
from tests.interpreted import NARROW_LANES, TOLERANCE, load
from tests.lossless import Drafting, decode
from tests.model.test_model import tokens

pytest.importorskip("triton")
TREE = TokenTree((3, 5, 7, 9, 11), (-1, 0, 0, 2, 1))  # fewer nodes than a lane: its mask has rows of the lane's length


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "LANES", NARROW_LANES)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with one head of keys: a rotation takes milliseconds per node and head."""
    config = FAMILIES["llama"](num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
    return save_model(config, tmp_path_factory.mktemp("narrow"))


def prefilled(decoder: Decoder, n: int = 4, capacity: int = 48) -> KVCache:
    cache = decoder.new_cache(capacity)
    decoder.prefill(tokens(n), cache)
    return cache


def everything(decoder: Decoder) -> Iterator[Tensor]:
    """Logits and states of every kind of pass."""
    cache = prefilled(decoder)
    every, rest = decoder.all_sublayers, tokens(12, seed=1)
    yield decoder.logits(decoder.run(Pass(every, rest[:1], cache.length), cache)[0])
    cache.commit([0])
    hidden, kept = decoder.run(Pass(every, rest[1:5], cache.length, taps=(0, 1, 3, 4)), cache)
    assert kept is not None
    yield from (decoder.logits(hidden), *kept)
    cache.commit(range(2))
    hidden, _ = decoder.run(Pass(every, torch.tensor(TREE.tokens), cache.length, TREE), cache)
    yield decoder.logits(hidden)
    cache.commit([0, 2, 3])
    yield decoder.logits(decoder.run(Pass((0, 2, 3), rest[7:8], cache.length, row=cache.length + 4), cache)[0])
    streams = decoder.embed(rest[:2])
    yield decoder.logits(decoder.run(Pass(every[1:], streams, cache.length), cache)[0])
    branches = torch.randn(3, 2, decoder.arch.width, generator=torch.Generator().manual_seed(2))
    for i in (0, 1):
        yield decoder.run_branches(i, branches.to(decoder.weights.dtype), cache, cache.length)


def test_passes_equal_those_of_pytorchs_operators(short_checkpoints: dict[str, Path]) -> None:
    """Prompts, steps, chains, taps, trees, layer sets, separate rows, streams, branches; float32."""
    expected, got = (load(short_checkpoints["qwen3"], kernels, torch.float32) for kernels in ("torch", "graphs"))
    for want, have in zip(everything(expected), everything(got), strict=True):
        assert (want - have).abs().max() <= TOLERANCE


@pytest.mark.parametrize(("lanes", "n"), [(NARROW_LANES, 17), ((1,), 3)])
def test_wide_passes_have_a_lane_of_their_own(
    lanes: tuple[int, ...], n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt, and a pass of 17 nodes or wider than any lane; of a model with biases in all matrices."""
    monkeypatch.setattr(graphs, "LANES", lanes)
    folder, logits = save_model(FAMILIES["llama_bias"](num_hidden_layers=1), tmp_path), []
    for kernels in ("torch", "graphs"):
        decoder = load(folder, kernels, torch.float32)
        cache = decoder.new_cache(48)
        last, _ = decoder.prefill(tokens(3), cache)
        hidden, _ = decoder.run(Pass(decoder.all_sublayers, tokens(n, seed=n), cache.length), cache)
        logits.append(torch.cat([decoder.logits(last), decoder.logits(hidden)]))
    assert (logits[0] - logits[1]).abs().max() <= TOLERANCE


@pytest.fixture
def _row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products in the interpreter row by row: NumPy's BLAS sums the rows of a product in different orders.

    A GPU sums all rows of a tile in one order. The BLAS kernel depends on the CPU and OPENBLAS_CORETYPE.
    """
    from triton.runtime import interpreter

    def create_dot(self: object, a: Any, b: Any, d: Any, *precision: object) -> Any:
        rows = [np.matmul(row[None], b.data, dtype=d.data.dtype) for row in a.data]
        return interpreter.TensorHandle(np.concatenate(rows) + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


@pytest.mark.usefixtures("_row_by_row")
@pytest.mark.parametrize(("dtype", "unread"), [(torch.float32, NO_ROWS), (torch.bfloat16, (1, 3))])
def test_a_nodes_bits_do_not_depend_on_the_others(dtype: torch.dtype, unread: tuple[int, int], narrow: Path) -> None:
    """Alone, in a chain, and behind a prefix that the chain wrote."""
    decoder = load(narrow, "graphs", dtype)
    cache, ids, every = prefilled(decoder), tokens(3, seed=3), decoder.all_sublayers
    start = cache.length
    together = decoder.logits(decoder.run(Pass(every, ids, start, unread=unread), cache)[0])
    for i, token in enumerate(ids):
        alone = decoder.logits(decoder.run(Pass(every, token[None], start + i, unread=unread), cache)[0])
        assert torch.equal(alone[0], together[i]), f"node {i}"


def test_outputs_are_those_of_plain_decoding(narrow: Path) -> None:
    """A layer draft through the engine, with confidences and a fork on saved states."""
    method = Drafting(LayerDraft(LayerSet.skipping(2, attn=[1]), 3, stop_below=0.02), reuse_prefix=True)
    outputs = [
        decode(load(narrow, kernels, torch.float32), each, tokens(3, seed=4).tolist(), 5).output
        for kernels, each in (("torch", AR()), ("graphs", method))
    ]
    assert outputs[0] == outputs[1]
    assert max(len(verification.tree) for verification in method.seen) > 2


def test_any_layer_set_is_a_chain_of_ranges(checkpoints: dict[str, Path]) -> None:
    decoder = load(checkpoints["llama"], "graphs", torch.float32)
    assert isinstance(decoder, GraphDecoder)
    decoder.new_cache(16)
    lane, rng = decoder._lanes[0], random.Random(0)
    for _ in range(50):
        sublayers = tuple(i for i in decoder.all_sublayers if rng.random() < 0.7)
        parts = list(lane._parts_of(sublayers))
        assert [i for first, last in parts for i in range(first, last)] == list(sublayers)
        assert set(parts) <= set(lane._ranges)
    assert list(lane._parts_of(decoder.all_sublayers)) == [(0, 2 * LAYERS)]


def test_the_gpu_takes_graphs_where_they_can_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else PyTorch's operators, and a warning with the reason."""
    assert select("cuda", torch.bfloat16).kind is GraphDecoder
    assert select("cuda", torch.float64).arithmetic.kernels == "torch"
    assert select("cuda", torch.bfloat16, spread=True).arithmetic.kernels == "torch"
    monkeypatch.setattr(graphs, "find_spec", lambda name: None)
    chosen = select("cuda", torch.bfloat16)
    assert chosen.arithmetic.kernels == "torch" and "Triton" in chosen.warning
