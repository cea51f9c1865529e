"""The cache: commits move rows in place, rollback is the length, sizes are checked."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from methods.knapspec import KnapSpec
from ssd_bench.cost.latency import Latency
from ssd_bench.engine.engine import SCRATCH, Engine
from ssd_bench.engine.probe import ModelProbe
from ssd_bench.engine.sampling import Decoding
from ssd_bench.model.decoder import Decoder
from ssd_bench.model.kv_cache import KVCache


def filled(capacity: int = 20) -> KVCache:
    """Every row of every block holds its index."""
    cache = KVCache([torch.device("cpu")] * 3, 2, 4, capacity, torch.float32)
    rows = torch.arange(capacity, dtype=torch.float32)[None, :, None].expand(2, capacity, 4)
    for tensor in (*cache.keys, *cache.values):
        tensor.copy_(rows)
    return cache


@pytest.mark.parametrize("seed", range(10))
def test_commit_keeps_the_path_in_order(seed: int) -> None:
    rng, cache, expected = random.Random(seed), filled(), list[int]()
    while cache.length < 12:
        path = [0, *sorted(rng.sample(range(1, 7), rng.randint(0, 4)))]
        row = cache.length
        for tensor in (*cache.keys, *cache.values):  # a forward pass writes its nodes' rows
            tensor[:, row : row + 7] = 100 * row + torch.arange(7.0)[None, :, None]
        expected += [100 * row + node for node in path]
        cache.commit(path)
        for tensor in (*cache.keys, *cache.values):
            assert tensor[:, : cache.length, 0].tolist() == [expected, expected]


def test_a_chain_moves_nothing() -> None:
    cache = filled()
    before = [k.data_ptr() for k in cache.keys]
    cache.commit(range(5))
    assert cache.length == 5 and [k.data_ptr() for k in cache.keys] == before
    assert cache.keys[0][0, :, 0].tolist() == list(range(20))
    cache.reset()
    assert cache.length == 0
    with pytest.raises(ValueError, match=r"25 rows.*20 rows"):
        cache.commit(range(25))


def test_growing_keeps_every_row_and_takes_whole_buckets() -> None:
    cache = KVCache([torch.device("cpu")] * 3, 2, 4, 50, torch.float32, bucket=16)
    row_bytes = 3 * 2 * 2 * 4 * 4
    assert (cache.rows, cache.nbytes) == (16, 16 * row_bytes)
    for tensor in (*cache.keys, *cache.values):
        tensor.copy_(torch.arange(16.0)[None, :, None].expand_as(tensor))
    cache.commit(range(3))
    sizes = []
    for rows in (16, 17, 32, 33, 50):
        cache.reserve(rows)
        sizes.append(cache.rows)
        assert cache.nbytes == cache.rows * row_bytes and cache.length == 3
        for tensor in (*cache.keys, *cache.values):
            assert tensor[:, :, 0].tolist() == [[*map(float, range(16)), *[0.0] * (cache.rows - 16)]] * 2
    assert sizes == [16, 32, 32, 48, 50]
    with pytest.raises(ValueError, match=r"51 rows exceed the capacity of 50"):
        cache.reserve(51)


def test_a_cache_that_grows_while_decoding_changes_no_output(decoders: Callable[..., Decoder]) -> None:
    decoder, found = decoders("llama"), []
    for bucket in (16, 1000):
        cache = decoder.new_cache(60 + SCRATCH, bucket)
        probe = ModelProbe(decoder, cache, Latency(0.5, 1e-3, 0.5))
        engine = Engine(decoder, cache, Decoding(max_new_tokens=40), frozenset(), probe)
        method = KnapSpec(interval=8)
        method.check(decoder.arch.dims("tiny"))
        found.append((engine.generate(method, list(range(3, 13))), cache.rows))
    (grown, rows), (whole, all_rows) = found
    assert grown.output == whole.output and len(grown.output) == 40
    assert [step.draft_len for step in grown.steps] == [step.draft_len for step in whole.steps]
    assert rows % 16 == 0 and rows < all_rows == 60 + SCRATCH
