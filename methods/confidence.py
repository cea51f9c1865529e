"""Confidences of modules (Eqs. 1-4) and the rule (Eqs. 5-10) by which ConfLayers skips blocks.

Source: Amer et al., arXiv 2604.14612. `methods.conflayers` decides on which outputs the rule is applied, and when.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.floating[Any]]

CLAMP = math.log(torch.finfo(torch.float32).tiny), 88.7  # range in which exp stays within float32


def entropies(scores: Tensor) -> Tensor:
    """Return the softmax entropies [n] float32, in nats, of scores [n, V] (Eqs. 1-2)."""
    probabilities = scores.float().clamp(*CLAMP).softmax(-1)
    return -(probabilities * (probabilities + 1e-12).log()).sum(-1)


def confidence(entropy: Tensor, size: int) -> Tensor:
    """Return c = 1 - mean entropy / ln size in [0, 1] (Eqs. 3-4), for entropies [n] over `size` outcomes."""
    return 1 - entropy.mean() / math.log(size)


@dataclass(frozen=True)
class Rule:
    """The rule that chooses blocks by confidences; arrays are over blocks 1 .. L-2.

    With `dtype` float16 arrays and reductions round as in the released code on NumPy 1.26; scalars are double.

    Args:
        n_layers: L.
        base_window: w0.
        window_scale: V per leading equal gradient.
        max_scale: largest V; None: no limit.
        centred: map the rescaled gradient to mean 0.5 (code only).
    """

    n_layers: int
    dtype: type[np.floating[Any]]
    base_window: int
    window_scale: int
    max_scale: int | None
    centred: bool = True

    def choose(self, confidences: Tensor, lam: float) -> list[int]:
        """Return the blocks to skip, ascending; arguments as in `scores`."""
        return self.skipped_blocks(self.scores(confidences), lam)

    def scores(self, confidences: Tensor) -> Array:
        """Return ĉ of the blocks from confidences [2 (L - 2)], attentions and MLPs in turn."""
        modules = confidences.cpu().numpy().astype(self.dtype)
        return self.normalise(modules[0::2] + modules[1::2])

    def calibrated_lambda(self, confidences: Tensor, count: int) -> float | None:
        """Return a λ at which the rule skips `count` blocks or, where some are equal, as few more as possible.

        It is midway between the λ that adds the next block and the λ that drops one. None if equal confidences rule
        this out.
        """
        rounded = self.scores(confidences)
        scores, means, deviations = (a.astype(np.float64) for a in (rounded, *self.neighbour_statistics(rounded)))
        varied = deviations > 0  # a block among equal neighbours is skipped by every λ or by none
        always = int((scores < means)[~varied].sum())
        # ĉ < mean - λ std holds for λ < (mean - ĉ) / std: a block is skipped by every λ below its limit
        limits = np.sort((means - scores)[varied] / deviations[varied])[::-1]
        n_varied = count - always
        if n_varied > len(limits):
            return None
        if n_varied <= 0:
            return float(limits[0] + 1) if len(limits) else 0.0
        last = limits[n_varied - 1]
        lower = limits[limits < last]
        return float((last + (lower[0] if len(lower) else last - 1)) / 2)

    def decision(self, confidences: Tensor, lam: float) -> dict[str, Array]:
        """Return the arrays behind `choose`: blocks with confidence below their threshold are skipped."""
        scores = self.scores(confidences)
        means, deviations = self.neighbour_statistics(scores)
        return {
            "confidence": scores,
            "gradient": self.rescale(np.gradient(np.gradient(scores))),
            "window": np.array(self.windows(scores), self.dtype),
            "threshold": means.astype(np.float64) - lam * deviations.astype(np.float64),
        }

    def normalise(self, scores: Array) -> Array:
        """Return ĉ = (c - mean) / (std + 1e-6) (Eq. 5), exactly 0 if all c are equal."""
        if scores.min() == scores.max():
            return np.zeros_like(scores)
        return (scores - scores.mean()) / self.dtype(float(scores.std()) + 1e-6)

    def windows(self, scores: Array) -> list[int]:
        """Return the window widths W = w0 + floor(V g l / L) (Eqs. 6-7) of normalised confidences.

        g is the rescaled second difference at block l; V is `window_scale` per leading equal second difference.
        """
        gradient = np.gradient(np.gradient(scores))
        count = int((gradient != gradient[0]).argmax()) or len(gradient)  # leading equal ones; argmax is 0 if all are
        scale = self.window_scale * count
        if self.max_scale is not None:
            scale = min(scale, self.max_scale)
        shares = enumerate(self.rescale(gradient).tolist(), start=1)
        return [self.base_window + int(scale * share * (block / self.n_layers)) for block, share in shares]

    def rescale(self, gradient: Array) -> Array:
        """Return the gradient mapped to [0, 1], with mean 0.5 if `centred`; 0.5 if it is constant."""
        low, spread = gradient.min(), float(gradient.max() - gradient.min())
        if spread == 0:
            return np.full_like(gradient, 0.5)
        scaled = (gradient - low) / self.dtype(spread + 1e-8)
        if not self.centred:
            return np.clip(scaled, 0, 1)
        mean = scaled.mean()
        # the steepest line through (mean, 0.5) that stays within [0, 1]
        slope = min(0.5 / float(scaled.max() - mean), 0.5 / float(mean - scaled.min()))
        return np.clip(scaled * self.dtype(slope) + self.dtype(0.5 - slope * float(mean)), 0, 1)

    def neighbour_statistics(self, scores: Array) -> tuple[Array, Array]:
        """Return mean and population standard deviation of the scores in each block's window, without the block."""
        stats = []
        for i, width in enumerate(self.windows(scores)):
            near = np.concatenate([scores[max(0, i - width // 2) : i], scores[i + 1 : i + width // 2 + 1]])
            stats.append((near.mean(), near.std()))
        means, deviations = zip(*stats)
        return np.array(means, self.dtype), np.array(deviations, self.dtype)

    def skipped_blocks(self, scores: Array, lam: float) -> list[int]:
        """Return the blocks with ĉ < mean - λ std (Eqs. 8-10), compared in double precision."""
        means, deviations = self.neighbour_statistics(scores)
        below = scores.astype(np.float64) < means.astype(np.float64) - lam * deviations.astype(np.float64)
        return (np.flatnonzero(below) + 1).tolist()
