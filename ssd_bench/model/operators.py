"""Operators of a sublayer in public PyTorch, for any device and dtype; the reference for compiled operators.

`n` counts nodes; x is in the weight's dtype (accelerators), or float32 with a half-precision weight and cache (CPU).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from ssd_bench.model.arithmetic import Arithmetic
from ssd_bench.model.rope import Rotation

UPCAST_ELEMENTS = 1 << 24  # most weight elements held in float32 at a time
BRANCH_SCORES = 2**20  # most scores of branches held at a time
QUERY_CHUNK = 512  # nodes per attention call: bounds the [n, T] mask, which SDPA expands to floats

Matrix: TypeAlias = Any
"""A weight as the operators pack it; like a tensor it has shape, nbytes, device, data_ptr() and slices of rows."""
LARGEST_INT8 = 127
"""Largest magnitude of an 8-bit weight: -128 is unused, so that a matrix and its negative round alike."""
LARGEST_INT4 = 15
GROUP = 32
"""Inputs that share a scale and a minimum in 4 bits."""
ROUNDED_ROWS = 4096
"""Most float32 rows at once while rounding a matrix."""
Part: TypeAlias = tuple[int, int, int, Tensor | None]
Visibility: TypeAlias = list[Part] | Tensor | None
"""Rows that each node of a pass may attend to, in the form of the operators' class."""


class RoundedMatrix(NamedTuple):
    """A matrix [N, K] in 8 bits, symmetric with one scale per output, or in 4 bits, asymmetric in groups of 32 inputs.

    In 8 bits W[n, k] = scale[n] * values[n, k]. In 4 bits W[n, k] = scale[n, g] * v + minimum[n, g] for input k of
    group g, where v is in 0..15; the last group is padded with zeros.

    Attributes:
        values: [N, K] int8; or [N, groups, 16] uint8, where byte j has inputs j (low half) and j + 16 of a group.
        scale: [N] float32; or [N, groups] float16.
        minimum: [N, groups] float16; None in 8 bits.
        width: K.
    """

    values: Tensor
    scale: Tensor
    minimum: Tensor | None
    width: int

    @classmethod
    def of(cls, parts: Iterable[Tensor], bits: int) -> RoundedMatrix:
        """Round a matrix, in consecutive rows [n, K] of any floating dtype, to the nearest values in 8 or 4 bits."""
        rounded = [(_round_to_int8 if bits == 8 else _round_to_int4)(part.float()) for part in parts]
        values, scale, *minimum = (torch.cat(tensors) for tensors in zip(*(kept for kept, _ in rounded)))
        return cls(values, scale, minimum[0] if minimum else None, rounded[0][1])

    def split(self, rows: int) -> Iterator[RoundedMatrix]:
        """Yield parts of so many rows."""
        for values, scale, *minimum in zip(*(t.split(rows) for t in (*self[:2], self.minimum) if t is not None)):
            yield RoundedMatrix(values, scale, minimum[0] if minimum else None, self.width)

    def floats(self, dtype: torch.dtype) -> Tensor:
        """Return the dequantised weights [N, K], computed in float32 or float64."""
        wide = torch.promote_types(dtype, torch.float32)
        if self.minimum is None:
            return (self.values.to(wide) * self.scale.unsqueeze(1)).to(dtype)
        halves = torch.cat((self.values & LARGEST_INT4, self.values >> 4), dim=-1).to(wide)
        scale, minimum = (t.to(wide).unsqueeze(-1) for t in (self.scale, self.minimum))
        return halves.mul_(scale).add_(minimum).flatten(1)[:, : self.width].to(dtype)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (*self[:2], self.minimum) if t is not None)

    @property
    def device(self) -> torch.device:
        return self.values.device


def _round_to_int8(rows: Tensor) -> tuple[tuple[Tensor, ...], int]:
    """Return values and scales of float32 rows [n, K], and K: multiples of their largest magnitude over 127."""
    scale = rows.abs().amax(1).div_(LARGEST_INT8)
    # a row of zeros has scale 0, and any divisor gives its zeros
    values = (rows / torch.where(scale > 0, scale, 1).unsqueeze(1)).round_().to(torch.int8)
    return (values, scale), rows.shape[1]


def _round_to_int4(rows: Tensor) -> tuple[tuple[Tensor, ...], int]:
    """Return values, scales and minima of float32 rows [n, K], and K: 16 values between a group's extremes."""
    groups = F.pad(rows, (0, -rows.shape[1] % GROUP)).unflatten(1, (-1, GROUP))
    low, high = groups.aminmax(dim=-1)
    minimum = low.half()
    scale = ((high - minimum.float()) / LARGEST_INT4).half()
    divisor = torch.where(scale > 0, scale, 1).float().unsqueeze(-1)
    steps = (groups - minimum.float().unsqueeze(-1)).div_(divisor).round_().clamp_(0, LARGEST_INT4).to(torch.uint8)
    first, second = steps.chunk(2, dim=-1)
    return (first | second << 4, scale, minimum), rows.shape[1]


