"""Tokens per time (KnapSpec Eq. 4): what acceptance, draft length and the cost of passes come to."""

from __future__ import annotations

import math


def tpt(acceptance: float, draft_len: float, t_draft_ms: float, t_target_ms: float) -> float:
    """TPT of KnapSpec's Eq. 4, in tokens per second: [(1 - a^(g+1)) / (1 - a)] / (g t_draft + t_target), g real.

    Args:
        acceptance: a in [0, 1]; at 1 the numerator is g + 1.
        draft_len: g >= 0, tokens drafted per verification.
        t_draft_ms: milliseconds to draft one token.
        t_target_ms: milliseconds of one verification.
    """
    if acceptance >= 1:
        tokens = draft_len + 1
    elif acceptance <= 0:
        tokens = 1.0
    else:  # expm1 keeps the digits where a is close to 1
        tokens = -math.expm1((draft_len + 1) * math.log(acceptance)) / (1 - acceptance)
    return 1000 * tokens / (draft_len * t_draft_ms + t_target_ms)
