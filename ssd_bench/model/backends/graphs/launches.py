"""The kernels with their tile sizes, as functions of tensors."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ssd_bench.model.backends.graphs import kernels
from ssd_bench.model.operators import GROUP, HeadNorms, Matrix, RoundedMatrix
from ssd_bench.model.rope import Rotation

# (rows, gated, many columns) -> columns and K of a tile, warps, pipeline stages: the fastest on an H200 for the
# matrices of an 8B model.
MATRIX_TILES = {
    (16, False, False): (32, 128, 4, 6), (16, False, True): (32, 128, 4, 6), (16, True, False): (16, 128, 4, 5),
    (16, True, True): (64, 64, 4, 4), (64, False, False): (32, 128, 4, 5), (64, False, True): (64, 64, 4, 6),
    (64, True, False): (32, 64, 4, 6), (64, True, True): (64, 64, 4, 4),
}  # fmt: skip
MANY = 8192  # columns from which on they count as many
QUERY_TILES = {16: (16, 128, 4, 2), 64: (64, 128, 4, 2)}  # nodes -> rows of queries and of the cache, warps, stages
BRANCH_TILE = (64, 64, 4, 3)  # as above
SPLITS = 128  # most splits of a cache's capacity; programs attend to them in parallel
LEAST_SPLIT = 128  # rows of the smallest split


class Nodes(NamedTuple):
    """Nodes of a pass over up to C nodes, in device memory.

    Attributes:
        meta: int32: number of nodes, rows of the prefix, row of node 0, whether they are a chain, unread rows.
        depths: [C] int32, depths in a tree.
        mask: [C, C] uint8, ancestors of every node of a tree and itself.
    """

    meta: Tensor
    depths: Tensor
    mask: Tensor


def split_rows(capacity: int) -> int:
    """Return the rows of a split, a power of two; at most `SPLITS` splits."""
    return max(LEAST_SPLIT, triton.next_power_of_2(triton.cdiv(capacity, SPLITS)))


def _tile_nodes(size: int) -> int:
    return next(nodes for nodes in QUERY_TILES if size <= nodes)


def rms_norm(x: Tensor, norm: Tensor, out: Tensor, meta: Tensor, eps: float) -> None:
    """Launch `kernels.rms_norm` over the first n rows of x [C, K]."""
    nodes, width = x.shape
    kernels.rms_norm[(nodes,)](x, norm, out, meta, eps, K=width, WIDTH=triton.next_power_of_2(width), num_warps=8)


def linear(
    x: Tensor, weight: Matrix, bias: Tensor | None, out: Tensor, meta: Tensor, add: bool = False, gated: bool = False
) -> None:
    """Launch `kernels.linear` over the first n rows of x, with tiles for 16 or 64 rows."""
    nodes = _tile_nodes(len(x))
    scale = minimum = x  # not read
    columns, bits = out.shape[1], 0
    if isinstance(weight, RoundedMatrix):
        bits, depth = 8 if weight.minimum is None else 4, weight.width
        weight, scale, minimum = weight.values, weight.scale, x if weight.minimum is None else weight.minimum
    else:
        depth = weight.shape[1]
    width, step, warps, stages = MATRIX_TILES[nodes, gated, columns >= MANY]
    step = min(step, max(16, triton.next_power_of_2(depth)))
    if x.dtype == torch.float32:
        step, stages = min(step, 64), 2
    kernels.linear[(triton.cdiv(columns, width),)](
        x,
        weight,
        scale,
        minimum,
        x if bias is None else bias,
        out,
        meta,
        columns,
        depth,
        ADD=add,
        GATED=gated,
        BIAS=bias is not None,
        BITS=bits,
        GROUP=GROUP,
        ROWS=nodes,
        BN=width,
        BK=step,
        num_warps=warps,
        num_stages=stages,
    )


def rope_append(
    qkv: Tensor, rotation: Rotation, norms: HeadNorms, keys: Tensor, values: Tensor, q: Tensor, nodes: Nodes
) -> None:
    """Launch `kernels.rope_append` for a block: keys and values [Hkv, cap, D], q [n, Hq, D]."""
    (kv_heads, _, dim), heads = keys.shape, q.shape[1]
    kernels.rope_append[(len(qkv), heads + 2 * kv_heads)](
        qkv,
        rotation.cos,
        rotation.sin,
        q if norms.query is None else norms.query,
        q if norms.key is None else norms.key,
        keys,
        values,
        q,
        nodes.meta,
        nodes.depths,
        norms.eps,
        keys.stride(0),
        HEADS=heads,
        KV=kv_heads,
        DIM=dim,
        HALF=triton.next_power_of_2(dim // 2),
        Q_NORM=norms.query is not None,
        K_NORM=norms.key is not None,
        num_warps=1,
    )


def _attention_constants(q: Tensor, kv_heads: int, tiles: tuple[int, int, int, int]) -> dict[str, int]:
    """Return the constants of an attention's kernel, with smaller blocks in float32."""
    _, heads, dim = q.shape
    tile, block, warps, stages = tiles
    if q.dtype == torch.float32:
        block, stages = min(block, 32), 1
    sizes = {"HEADS": heads, "GROUP": heads // kv_heads, "DIM": dim, "WIDTH": max(16, triton.next_power_of_2(dim))}
    return sizes | {"TILE": tile, "BLOCK": block, "num_warps": warps, "num_stages": stages}


def attend(q: Tensor, keys: Tensor, values: Tensor, out: Tensor, parts: Tensor, stats: Tensor, nodes: Nodes) -> None:
    """Compute attention of q [C, Hq, D] over prefix and node rows in the cache -> out [C, Hq * D].

    Args:
        parts: [splits, C, Hq, D rounded up to a power of two], float32.
        stats: [2, splits, C, Hq], float32.
    """
    size, heads, dim = q.shape
    kv_heads, rows, splits, width = len(keys), split_rows(keys.shape[1]), parts.shape[0], parts.shape[3]
    constants = _attention_constants(q, kv_heads, QUERY_TILES[_tile_nodes(size)])
    tensors = q, keys, values, parts, stats, nodes.meta, nodes.mask
    kernels.attend[(kv_heads, triton.cdiv(size * constants["GROUP"], constants["TILE"]), splits)](
        *tensors, dim**-0.5, keys.stride(0), size, SPLIT=rows, **constants
    )
    kernels.combine[(size, heads)](
        parts, stats, out, nodes.meta, splits, size, HEADS=heads, DIM=dim, WIDTH=width, SPLIT=rows, num_warps=1
    )


def attend_branches(
    q: Tensor, keys: Tensor, values: Tensor, own_keys: Tensor, own_values: Tensor, meta: Tensor, length: int
) -> Tensor:
    """Compute attention of branches of `length` nodes: q [n, Hq, D], own rows [Hkv, n, D] -> [n, Hq * D]."""
    n, heads, dim = q.shape
    out, constants = torch.empty_like(q), _attention_constants(q, len(keys), BRANCH_TILE)
    tensors, strides = (q, keys, values, own_keys, own_values, out, meta), (keys.stride(0), own_keys.stride(0))
    kernels.attend_branches[(len(keys), triton.cdiv(n * constants["GROUP"], constants["TILE"]))](
        *tensors, dim**-0.5, *strides, LENGTH=length, **constants
    )
    return out.view(n, heads * dim)
