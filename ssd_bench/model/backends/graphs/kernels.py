"""Triton kernels of a decoder's sublayers for few nodes; every weight is read from memory once.

One captured graph serves every pass: the kernels read all that changes from the device vector `meta` = (n, prefix_len,
row, chain, unread_begin, unread_end):

- n: number of nodes, the first n rows of a buffer; later rows are not computed.
- prefix_len: committed cache rows before the nodes.
- row: cache row of node 0; node i writes its keys and values to row + i.
- chain: 1 if node i sees nodes 0..i and is at position prefix_len + i; 0 if it sees the nodes in its row of the tree
  mask `mask` [capacity, capacity] (uint8), and is at position prefix_len + depths[i].
- unread_begin, unread_end: range of committed rows that no node sees; only `attend` loads these two.

For equal tile sizes a node's result has the same bits whatever the other nodes are: sums over K and over cache rows run
in one order.
"""

import triton
import triton.language as tl

HIDDEN = tl.constexpr(float("-inf"))
PRECISION = tl.constexpr("ieee")  # of products of float32; others are exact in float32 sums


@triton.jit
def rms_norm(x_ptr, norm_ptr, out_ptr, meta_ptr, eps, K: tl.constexpr, WIDTH: tl.constexpr):
    """Compute the RMS norm of x [n, K] in float32; one program per node. WIDTH: a power of two, at least K."""
    at = tl.arange(0, WIDTH)
    within = at < K
    factor = tl.load(norm_ptr + at, mask=within, other=0.0).to(tl.float32)
    node = tl.program_id(0)
    if node < tl.load(meta_ptr):
        x = tl.load(x_ptr + node * K + at, mask=within, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x, 0) / K + eps)
        tl.store(out_ptr + node * K + at, (x * scale * factor).to(out_ptr.dtype.element_ty), mask=within)


