"""Tokens per time (KnapSpec Eq. 4): throughput from acceptance, draft length and times of passes."""

from __future__ import annotations

import math


def tpt(acceptance: float, draft_len: float, t_draft_ms: float, t_target_ms: float) -> float:
    """Return the TPT of KnapSpec's Eq. 4, in tokens per second: [(1 - a^(g+1)) / (1 - a)] / (g t_draft + t_target).

    Args:
        acceptance: a in [0, 1], probability that a drafted token is accepted if all earlier ones were.
        draft_len: g >= 0, tokens drafted per verification; not necessarily an integer.
        t_draft_ms, t_target_ms: time of one drafted token, and of one verification.
    """
    # expected tokens of a step: 1 + a + ... + a^g = (1 - a^(g+1)) / (1 - a), the target's own token included
    if acceptance >= 1:
        tokens = draft_len + 1
    elif acceptance <= 0:
        tokens = 1.0
    else:  # expm1 keeps the digits of 1 - a^(g+1) where a is close to 1
        tokens = -math.expm1((draft_len + 1) * math.log(acceptance)) / (1 - acceptance)
    return 1000 * tokens / (draft_len * t_draft_ms + t_target_ms)
