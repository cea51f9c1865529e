"""Layer sets by index, pattern or published name; LayerSet's arithmetic."""

from __future__ import annotations

from itertools import pairwise, product

import pytest

from methods.fixed_layers import pattern_set, published_set, published_sets
from ssd_bench.contract.layer_set import LayerSet


def test_indices_name_attention_and_mlp_apart() -> None:
    s = LayerSet.skipping(5, attn=[1, 3], mlp=[2])
    assert s.skipped == {2, 6, 5} and s.kept == (0, 1, 3, 4, 7, 8, 9)
    assert (s.skip_attn, s.skip_mlp, s.n_attn, s.n_mlp) == ((1, 3), (2,), 3, 4)
    assert s.first_changed == 2 and s.skip_ratio == 0.3 and LayerSet.full(5).first_changed == 10


@pytest.mark.parametrize("pattern", ["uniform", "attention", "mlp", "exit"])
def test_patterns_skip_the_ratio(pattern: str) -> None:
    for ratio, n_layers in product((0.0, 0.1, 0.25, 0.4), (8, 30, 40)):
        s = pattern_set(pattern, ratio, n_layers)
        assert len(s.skipped) == round(ratio * 2 * n_layers)
        if pattern == "exit":
            assert s.kept == tuple(range(2 * n_layers - len(s.skipped)))
        else:
            assert not s.skipped & {0, 1, 2 * n_layers - 2, 2 * n_layers - 1}
        assert not (pattern == "attention" and s.skip_mlp) and not (pattern == "mlp" and s.skip_attn)


def test_uniform_pattern_is_even() -> None:
    assert {b - a for a, b in pairwise(sorted(pattern_set("uniform", 0.5, 30).skipped))} <= {1, 2}


def test_every_published_set_fits_its_model() -> None:
    assert len(published_sets()) == 71
    for name, entry in published_sets().items():
        s = published_set(name, int(entry["n_layers"]))  # type: ignore[call-overload]
        assert list(s.skip_attn) == entry["skip_attn"] and list(s.skip_mlp) == entry["skip_mlp"]
