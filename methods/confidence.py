"""From the outputs of modules to the blocks that ConfLayers skips: confidences (Eqs. 1-4) and the rule (Eqs. 5-10).

Amer et al., arXiv 2604.14612; which outputs, and when, is the method's (`methods.conflayers`).
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

CLAMP = math.log(torch.finfo(torch.float32).tiny), 88.7  # where exp stays within float32


def entropies(scores: Tensor) -> Tensor:
    """Entropy in nats of the softmax of every row of scores [n, V] (Eqs. 1-2), [n] float32."""
    probabilities = scores.float().clamp(*CLAMP).softmax(-1)
    return -(probabilities * (probabilities + 1e-12).log()).sum(-1)


def confidence(entropy: Tensor, size: int) -> Tensor:
    """c = 1 - mean entropy / ln size (Eqs. 3-4), of entropies [n] over `size` outcomes, a scalar in [0, 1]."""
    return 1 - entropy.mean() / math.log(size)


@dataclass(frozen=True)
class Rule:
    """From confidences to a set of blocks; every array is over blocks 1 .. L-2.

    With `dtype` float16 arrays and reductions round as in the released code on NumPy 1.26; scalars are double.

    Args:
        n_layers: L.
        dtype: of the arrays.
        base_window: w0.
        window_scale: V for one leading gradient.
        max_scale: largest V; None: no limit.
        centred: the rescaled gradient is moved so that its mean is 0.5 (code only).
    """

    n_layers: int
    dtype: type[np.floating[Any]]
    base_window: int
    window_scale: int
    max_scale: int | None
    centred: bool = True

    def choose(self, confidences: Tensor, lam: float) -> list[int]:
        """The blocks to skip, ascending, by the confidences [2 (L - 2)] of attentions and MLPs in turn."""
        return self.skipped(self.scores(confidences), lam)

    def scores(self, confidences: Tensor) -> Array:
        """ĉ of the blocks, by the confidences [2 (L - 2)] of attentions and MLPs in turn."""
        modules = confidences.cpu().numpy().astype(self.dtype)
        return self.normalised(modules[0::2] + modules[1::2])

    def calibrated(self, confidences: Tensor, count: int) -> float | None:
        """λ at which the rule skips `count` of the blocks or, where some are equal, as few more as can be.

        In the middle between the value at which the next block would be skipped too and the one at which one of
        these no longer is. None where no λ skips as many: confidences are equal.
        """
        found = self.scores(confidences)
        scores, means, deviations = (each.astype(np.float64) for each in (found, *self.neighbours(found)))
        varied = deviations > 0  # a block among equal neighbours is skipped by every λ or by none
        always = int((scores < means)[~varied].sum())
        limits = np.sort((means - scores)[varied] / deviations[varied])[::-1]  # a block is skipped by a λ below its own
        wanted = count - always
        if wanted > len(limits):
            return None
        if wanted <= 0:
            return float(limits[0] + 1) if len(limits) else 0.0
        within = limits[wanted - 1]
        beyond = limits[limits < within]
        return float((within + (beyond[0] if len(beyond) else within - 1)) / 2)

    def shown(self, confidences: Tensor, lam: float) -> dict[str, Array]:
        """What `choose` decides by: a block is skipped whose confidence is below its threshold."""
        scores = self.scores(confidences)
        means, deviations = self.neighbours(scores)
        return {
            "confidence": scores, "gradient": self.rescaled(np.gradient(np.gradient(scores))),
            "window": np.array(self.windows(scores), self.dtype),
            "threshold": means.astype(np.float64) - lam * deviations.astype(np.float64),
        }  # fmt: skip

    def normalised(self, scores: Array) -> Array:
        """ĉ = (c - mean) / (std + 1e-6) (Eq. 5), exactly 0 where all c are equal."""
        if scores.min() == scores.max():
            return np.zeros_like(scores)
        return (scores - scores.mean()) / self.dtype(float(scores.std()) + 1e-6)

    def windows(self, scores: Array) -> list[int]:
        """W = w0 + floor(V g l / L) (Eqs. 6-7) for the normalised confidences; V grows with the equal gradients."""
        gradient = np.gradient(np.gradient(scores))
        count = int((gradient != gradient[0]).argmax()) or len(gradient)
        scale = self.window_scale * count
        if self.max_scale is not None:
            scale = min(scale, self.max_scale)
        shares = enumerate(self.rescaled(gradient).tolist(), start=1)
        return [self.base_window + int(scale * share * (block / self.n_layers)) for block, share in shares]

    def rescaled(self, gradient: Array) -> Array:
        """The gradient mapped to [0, 1], if `centred` then so that its mean is 0.5; 0.5 everywhere if constant."""
        low, spread = gradient.min(), float(gradient.max() - gradient.min())
        if spread == 0:
            return np.full_like(gradient, 0.5)
        scaled = (gradient - low) / self.dtype(spread + 1e-8)
        if not self.centred:
            return np.clip(scaled, 0, 1)
        mean = scaled.mean()
        slope = min(0.5 / float(scaled.max() - mean), 0.5 / float(mean - scaled.min()))
        return np.clip(scaled * self.dtype(slope) + self.dtype(0.5 - slope * float(mean)), 0, 1)

    def neighbours(self, scores: Array) -> tuple[Array, Array]:
        """Mean and population standard deviation of the scores in the window around each block, itself left out."""
        stats = []
        for i, width in enumerate(self.windows(scores)):
            near = np.concatenate([scores[max(0, i - width // 2) : i], scores[i + 1 : i + width // 2 + 1]])
            stats.append((near.mean(), near.std()))
        means, deviations = zip(*stats)
        return np.array(means, self.dtype), np.array(deviations, self.dtype)

    def skipped(self, scores: Array, lam: float) -> list[int]:
        """The blocks with ĉ < mean - λ std (Eqs. 8-10), compared in double precision."""
        means, deviations = self.neighbours(scores)
        below = scores.astype(np.float64) < means.astype(np.float64) - lam * deviations.astype(np.float64)
        return (np.flatnonzero(below) + 1).tolist()
