"""pass@k: probability that at least one of k programs passes its tests."""

from __future__ import annotations

from math import comb


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the unbiased estimate from n sampled programs, c of which pass: 1 - C(n - c, k) / C(n, k).

    It is the share of subsets of k samples with a passing one (Chen et al. 2021, Eq. 1, arXiv:2107.03374). The plug-in
    estimate 1 - (1 - c/n)^k is too low.

    Raises:
        ValueError: unless 0 <= c <= n and 1 <= k <= n.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} has no estimate from {c} of {n} samples")
    return 1.0 - comb(n - c, k) / comb(n, k)
