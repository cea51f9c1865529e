"""A node's result on the compiled backend does not depend on the rest of the pass, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ssd_bench.contract.tree import TokenTree
from ssd_bench.model.arithmetic import available_levels
from ssd_bench.model.decoder import NO_ROWS, PREFILL_CHUNK, Decoder, Pass
from ssd_bench.model.kv_cache import KVCache
from tests.conftest import LAYERS
from tests.lossless import Load
from tests.model.test_model import tokens

EVERY = [level.name for level in available_levels()]
PREFIXES = (0, 1, 63, 64, 255, 256, 300)  # around the ends of blocks and chunks of rows
LONG = 300


@pytest.fixture(params=EVERY)
def decoder(request: pytest.FixtureRequest, decoders: Load) -> Decoder:
    """A bfloat16 model, at every level of instructions of this CPU."""
    return decoders("qwen3", torch.bfloat16, "native", request.param)


def filled(decoder: Decoder, prefix: int) -> KVCache:
    cache = decoder.new_cache(prefix + LONG + 16)
    if prefix:
        decoder.prefill(tokens(prefix, 1), cache)
    return cache


def logits(decoder: Decoder, cache: KVCache, ids: Tensor, prefix: int, tree: TokenTree | None = None) -> Tensor:
    hidden, _ = decoder.run(Pass(decoder.all_sublayers, ids, prefix, tree), cache)
    return decoder.logits(hidden)


def test_a_node_in_a_chain_is_the_node_alone(decoder: Decoder) -> None:
    """The rows before it are nodes of the same pass or committed; a prompt is one or several chains."""
    ids = tokens(max(PREFIXES) + LONG)
    cache = decoder.new_cache(len(ids) + 16)
    alone = torch.cat([logits(decoder, cache, ids[i : i + 1], i) for i in range(len(ids))])
    last, _ = decoder.prefill(ids, decoder.new_cache(len(ids)))
    assert len(ids) > PREFILL_CHUNK and torch.equal(decoder.logits(last), alone[-1:])
    for prefix in PREFIXES:
        cache = decoder.new_cache(prefix + LONG + 16)
        if prefix:
            decoder.prefill(ids[:prefix], cache)
        for n in (2, 3, 8, 9, 32, 33, 64, 65, *([LONG] if prefix in (0, 255) else [])):
            chain = logits(decoder, cache, ids[prefix : prefix + n], prefix)
            assert torch.equal(chain, alone[prefix : prefix + n]), f"{n} nodes after {prefix} rows"


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_node_in_a_tree_is_the_node_in_its_chain(prefix: int, decoder: Decoder) -> None:
    """Its ancestors stand right before it, whatever else the tree holds."""
    cache, ids = filled(decoder, prefix), tokens(LONG)
    for depth, siblings in ((1, 7), (4, 40), (20, 100)):
        parents = (*range(-1, depth - 1), *(i % depth for i in range(siblings)))
        tree = TokenTree(tuple(ids[: depth + siblings].tolist()), parents)
        whole = logits(decoder, cache, ids[: len(tree)], prefix, tree)
        assert torch.equal(whole[:depth], logits(decoder, cache, ids[:depth], prefix))


@pytest.mark.parametrize("unread", [(0, 1), (4, 171), (64, 128), (0, 256), (150, 150), (0, 300)])
def test_a_node_behind_a_window_is_the_node_alone(unread: tuple[int, int], decoder: Decoder) -> None:
    prefix, every, ids = 300, decoder.all_sublayers, tokens(40)
    cache = filled(decoder, prefix)
    tree = TokenTree(tuple(ids.tolist()), (*range(-1, 19), *(i % 20 for i in range(20))))
    alone = []
    for i in range(20):  # every one of them follows rows that the one before it wrote
        hidden, _ = decoder.run(Pass(every, ids[i : i + 1], prefix + i, unread=unread), cache)
        alone.append(decoder.logits(hidden))
    for rows in (*cache.keys, *cache.values):
        rows[:, slice(*unread)] = torch.nan
    for n, descent in ((1, None), (7, None), (20, None), (40, tree)):
        hidden, _ = decoder.run(Pass(every, ids[:n], prefix, descent, unread=unread), cache)
        assert torch.equal(decoder.logits(hidden)[:20], torch.cat(alone[:n]))
    whole = logits(decoder, filled(decoder, prefix), ids[:20], prefix)
    assert torch.equal(torch.cat(alone), whole) == (unread[0] == unread[1])


@pytest.mark.parametrize("prefix", [0, 63, 256, 300])
def test_a_branch_is_a_chain(prefix: int, decoder: Decoder) -> None:
    cache = filled(decoder, prefix)
    for branches, r in ((1, 1), (3, 1), (40, 7), (2, 70)):
        streams = decoder.embed(tokens(branches * r, branches)).view(branches, r, -1)
        for i in decoder.all_sublayers:
            together = decoder.run_branches(i, streams, cache, prefix)
            for b in {0, branches // 2, branches - 1}:
                alone, _ = decoder.run(Pass((i,), streams[b].clone(), prefix), cache)
                assert torch.equal(together[b], alone)
            streams = together


def test_a_pass_has_the_same_bits_on_any_number_of_threads(decoder: Decoder) -> None:
    """However panels, heads and chunks of rows are shared out, and with taps that copy states."""
    prefix, taps = 300, (0, 3, 2 * LAYERS)
    tree = TokenTree(tuple(tokens(40).tolist()), (-1, *(i // 3 for i in range(39))))
    cache, before = filled(decoder, prefix), torch.get_num_threads()
    made: dict[int, list[Tensor]] = {}
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            made[threads] = []
            for n, descent, unread in (
                (1, None, NO_ROWS),
                (9, None, (4, 200)),
                (40, tree, NO_ROWS),
                (LONG, None, NO_ROWS),
            ):
                what = Pass(decoder.all_sublayers, tokens(n), prefix, descent, taps, unread=unread)
                hidden, kept = decoder.run(what, cache)
                assert kept is not None and torch.equal(kept[-1], hidden)
                made[threads] += [kept, decoder.logits(hidden), cache.keys[1][:, prefix : prefix + n].clone()]
    finally:
        torch.set_num_threads(before)
    for others in (made[2], made[3]):
        assert all(torch.equal(one, other) for one, other in zip(made[1], others, strict=True))
