"""Types of settings that several methods share, with the allowed values and the help text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from ssd_bench.settings import Fits, Probability, Range, Rate, Whole

Name = Annotated[str, "Name in tables, that of the preset."]
ReusePrefix = Annotated[bool, "Verify from the first skipped sublayer on the states that drafting left."]
Calibration = Annotated[int, Range(1, what="a number of prompts"), "Prompts of each domain to search or calibrate on."]
NewTokens = Annotated[
    int, Range(2, note=": the first comes from the prefill"), "Tokens decoded per prompt and candidate."
]
DraftLen = Annotated[int, Range(1, note=" (method=ar drafts nothing)"), "K, largest number of drafted tokens per step."]
LONGEST_PRICED = 1000  # longest draft of which costs are tabulated, one entry per length
DraftLenGrid = Annotated[
    Sequence[Whole],
    Fits(
        f"two lengths, 0 <= first <= second <= {LONGEST_PRICED}",
        lambda grid: len(grid) == 2 and grid[0] <= grid[1] <= LONGEST_PRICED,
    ),
    "Smallest and largest γ at which tokens per time are compared.",
]
StopBelow = Annotated[Probability, "γ: drafting stops after a token less likely than γ, which stays in the draft."]
Thresholds = Annotated[
    Sequence[float],
    Fits(
        "ascending probabilities in (0, 1)",
        lambda thresholds: all(low < high for low, high in zip([0.0, *thresholds], [*thresholds, 1.0])),
    ),
]
TargetRate = Annotated[Rate | None, "α*, acceptance rate below which γ rises; null keeps γ fixed."]


WIDEST = 2**31 - 1  # records hold the numbers of a window as int32
WINDOW = f"sinks >= 0 and recent >= 1, each at most {WIDEST}"


def is_window(pair: Sequence[int]) -> bool:
    return len(pair) == 2 and 0 <= pair[0] <= WIDEST and 1 <= pair[1] <= WIDEST


DraftWindow = Annotated[
    Sequence[int],
    Fits(WINDOW, is_window),
    "Window of a draft's attentions, [sinks, recent]: they read the first `sinks` and the last `recent` positions.",
]
DraftWindows = Annotated[Sequence[Sequence[int]], Fits(f"pairs of {WINDOW}", lambda pairs: all(map(is_window, pairs)))]
DraftWeights = Annotated[
    Literal["full", "int8", "int4"],
    "Weights that drafts read: as they were loaded (full), rounded to 8 bits with a scale for each output (int8), or "
    "to 4 bits with a scale and a minimum for each group of 32 inputs (int4).",
]
