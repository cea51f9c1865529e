"""How many candidates are verified at a drafted position, by its probability (SWIFT, Xia et al., ICLR 2025, §4.2)."""

from __future__ import annotations

from collections.abc import Sequence

from ssd_bench.errors import ConfigError

BOUNDS = (0.95, 0.8, 0.5, 0.0)  # of the drafted token's probability
PAPER = (1, 3, 5, 10)
K_SETS = {
    "paper": {"greedy": PAPER, "sample": PAPER},
    "code": {"greedy": (3, 5, 8, 10), "sample": PAPER},  # hemingkx/SWIFT, utils.py:75-88; ConfLayers has a copy
    "chain": {"greedy": (1, 1, 1, 1), "sample": (1, 1, 1, 1)},
}


def widths(k_set: str | Sequence[int], mode: str) -> tuple[tuple[float, int], ...]:
    """(probability, candidates) as `LayerDraft.widths`, where a token's is above 0.95, 0.8, 0.5 and else.

    Args:
        k_set: `paper`, `code`, `chain` (no siblings) or four numbers.
        mode: the run's `decode.mode`, by which the code's numbers differ.

    Raises:
        ConfigError: another set.
    """
    known = K_SETS.get(k_set, {}) if isinstance(k_set, str) else {mode: tuple(k_set)}
    counts = known.get(mode, ())
    if len(counts) != len(BOUNDS) or min(counts) < 1:
        raise ConfigError("method.k_set", k_set, f"one of {', '.join(K_SETS)}, or four numbers of at least 1")
    return tuple(zip(BOUNDS, counts)) if max(counts) > 1 else ()