@triton.jit
def linear(
    x_ptr,
    w_ptr,
    scale_ptr,
    minimum_ptr,
    bias_ptr,
    out_ptr,
    meta_ptr,
    N,
    K: tl.constexpr,
    ADD: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Compute out [n, N] (+)= f(x [n, K] W^T + bias); one program per tile of BN columns, for all rows.

    GATED: W is [2N, K], the gate's rows first; f = silu(gate) * up. ADD: in place on out, a residual stream. BITS: 8,
    row r of W is scale[r] times 8-bit integers, which both 16-bit types hold exactly; 4, see `_weights`; else 0.
    """
    rows = tl.arange(0, ROWS)
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = columns < N
    n = tl.load(meta_ptr)
    live = rows < n
    sums = tl.zeros((ROWS, BN), tl.float32)
    ups = tl.zeros((ROWS, BN), tl.float32)
    for start in range(0, K, BK):
        at = start + tl.arange(0, BK)
        within = at < K
        w_tile = inside[:, None] & within[None, :]
        w = _weights(w_ptr, scale_ptr, minimum_ptr, columns, at, w_tile, x_ptr.dtype.element_ty, K, BITS, GROUP)
        x = tl.load(x_ptr + rows[:, None] * K + at[None, :], mask=live[:, None] & within[None, :], other=0.0)
        sums = tl.dot(x, tl.trans(w), sums, input_precision=PRECISION)
        if GATED:
            rows_of_up = N + columns
            up = _weights(w_ptr, scale_ptr, minimum_ptr, rows_of_up, at, w_tile, x_ptr.dtype.element_ty, K, BITS, GROUP)
            ups = tl.dot(x, tl.trans(up), ups, input_precision=PRECISION)
    if BITS == 8:
        sums *= tl.load(scale_ptr + columns, mask=inside, other=0.0)[None, :]
        if GATED:
            ups *= tl.load(scale_ptr + N + columns, mask=inside, other=0.0)[None, :]
    if BIAS:
        sums += tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
        if GATED:
            ups += tl.load(bias_ptr + N + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    if GATED:
        sums = sums * tl.sigmoid(sums) * ups
    out_at = out_ptr + rows[:, None].to(tl.int64) * N + columns[None, :]
    written = live[:, None] & inside[None, :]
    if ADD:
        sums += tl.load(out_at, mask=written, other=0.0).to(tl.float32)
    tl.store(out_at, sums.to(out_ptr.dtype.element_ty), mask=written)


@triton.jit
def _weights(
    w_ptr,
    scale_ptr,
    minimum_ptr,
    w_rows,
    at,
    tile,
    kind: tl.constexpr,
    K: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Load weights [rows, inputs] of W as operands of a product; zeros outside the tile.

    In 4 bits byte j of a group has inputs j and j + GROUP / 2, and a weight is scale * value + minimum, in float32.
    """
    w_rows = w_rows[:, None].to(tl.int64)
    if BITS == 4:
        groups: tl.constexpr = (K + GROUP - 1) // GROUP
        group, inside = (w_rows * groups + at[None, :] // GROUP), at[None, :] % GROUP
        pair = tl.load(w_ptr + group * (GROUP // 2) + inside % (GROUP // 2), mask=tile, other=0)
        value = (pair.to(tl.int32) >> (inside // (GROUP // 2) * 4)) & 15
        scale = tl.load(scale_ptr + group, mask=tile, other=0.0).to(tl.float32)
        minimum = tl.load(minimum_ptr + group, mask=tile, other=0.0).to(tl.float32)
        w = value.to(tl.float32) * scale + minimum
    else:
        w = tl.load(w_ptr + w_rows * K + at[None, :], mask=tile, other=0.0)
    return w.to(kind)


@triton.jit
def rope_append(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    q_norm_ptr,
    k_norm_ptr,
    keys_ptr,
    values_ptr,
    q_ptr,
    meta_ptr,
    depths_ptr,
    eps,
    cache_stride,
    HEADS: tl.constexpr,
    KV: tl.constexpr,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    Q_NORM: tl.constexpr,
    K_NORM: tl.constexpr,
):
    """Rotate queries into q and keys into the cache, and copy values to the cache; one program per node and head.

    qkv is [n, (HEADS + 2 KV) * DIM]: heads of queries, then of keys, then of values. HALF: a power of two, at least
    DIM / 2. Norms per head and the rotation are in float32.
    """
    node, head = tl.program_id(0), tl.program_id(1)
    n, prefix_len, row, chain = (tl.load(meta_ptr), tl.load(meta_ptr + 1), tl.load(meta_ptr + 2), tl.load(meta_ptr + 3))
    if node < n:
        at = tl.arange(0, HALF)
        inside = at < DIM // 2
        source = qkv_ptr + (node * (HEADS + 2 * KV) + head) * DIM
        first = tl.load(source + at, mask=inside, other=0.0)
        second = tl.load(source + DIM // 2 + at, mask=inside, other=0.0)
        cache_row = (row + node).to(tl.int64) * DIM
        if head >= HEADS + KV:
            target = values_ptr + (head - HEADS - KV).to(tl.int64) * cache_stride + cache_row
            tl.store(target + at, first, mask=inside)
            tl.store(target + DIM // 2 + at, second, mask=inside)
        else:
            a, b = first.to(tl.float32), second.to(tl.float32)
            is_query = head < HEADS
            if (Q_NORM and is_query) or (K_NORM and not is_query):
                scale = tl.rsqrt((tl.sum(a * a, 0) + tl.sum(b * b, 0)) / DIM + eps)
                norm_ptr = k_norm_ptr
                if is_query:
                    norm_ptr = q_norm_ptr
                a *= scale * tl.load(norm_ptr + at, mask=inside, other=0.0).to(tl.float32)
                b *= scale * tl.load(norm_ptr + DIM // 2 + at, mask=inside, other=0.0).to(tl.float32)
            depth = node
            if chain == 0:
                depth = tl.load(depths_ptr + node)
            position = (prefix_len + depth).to(tl.int64) * DIM
            cos = tl.load(cos_ptr + position + at, mask=inside, other=0.0)
            sin = tl.load(sin_ptr + position + at, mask=inside, other=0.0)
            target = q_ptr + (node * HEADS + head) * DIM
            if not is_query:
                target = keys_ptr + (head - HEADS).to(tl.int64) * cache_stride + cache_row
            kind = keys_ptr.dtype.element_ty
            # rotate_half: dimensions j and j + DIM / 2 are one pair
            tl.store(target + at, (a * cos - b * sin).to(kind), mask=inside)
            tl.store(target + DIM // 2 + at, (b * cos + a * sin).to(kind), mask=inside)


@triton.jit
def attend(
    q_ptr,
    keys_ptr,
    values_ptr,
    parts_ptr,
    stats_ptr,
    meta_ptr,
    mask_ptr,
    scale,
    cache_stride,
    capacity,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute attention of q [n, HEADS, DIM]; one program per kv head, tile of queries and split of rows.

    Index t < prefix_len is committed cache row t; index prefix_len + j is cache row `row` + j, that of node j. Unread
    rows are not loaded. The GROUP query heads of a kv head are rows of one tile, so that each cache row is read once.
    Each split of SPLIT rows writes its sums to parts [splits, capacity, HEADS, WIDTH] and its softmax statistics to
    stats [2, splits, capacity, HEADS], for `combine`.
    """
    kv, tile, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n, prefix_len, row, chain = (tl.load(meta_ptr), tl.load(meta_ptr + 1), tl.load(meta_ptr + 2), tl.load(meta_ptr + 3))
    unread_begin, unread_end = tl.load(meta_ptr + 4), tl.load(meta_ptr + 5)
    first = split * SPLIT
    if (tile * TILE < n * GROUP) and (first < prefix_len + n):
        node, head, q, best, mass, sums = _queries(q_ptr, tile, kv, n, HEADS, GROUP, DIM, WIDTH, TILE)
        last = tl.minimum(first + SPLIT, prefix_len + n)
        # a window: the loop jumps over blocks that are entirely unread, without a branch, so that it can be pipelined
        gap = tl.maximum(tl.cdiv(unread_begin, BLOCK) * BLOCK, first)
        left_out = tl.maximum(tl.minimum(unread_end // BLOCK * BLOCK, first + SPLIT) - gap, 0)
        for at in range(first, last - left_out, BLOCK):
            t = at + tl.where(at < gap, 0, left_out) + tl.arange(0, BLOCK)
            j, valid = t - prefix_len, (t < last) & ((t < unread_begin) | (t >= unread_end))
            cache_rows = tl.where(j >= 0, row + j, t)
            k = _rows(keys_ptr + kv.to(tl.int64) * cache_stride, cache_rows, valid, DIM, WIDTH)
            v = _rows(values_ptr + kv.to(tl.int64) * cache_stride, cache_rows, valid, DIM, WIDTH)
            if chain != 0:
                visible = j[None, :] <= node[:, None]
            else:
                marked = tl.load(
                    mask_ptr + node[:, None] * capacity + j[None, :],
                    mask=(node < n)[:, None] & ((j >= 0) & valid)[None, :],
                    other=0,
                )
                visible = (j[None, :] < 0) | (marked != 0)
            best, mass, sums = _absorb(q, k, v, visible & valid[None, :], scale, best, mass, sums)
        slot, live, dims = (split * capacity + node) * HEADS + head, node < n, tl.arange(0, WIDTH)
        tl.store(parts_ptr + slot[:, None] * WIDTH + dims[None, :], sums, mask=live[:, None])
        tl.store(stats_ptr + slot, best, mask=live)
        tl.store(stats_ptr + tl.num_programs(2) * capacity * HEADS + slot, mass, mask=live)


@triton.jit
def attend_branches(
    q_ptr,
    keys_ptr,
    values_ptr,
    own_keys_ptr,
    own_values_ptr,
    out_ptr,
    meta_ptr,
    scale,
    cache_stride,
    own_stride,
    LENGTH: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute attention of branches of LENGTH nodes; a node sees the prefix and, causally, its branch.

    The branches' own keys and values [Hkv, n, DIM] are not in the cache. One program per kv head and tile of queries
    writes its part of out [n, HEADS, DIM].
    """
    kv, tile = tl.program_id(0), tl.program_id(1)
    n, prefix_len = tl.load(meta_ptr), tl.load(meta_ptr + 1)
    node, head, q, best, mass, sums = _queries(q_ptr, tile, kv, n, HEADS, GROUP, DIM, WIDTH, TILE)
    for start in range(0, prefix_len, BLOCK):
        t = start + tl.arange(0, BLOCK)
        valid = t < prefix_len
        k = _rows(keys_ptr + kv.to(tl.int64) * cache_stride, t, valid, DIM, WIDTH)
        v = _rows(values_ptr + kv.to(tl.int64) * cache_stride, t, valid, DIM, WIDTH)
        visible = (node >= 0)[:, None] & valid[None, :]
        best, mass, sums = _absorb(q, k, v, visible, scale, best, mass, sums)
    # own rows that the tile's nodes may see: from the branch of its first node to its last node
    begin = ((tile * TILE) // GROUP) // LENGTH * LENGTH
    end = tl.minimum(n, ((tile + 1) * TILE - 1) // GROUP + 1)
    for start in range(begin, end, BLOCK):
        j = start + tl.arange(0, BLOCK)
        valid = j < end
        k = _rows(own_keys_ptr + kv.to(tl.int64) * own_stride, j, valid, DIM, WIDTH)
        v = _rows(own_values_ptr + kv.to(tl.int64) * own_stride, j, valid, DIM, WIDTH)
        visible = (j[None, :] <= node[:, None]) & (j[None, :] // LENGTH == node[:, None] // LENGTH)
        best, mass, sums = _absorb(q, k, v, visible & valid[None, :], scale, best, mass, sums)
    dims = tl.arange(0, WIDTH)
    at = (node[:, None] * HEADS + head[:, None]) * DIM + dims[None, :]
    written = (node < n)[:, None] & (dims < DIM)[None, :]
    tl.store(out_ptr + at, (sums / mass[:, None]).to(out_ptr.dtype.element_ty), mask=written)


@triton.jit
def _queries(
    q_ptr,
    tile,
    kv,
    n,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):
    """Load a tile of queries; return nodes, heads, values, and empty softmax statistics and sums."""
    query, dims = tile * TILE + tl.arange(0, TILE), tl.arange(0, WIDTH)
    node, head = query // GROUP, kv * GROUP + query % GROUP
    at = (node[:, None] * HEADS + head[:, None]) * DIM + dims[None, :]
    q = tl.load(q_ptr + at, mask=(node < n)[:, None] & (dims < DIM)[None, :], other=0.0)
    best, mass = tl.full((TILE,), HIDDEN, tl.float32), tl.zeros((TILE,), tl.float32)
    return node, head, q, best, mass, tl.zeros((TILE, WIDTH), tl.float32)


@triton.jit
def _rows(ptr, rows, valid, DIM: tl.constexpr, WIDTH: tl.constexpr):
    """Load rows of keys or values of one head, [rows, DIM]; zeros where `valid` is false."""
    dims = tl.arange(0, WIDTH)
    at = rows.to(tl.int64)[:, None] * DIM + dims[None, :]
    return tl.load(ptr + at, mask=valid[:, None] & (dims < DIM)[None, :], other=0.0)


@triton.jit
def _absorb(q, k, v, visible, scale, best, mass, sums):
    """Add a block of rows to the softmax statistics (maximum, mass) and sums: online softmax.

    Milakov and Gimelshein 2018 (arXiv:1805.02867). Rows that nobody sees leave all bits as they are.
    """
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    scores = tl.where(visible, scores, HIDDEN)
    most = tl.maximum(best, tl.max(scores, 1))
    base = tl.where(most == HIDDEN, 0.0, most)
    shares = tl.exp(scores - base[:, None])
    kept = tl.exp(best - base)
    mass = mass * kept + tl.sum(shares, 1)
    sums = tl.dot(shares.to(v.dtype), v, sums * kept[:, None], input_precision=PRECISION)
    return most, mass, sums


@triton.jit
def combine(
    parts_ptr,
    stats_ptr,
    out_ptr,
    meta_ptr,
    splits,
    capacity,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Combine `attend`'s splits into out [n, HEADS * DIM]; one program per node and head."""
    node, head = tl.program_id(0), tl.program_id(1)
    n, prefix_len = tl.load(meta_ptr), tl.load(meta_ptr + 1)
    if node < n:
        dims = tl.arange(0, WIDTH)
        best, mass = tl.full((), HIDDEN, tl.float32), tl.zeros((), tl.float32)
        sums = tl.zeros((WIDTH,), tl.float32)
        for split in range(tl.cdiv(prefix_len + n, SPLIT)):
            slot = (split * capacity + node) * HEADS + head
            split_best = tl.load(stats_ptr + slot)
            most = tl.maximum(best, split_best)
            base = tl.where(most == HIDDEN, 0.0, most)
            kept, joined = tl.exp(best - base), tl.exp(split_best - base)
            mass = mass * kept + tl.load(stats_ptr + splits * capacity * HEADS + slot) * joined
            sums = sums * kept + tl.load(parts_ptr + slot * WIDTH + dims) * joined
            best = most
        at = (node * HEADS + head) * DIM + dims
        tl.store(out_ptr + at, (sums / mass).to(out_ptr.dtype.element_ty), mask=dims < DIM)
