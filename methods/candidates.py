"""Numbers of candidates per drafted position, by its probability (SWIFT, Xia et al., ICLR 2025, §4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from ssd_bench.settings import Count, Fits

BOUNDS = (0.95, 0.8, 0.5, 0.0)  # lower bounds of the drafted token's probability
PAPER = (1, 3, 5, 10)
K_SETS = {
    "paper": {"greedy": PAPER, "sample": PAPER},
    "code": {"greedy": (3, 5, 8, 10), "sample": PAPER},  # hemingkx/SWIFT, utils.py:75-88; ConfLayers has a copy
    "chain": {"greedy": (1, 1, 1, 1), "sample": (1, 1, 1, 1)},
}
KSet = Annotated[
    Literal["paper", "code", "chain"]
    | Annotated[Sequence[Count], Fits("four numbers >= 1", lambda counts: len(counts) == len(BOUNDS))],
    "Candidates verified per position where the drafted token's probability is above 0.95, above 0.8, above 0.5, and "
    "lower; chain: one everywhere.",
]
Mode = Annotated[
    Literal["greedy", "sample"], "The run's decode.mode, on which the released code's numbers of candidates depend."
]


def widths(k_set: KSet, mode: Mode) -> tuple[tuple[float, int], ...]:
    """Return pairs (probability, candidates) for `LayerDraft.widths`, empty if no position has siblings."""
    counts = K_SETS[k_set][mode] if isinstance(k_set, str) else k_set
    return tuple(zip(BOUNDS, counts)) if max(counts) > 1 else ()
