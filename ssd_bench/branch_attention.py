"""Attention of many continuations of one prefix, which a search runs side by side."""

import torch
from torch import Tensor

SCORES = 2**20  # attention scores held at a time


def attend_branches(query: Tensor, prefix_k: Tensor, prefix_v: Tensor, own_k: Tensor, own_v: Tensor, b: int) -> Tensor:
    """Attention of B branches of r nodes each over one shared prefix and, causally, their own rows.

    Scores over the prefix, which is never copied per branch, are one matrix product; those over own rows one per
    branch. One KV head and a bounded number of branches at a time keep the score matrix small.

    Args:
        query: [B*r, Hq, D]; prefix_k, prefix_v: [Hkv, p, D]; own_k, own_v: [Hkv, B*r, D].

    Returns:
        [B*r, Hq*D].
    """
    n, n_heads, dim = query.shape
    n_kv, prefix_len, _ = prefix_k.shape
    r, group, dtype = n // b, n_heads // n_kv, query.dtype
    # [Hkv, B, G*r, D], so that the G query heads of a KV head share one product
    q = query.view(b, r, n_kv, group, dim).permute(2, 0, 3, 1, 4).reshape(n_kv, b, group * r, dim) * dim**-0.5
    out = torch.empty_like(q)
    hidden_from = torch.ones(r, r, dtype=torch.bool, device=q.device).triu(1).repeat(group, 1)
    step = max(1, SCORES // (group * r * (prefix_len + r)))  # branches at a time
    for h in range(n_kv):
        pk, pv = prefix_k[h].to(dtype), prefix_v[h].to(dtype)
        for at in range(0, b, step):
            part = q[h, at : at + step]
            rows = len(part) * group * r
            k, v = (own[h].view(b, r, dim)[at : at + step].to(dtype) for own in (own_k, own_v))
            far = part.reshape(rows, dim) @ pk.t()
            near = torch.bmm(part, k.transpose(1, 2)).masked_fill_(hidden_from, float("-inf")).view(rows, r)
            top = near.amax(-1, keepdim=True)
            if prefix_len:
                top = torch.maximum(top, far.amax(-1, keepdim=True))
            far.sub_(top).exp_()
            near.sub_(top).exp_()
            total = far.sum(-1, keepdim=True).add_(near.sum(-1, keepdim=True))
            seen = (far @ pv).view(part.shape).baddbmm_(near.view(-1, group * r, r), v)
            torch.div(seen, total.view(-1, group * r, 1), out=out[h, at : at + step])
    return out.view(n_kv, b, group, r, dim).permute(1, 3, 0, 2, 4).reshape(n, n_heads * dim)