class HeadNorms(NamedTuple):
    """RMS norm weights [D] of a block's query and key heads, before the rotation; None: no norm."""

    query: Tensor | None
    key: Tensor | None
    eps: float


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the RMS norm over the last dimension, in float32 as in Hugging Face."""
    wide = x.float()  # x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019, arXiv:1910.07467)
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (weight * wide.to(x.dtype)).to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply RoPE in the rotate_half convention: x [n, H, D], cos and sin [n, D]."""
    first, second = x.chunk(2, dim=-1)  # dimensions j and j + D/2 are one pair, turned by one angle
    return x * cos.unsqueeze(1) + torch.cat((-second, first), dim=-1) * sin.unsqueeze(1)


def _read_rows(
    cache: Tensor, prefix_len: int, row: int, stop: int, unread: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    """Return rows [0, prefix_len) without the unread ones, then [row, stop), of [Hkv, cap, D]; a view if possible."""
    first, last = unread
    if first == last and row == prefix_len:
        return cache[:, :stop].to(dtype)
    return torch.cat((cache[:, :first], cache[:, last:prefix_len], cache[:, row:stop]), dim=1).to(dtype)


def _one_node(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return unmasked SDPA of q [1, Hq, D] over k, v [Hkv, T, D] -> [1, Hq * D]."""
    # The group's heads are query rows of one kv head, so that each cache row is read once: 1.8x faster at T=8192.
    folded = q.view(1, k.shape[0], -1, q.shape[2])
    return F.scaled_dot_product_attention(folded, k[None], v[None]).reshape(1, -1)


def _many_nodes(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    """Return SDPA of q [n, Hq, D] over k, v [Hkv, T, D] with mask visible [n, T]; None for the causal chain T = n."""
    n, heads, dim = q.shape
    # The group is an expanded (not copied) dimension: as fast on CPU as enable_gqa, without repeating the mask per
    # head as folding would, and accelerators keep their fused kernels although there is a mask.
    shape = (k.shape[0], heads // k.shape[0], k.shape[1], dim)
    grouped = q.view(n, shape[0], shape[1], dim).permute(1, 2, 0, 3)
    out = F.scaled_dot_product_attention(
        grouped, k[:, None].expand(shape), v[:, None].expand(shape), attn_mask=visible, is_causal=visible is None
    )
    return out.permute(2, 0, 1, 3).reshape(n, heads * dim)


class Operators:
    """Operators that compute in the activations' dtype, and round inputs only if the arithmetic does."""

    def __init__(self, arithmetic: Arithmetic):
        self.arithmetic = arithmetic

    def pack(self, weight: Tensor) -> Matrix:
        """Return a weight in the operators' layout: a matrix [out, in] as it is, a vector in the activations' dtype."""
        return weight if weight.dim() == 2 else weight.to(self.arithmetic.activations)

    def embed(self, W: Matrix, tokens: Tensor) -> Tensor:
        """Return rows of W [V, d] as residual streams: tokens [n] -> [n, d] in the activations' dtype."""
        return F.embedding(tokens, W).to(self.arithmetic.activations)

    def select(self, W: Matrix, rows: Tensor) -> Matrix:
        return W.index_select(0, rows)

    def round(self, W: Matrix, bits: int) -> Matrix:
        """Return a rounded copy of a matrix (`RoundedMatrix`), packed for this class."""
        return RoundedMatrix.of(W.split(ROUNDED_ROWS), bits)

    def linear(self, x: Tensor, W: Matrix, bias: Tensor | None = None) -> Tensor:
        """Apply a linear layer: x [n, K], W [N, K], bias [N] -> [n, N] in the dtype of x.

        With a rounded matrix, x is not rounded, but compiled products in 4 bits round it to 8 bits in groups of 32; in
        8 bits sums are scaled before the bias is added.
        """
        bias = None if bias is None else bias.to(x.dtype)
        if isinstance(W, RoundedMatrix):
            rounded = W.split(max(1, UPCAST_ELEMENTS // max(1, W.width)))
            if W.minimum is None:
                out = torch.cat([F.linear(x, part.values.to(x.dtype)) for part in rounded], dim=1)
                out.mul_(W.scale.to(x.dtype))
            else:
                out = torch.cat([F.linear(x, part.floats(x.dtype)) for part in rounded], dim=1)
            return out if bias is None else out.add_(bias)
        x = self._round(x)
        if W.dtype == x.dtype:
            return F.linear(x, self._round(W), bias)
        # upcasting W part by part keeps float32's accuracy, and is several times faster than half precision on a CPU
        step = max(1, UPCAST_ELEMENTS // max(1, W.shape[1]))
        if W.shape[0] <= step:
            return F.linear(x, self._round(W.to(x.dtype)), bias)
        parts = [F.linear(x, self._round(part.to(x.dtype))) for part in torch.split(W, step)]
        out = torch.cat(parts, dim=1)
        return out if bias is None else out.add_(bias)

    @property
    def _rounds(self) -> bool:
        return self.arithmetic.inputs != self.arithmetic.activations

    def _round(self, operand: Tensor) -> Tensor:
        return operand.to(self.arithmetic.inputs).to(operand.dtype) if self._rounds else operand

    def norm_linear(self, x: Tensor, norm_w: Tensor, eps: float, W: Matrix, bias: Tensor | None = None) -> Tensor:
        """Apply a linear layer to the RMS norm of x: x [n, K], norm_w [K], W [N, K], bias [N] -> [n, N]."""
        return self.linear(_rms_norm(x, norm_w, eps), W, bias)

    def top(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return each row's largest of float32 logits [n, V] and its index, the lowest among equals: [n]."""
        best, ids = logits.max(-1)
        return best, ids

    def mass(self, logits: Tensor, best: Tensor) -> Tensor:
        """Return the sums [n] of exp(logits - best): logits [n, V], best [n].

        The softmax probability of an entry equal to `best` is 1 / sum.
        """
        return logits.sub(best.unsqueeze(-1)).exp_().sum(-1)

    def linear_add_(self, residual: Tensor, x: Tensor, W: Matrix, bias: Tensor | None = None) -> None:
        """Add a linear layer in place: residual [n, N] += x [n, K] W [N, K] + bias [N]."""
        residual.add_(self.linear(x, W, bias))

    def swiglu_linear_add_(self, residual: Tensor, gate_up: Tensor, W: Matrix, bias: Tensor | None = None) -> None:
        """Add the MLP's second half in place: residual [n, N] += W [N, I] (silu(g) * u) + bias, gate_up [n, 2I]."""
        gate, up = gate_up.chunk(2, dim=-1)
        residual.add_(self.linear(F.silu(gate).mul_(up), W, bias))

    def rope_append(
        self, qkv: Tensor, rotation: Rotation, norms: HeadNorms, keys: Tensor, values: Tensor, row: int
    ) -> Tensor:
        """Rotate q and k (after an optional norm per head), write k and v to cache rows [row, row + n) and return q.

        qkv [n, (Hq + 2 Hkv) * D]; rotation of n positions; keys, values [Hkv, cap, D]; the result is [n, Hq, D]. The
        cache holds rotated keys: a row keeps its position wherever it is moved.
        """
        n, kv_heads, dim = qkv.shape[0], keys.shape[0], keys.shape[2]
        heads = qkv.view(n, -1, dim)
        q, k, v = torch.split(heads, [heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
        cos, sin = rotation.cos.to(qkv.dtype), rotation.sin.to(qkv.dtype)
        if norms.query is not None:
            q = _rms_norm(q, norms.query, norms.eps)
        if norms.key is not None:
            k = _rms_norm(k, norms.key, norms.eps)
        keys[:, row : row + n] = _rotate(k, cos, sin).transpose(0, 1)
        values[:, row : row + n] = v.transpose(0, 1)
        return _rotate(q, cos, sin)

    def visibility(self, n: int, prefix_len: int, mask: Tensor | None, device: torch.device) -> Visibility:
        """Return the rows that each node may attend to, computed once for all attentions of a pass.

        Node i attends to the `prefix_len` prefix rows that are read, and to row + j for every node j with mask[i, j].
        The tree mask, bool or uint8 [n, n] on `device`, marks a node's ancestors and itself; without a mask the nodes
        are a chain, j <= i.

        Returns:
            In this class, per chunk of nodes: (first node, last node + 1, number of node rows read, mask over the
            prefix and these rows).
        """
        if n == 1 or (mask is None and prefix_len == 0):
            return [(0, n, n, None)]
        index = torch.arange(n, device=device)
        parts: list[Part] = []
        for i in range(0, n, QUERY_CHUNK):
            j = min(n, i + QUERY_CHUNK)
            # later nodes of a chain are invisible to this chunk: leave them out
            mask_of_nodes = index[:j] <= index[i:j, None] if mask is None else mask[i:j].bool()
            parts.append((i, j, mask_of_nodes.shape[1], F.pad(mask_of_nodes, (prefix_len, 0), value=True)))
        return parts

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        prefix_len: int,
        row: int,
        visibility: Visibility,
        unread: tuple[int, int] = (0, 0),
    ) -> Tensor:
        """Compute attention with scale 1/sqrt(D): q [n, Hq, D], keys and values [Hkv, cap, D] -> [n, Hq * D].

        Args:
            row: cache row of node 0, >= prefix_len; no node sees the rows between prefix and nodes.
            visibility: result of this class's `visibility` for the number of prefix rows read.
            unread: range of prefix rows outside a window, which no node reads.
        """
        n = q.shape[0]
        k = _read_rows(keys, prefix_len, row, row + n, unread, q.dtype)
        v = _read_rows(values, prefix_len, row, row + n, unread, q.dtype)
        prefix_len -= unread[1] - unread[0]  # k and v are without the unread rows
        if n == 1 and not self._rounds:
            return _one_node(q, k, v)
        assert isinstance(visibility, list)
        many_nodes = self._many_rounded_nodes if self._rounds else _many_nodes
        parts = [
            many_nodes(q[i:j], k[:, : prefix_len + node_rows], v[:, : prefix_len + node_rows], visible)
            for i, j, node_rows, visible in visibility
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _many_rounded_nodes(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
        """Compute `_many_nodes` with rounded queries and softmax weights, which SDPA would not round."""
        n, heads, dim = q.shape
        if visible is None:
            visible = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
        grouped = self._round(q).view(n, len(k), heads // len(k), dim).transpose(0, 1)
        out = torch.empty_like(grouped)
        for h in range(len(k)):  # one head at a time: the scores of all heads would be large
            scores = (grouped[h] @ k[h].t()).mul_(dim**-0.5).masked_fill_(~visible[:, None], float("-inf"))
            weights = scores.sub_(scores.amax(-1, keepdim=True)).exp_()
            out[h] = self._round(weights) @ v[h] / weights.sum(-1, keepdim=True)
        return out.transpose(0, 1).reshape(n, heads * dim)

    def attend_branches(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        prefix_len: int,
        own_keys: Tensor,
        own_values: Tensor,
        branches: int,
    ) -> Tensor:
        """Compute `attend` for B branches of r nodes over one prefix: q [B * r, Hq, D] -> [B * r, Hq * D].

        A node sees cache rows [0, prefix_len) and, causally, its own branch's rows in own_keys and own_values
        [Hkv, B * r, D]. Scores over the prefix, which is never copied, are one matrix product; scores over own rows one
        per branch. One kv head and a bounded number of branches at a time keep them small.
        """
        n, n_heads, dim = q.shape
        n_kv = len(keys)
        b, r, group, dtype = branches, n // branches, n_heads // n_kv, q.dtype
        # [Hkv, B, G*r, D], so that the G query heads of a KV head share one product
        q = (
            self._round(q).view(b, r, n_kv, group, dim).permute(2, 0, 3, 1, 4).reshape(n_kv, b, group * r, dim)
            * dim**-0.5
        )
        out = torch.empty_like(q)
        hidden = torch.ones(r, r, dtype=torch.bool, device=q.device).triu(1).repeat(group, 1)
        step = max(1, BRANCH_SCORES // (group * r * (prefix_len + r)))  # branches at a time
        for h in range(n_kv):
            pk, pv = (cache[h, :prefix_len].to(dtype) for cache in (keys, values))
            for at in range(0, b, step):
                part = q[h, at : at + step]
                rows = len(part) * group * r
                k, v = (cache[h].view(b, r, dim)[at : at + step].to(dtype) for cache in (own_keys, own_values))
                # softmax over both parts with one maximum: far over the prefix, near over the branch's own rows
                far = part.reshape(rows, dim) @ pk.t()
                near = torch.bmm(part, k.transpose(1, 2)).masked_fill_(hidden, float("-inf")).view(rows, r)
                highest = near.amax(-1, keepdim=True)
                if prefix_len:
                    highest = torch.maximum(highest, far.amax(-1, keepdim=True))
                far.sub_(highest).exp_()
                near.sub_(highest).exp_()
                total = far.sum(-1, keepdim=True).add_(near.sum(-1, keepdim=True))
                attended = (self._round(far) @ pv).view(part.shape)
                attended = attended.baddbmm_(self._round(near).view(-1, group * r, r), v)
                torch.div(attended, total.view(-1, group * r, 1), out=out[h, at : at + step])
        return out.view(n_kv, b, group, r, dim).permute(1, 3, 0, 2, 4).reshape(n, n_heads * dim)
