"""The cache: commits move rows in place, rollback is the length, sizes are checked."""

from __future__ import annotations

import random

import pytest
import torch

from ssd_bench.kv_cache import KVCache


def filled(capacity: int = 20) -> KVCache:
    """Every row of every block holds its own index."""
    cache = KVCache([torch.device("cpu")] * 3, 2, 4, capacity, torch.float32)
    rows = torch.arange(capacity, dtype=torch.float32)[None, :, None].expand(2, capacity, 4)
    for tensor in (*cache.keys, *cache.values):
        tensor.copy_(rows)
    return cache


@pytest.mark.parametrize("seed", range(20))
def test_commit_keeps_the_path_in_order(seed: int) -> None:
    rng = random.Random(seed)
    cache = filled()
    expected: list[int] = []
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


def test_overflow_is_an_error_that_names_both_sizes() -> None:
    with pytest.raises(ValueError, match=r"25 rows.*20 rows"):
        filled().commit(range(25))


def test_bytes_and_reset() -> None:
    cache = filled()
    assert cache.nbytes == 3 * 2 * 2 * 20 * 4 * 4
    cache.commit([0])
    cache.reset()
    assert cache.length == 0
