"""Comparison of greedy speculative output with plain decoding: the first difference, a near-tie or a mismatch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ssd_bench.errors import ConfigError

LOGIT_TOLERANCE = {
    ("float64", "float64", "float64"): 1e-9,
    ("float32", "float32", "float32"): 1e-3,
    ("float32", "float32", "float16"): 2**-6,
    ("float32", "float32", "bfloat16"): 2**-4,
    ("float32", "bfloat16", "bfloat16"): 0.5,
    ("float16", "float16", "float16"): 2**-4,
    ("bfloat16", "bfloat16", "bfloat16"): 0.5,
}
"""Largest top-2 logit gap of a near-tie, by dtype of activations, inputs and KV cache; see `tolerance`."""


@dataclass(frozen=True)
class Verdict:
    """The result of comparing an output with the reference.

    Attributes:
        index: first position that differs; None if identical.
        gap: the reference's top-2 logit gap there; None if identical or no token was compared there.
        verdict: "identical", "tie" (near-tie: the gap is within rounding) or "bug" (mismatch).
    """

    index: int | None
    gap: float | None
    verdict: str


def classify(
    ids: Sequence[int], reference_ids: Sequence[int], gap_at: Callable[[int], float], tolerance: float
) -> Verdict:
    """Compare greedy output ids with plain autoregressive decoding's.

    Verification computes k + 1 positions in one pass, plain decoding one. The same sums are rounded in another order,
    so at near-ties of the two best logits the argmax may differ. Then the texts diverge: only the first difference is
    informative.

    Both outputs are cut at their first EOS and at the same max_new_tokens. If one is a prefix of the other, the arms
    disagreed only on whether to stop: a mismatch, since rounding cannot cause it.

    Args:
        ids, reference_ids: token ids of the method and the baseline.
        gap_at: recomputes the reference's top-2 logit gap at the position of a differing token.
        tolerance: largest gap of a near-tie.
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


def tolerance(activations: str, inputs: str, cache: str) -> float:
    """Return the largest top-2 logit gap at which a different token counts as rounding.

    Measured on SmolLM2-135M, over the first 600 tokens of a report: between a pass of one token and a pass of 10 or 64,
    the top-2 gap changes at most by 0.5 with bfloat16 activations, 0.27 with float32 activations whose products take
    bfloat16 inputs, 0.049 with float32 products and a bfloat16 cache (0.038 from 5,000 tokens on), 0.011 with a float16
    cache, and 3e-5 in float32. The tolerances are the next powers of two, wider for float32 and float64, to allow for
    deeper models; gaps that small are rare, so almost no mismatch is hidden.

    Args:
        activations, inputs: dtypes in `ssd_bench.model.arithmetic.Arithmetic`.
        cache: dtype of weights and KV cache.

    Raises:
        ConfigError: a combination without a tolerance.
    """
    gap = LOGIT_TOLERANCE.get((activations, inputs, cache))
    if gap is None:
        combinations = "; ".join(", ".join(names) for names in LOGIT_TOLERANCE)
        raise ConfigError("arithmetic", f"{activations}, {inputs}, {cache}", f"one of {combinations}")
    return gap
