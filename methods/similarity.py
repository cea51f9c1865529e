"""Similarity of candidate branches' streams to the full model's, which layer searches maximise."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def directions(states: Tensor) -> Tensor:
    """Return the full model's streams [..., d] as float32 unit vectors, for `Probe.mean_cosine`."""
    return F.normalize(states.float(), dim=-1)
