"""How close the streams of candidate branches are to the full model's: what layer searches maximise."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def mean_cosine(branches: Tensor, target: Tensor) -> Tensor:
    """Mean over tokens of the cosine between branches [B, r, d] and the full model's stream [r, d].

    Returns:
        [B] float32, whatever the streams' dtype: half precision would make ties of near-equal branches.
    """
    branches = branches.float()
    products = torch.einsum("brd,rd->br", branches, F.normalize(target.float(), dim=-1))
    return (products / torch.linalg.vector_norm(branches, dim=-1).clamp_(min=1e-12)).mean(-1)
