"""Matchness (SWIFT Eq. 3): how well a layer set predicts tokens that are there already, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ssd_bench.core.layer_set import LayerSet
    from ssd_bench.core.method import Probe


def matchness(layer_set: LayerSet, tokens: Sequence[int], prefix_len: int, probe: Probe) -> float:
    """Share of the tokens but the first that a set predicts from those before them (Eq. 3).

    Args:
        layer_set: the sublayers that run, over the window; the prefix is the full model's.
        tokens: γ+1 committed tokens.
        prefix_len: position of the first of them.
    """
    hidden = probe.embed(tokens[:-1])[None]
    for i in layer_set.kept:
        hidden = probe.apply_sublayer(i, hidden, prefix_len)
    drafted = probe.predict(hidden)[0].tolist()
    return sum(ours == right for ours, right in zip(drafted, tokens[1:])) / len(drafted)
