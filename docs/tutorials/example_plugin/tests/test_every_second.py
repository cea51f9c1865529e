"""Every second: the layer set, and refused models."""

from types import SimpleNamespace

import pytest
from ssd_bench_example.every_second import EverySecond

from ssd_bench.errors import ConfigError


def test_every_second_mlp_is_skipped_and_no_attention() -> None:
    for n_layers in (2, 3, 8):
        method = EverySecond(draft_len=3)
        method.check(SimpleNamespace(name="tiny", n_layers=n_layers))
        draft = method.propose(SimpleNamespace())
        assert draft.layer_set.skipped == {2 * block + 1 for block in range(1, n_layers, 2)}
        assert draft.max_len == 3


def test_a_single_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 2 blocks"):
        EverySecond().check(SimpleNamespace(name="tiny", n_layers=1))
