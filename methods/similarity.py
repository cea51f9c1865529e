"""Similarity of candidate branches' streams to the full model's, which layer searches maximise."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def directions(states: Tensor) -> Tensor:
    """Return the full model's streams [..., d] as float32 unit vectors, for `mean_cosine`."""
    return F.normalize(states.float(), dim=-1)


def mean_cosine(branches: Tensor, direction: Tensor) -> Tensor:
    """Return the mean over r tokens of the cosine between branches [B, r, d] and the full model's `directions` [r, d].

    Returns:
        [B] float32, whatever the streams' dtype: in half precision near-equal branches would tie.
    """
    branches = branches.float()
    products = torch.bmm(branches.transpose(0, 1), direction.unsqueeze(-1)).squeeze(-1).t()
    return (products / torch.linalg.vector_norm(branches, dim=-1).clamp_(min=1e-12)).mean(-1)
