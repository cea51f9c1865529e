"""Is greedy speculative output what plain decoding gives? Finds the first difference and says rounding or bug."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ssd_bench.errors import ConfigError

LOGIT_TOLERANCE = {"float64": 1e-9, "float32": 1e-3, "bfloat16": 0.5, "float16": 0.0625}
"""Largest top-2 logit gap that rounding may turn over, per compute dtype; see `tolerance`."""


@dataclass(frozen=True)
class Verdict:
    """How an output compares with the reference.

    Attributes:
        index: first position that differs; None if the outputs are identical.
        gap: the reference's top-2 logit gap at that position; None if identical or if no token was compared there.
        verdict: "identical", "tie" (the gap is within rounding) or "bug".
    """

    index: int | None
    gap: float | None
    verdict: str


def classify(
    ids: Sequence[int], reference_ids: Sequence[int], gap_at: Callable[[int], float], tolerance: float
) -> Verdict:
    """Compare greedy output ids with those of plain autoregressive decoding.

    Verification computes k + 1 positions in one pass where plain decoding computes one, so the same sum is rounded in
    another order; where the two best logits nearly tie, the argmax may then legitimately differ. After such a
    position the two texts are different texts, so only the first difference says anything.

    Both outputs are cut at their first EOS and at the same max_new_tokens. If one is a prefix of the other, the arms
    agreed on every token, the last one included, and then disagreed on whether to stop: rounding cannot do that, so
    it is a bug of the stop rules whatever the logits are.

    Args:
        ids, reference_ids: emitted token ids of the method and of the baseline.
        gap_at: recomputes the reference's top-2 logit gap at an output position; called only for a differing token.
        tolerance: largest gap in logits that counts as a tie.
    """
    ids, reference_ids = list(ids), list(reference_ids)
    if ids == reference_ids:
        return Verdict(None, None, "identical")
    shorter = min(len(ids), len(reference_ids))
    index = next((i for i in range(shorter) if ids[i] != reference_ids[i]), shorter)
    if index == shorter:
        return Verdict(index, None, "bug")
    gap = float(gap_at(index))
    return Verdict(index, gap, "tie" if gap <= tolerance else "bug")  # a NaN gap is no tie


def tolerance(dtype_name: str) -> float:
    """The top-2 logit gap, in logits, up to which a different token counts as rounding.

    Measured on a random 30-block Llama (d = 576), one token at a time against ten at once: the root-mean-square
    difference of a logit is 0.04 of the logits' standard deviation in bfloat16, 0.005 in float16, 8e-6 in float32 and
    4e-16 in float64. With a standard deviation of 3, as trained models have, and sqrt(2) for the difference of two
    logits, three such deviations are 0.5, 0.06, 1e-4 and 6e-15: the half-precision tolerances. float32 and float64
    are given a wide margin, for deeper models, which hides almost nothing, as gaps that small are rare.

    Raises:
        ConfigError: a dtype without a tolerance.
    """
    if dtype_name not in LOGIT_TOLERANCE:
        raise ConfigError("dtype", dtype_name, f"one of {', '.join(sorted(LOGIT_TOLERANCE))}")
    return LOGIT_TOLERANCE[dtype_name]
