"""Matchness (SWIFT Eq. 3): share of existing tokens that a layer set predicts, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ssd_bench.contract.layer_set import LayerSet
    from ssd_bench.contract.method import Probe


def matchness(layer_set: LayerSet, tokens: Sequence[int], prefix_len: int, probe: Probe) -> float:
    """Return the share of the tokens after the first that a layer set predicts from earlier tokens (Eq. 3).

    Args:
        layer_set: the sublayers that run over the tokens; keys and values of the prefix are the full model's.
        tokens: γ+1 committed tokens.
        prefix_len: position of the first token.
    """
    hidden = probe.embed(tokens[:-1])[None]
    for i in layer_set.kept:
        hidden = probe.apply_sublayer(i, hidden, prefix_len)
    drafted = probe.predict(hidden)[0].tolist()
    return sum(draft == token for draft, token in zip(drafted, tokens[1:])) / len(drafted)
