"""Compiled kernels against PyTorch operations, and those against plain formulas."""

from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ssd_bench.model import arithmetic, operators
from ssd_bench.model.arithmetic import LEVELS, Arithmetic, decide, resolve
from ssd_bench.model.backend import select
from ssd_bench.model.backends import cpu
from ssd_bench.model.backends.cpu import NativeDecoder, build, native_problem
from ssd_bench.model.operators import HeadNorms, Operators
from ssd_bench.model.rope import Rotation
from tests.runs import program

CPU = torch.device("cpu")
EVERY = [level.name for level in arithmetic.available_levels()]
NODES = [1, 2, 3, 5, 8, 17, 32, 33]
MANY = 75
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
EPS = 1e-5
NO_NORMS = HeadNorms(None, None, EPS)


@pytest.fixture(scope="module", params=EVERY)
def ops(request: pytest.FixtureRequest) -> Operators:
    """The compiled operations of every level that this CPU has."""
    if problem := native_problem(request.param):
        pytest.skip(f"level {request.param} is not tested: {problem}")
    return NativeDecoder.operators(select(CPU, torch.float32, "native", request.param).arithmetic)


exact = Operators(decide(CPU, torch.float32, "torch", "generic"))


def reference(ops: Operators, dtype: torch.dtype) -> tuple[Operators, float]:
    """PyTorch's operators with the compiled ones' rounding for weights of a dtype, and the tolerance of values that are
    computed from rounded ones: an ulp there can tip a rounding to bfloat16.
    """
    decided = decide(CPU, dtype, "torch", str(ops.arithmetic.isa))
    return Operators(decided), 2e-5 if decided.inputs == torch.float32 else 2e-3


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def close(got: Tensor, want: Tensor, tolerance: float = 2e-5, case: object = "") -> None:
    """Asserts equality up to float32 summation order, relative to the largest value."""
    assert got.shape == want.shape, case
    assert got.dtype == want.dtype, case
    assert torch.isfinite(got).all(), case
    assert (got - want).abs().max() <= tolerance * max(1.0, float(want.abs().max())), case


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(40, 40), (37, 41), (1, 7), (131, 96), (576, 576), (3, 1537)])
def test_linears_match_torch(ops: Operators, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """All four linear operations, with and without bias, with tails in N and K."""
    N, K = shape
    W, bias, norm = rand(N, K, dtype=dtype), rand(N, seed=1), rand(K, seed=2)
    packed, (alike, derived) = ops.pack(W), reference(ops, dtype)
    for n, b in product(NODES, (None, bias)):
        x, gate_up, case = rand(n, K), 4 * rand(n, 2 * K, seed=3), (n, b is None)
        close(ops.linear(x, packed, b), alike.linear(x, W, b), case=case)
        close(ops.norm_linear(x, norm, EPS, packed, b), alike.norm_linear(x, norm, EPS, W, b), derived, case)
        got, want = rand(n, N, seed=4), rand(n, N, seed=4)
        ops.linear_add_(got, x, packed, b)
        alike.linear_add_(want, x, W, b)
        close(got, want, case=case)
        got, want = rand(n, N, seed=5), rand(n, N, seed=5)
        ops.swiglu_linear_add_(got, gate_up, packed, b)
        alike.swiglu_linear_add_(want, gate_up, W, b)
        close(got, want, derived, case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(61, 32), (37, 41), (2100, 96)])
def test_a_packed_matrix_has_its_rows(ops: Operators, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """Singly, some as a separate matrix, and slices, which share its memory."""
    W, x = rand(*shape, dtype=dtype), rand(3, shape[1])
    packed = ops.pack(W)
    whole = ops.linear(x, packed)
    assert tuple(packed.shape) == shape and packed.nbytes >= W.nbytes
    ids = torch.randint(shape[0], (40,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(ops.embed(packed, ids), W[ids].float())
    assert torch.equal(ops.linear(x, ops.select(packed, ids)), whole[:, ids])
    for start, stop in ((0, 16), (16, 37), (32, 5000)):
        assert torch.equal(ops.linear(x, packed[start:stop]), whole[:, start:stop])
    for bad in (lambda: packed[3:20], lambda: packed[16:16], lambda: ops.embed(packed, torch.tensor([shape[0]]))):
        with pytest.raises((RuntimeError, IndexError)):
            bad()
    assert torch.equal(ops.pack(W[0]), W[0].float())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(131, 200), (64, 576), (21, 1537)])
def test_a_nodes_result_does_not_depend_on_the_others(
    ops: Operators, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    N, K = shape
    W, x, norm = ops.pack(rand(N, K, dtype=dtype)), rand(MANY, K), rand(K, seed=2)
    gate_up = rand(MANY, 2 * K, seed=3)
    for n in (2, 3, 7, 8, 13, 32, MANY):
        together, hidden = ops.norm_linear(x[:n], norm, EPS, W), torch.zeros(n, N)
        ops.swiglu_linear_add_(hidden, gate_up[:n], W)
        for i in range(n):
            alone, one = ops.norm_linear(x[i : i + 1], norm, EPS, W), torch.zeros(1, N)
            ops.swiglu_linear_add_(one, gate_up[i : i + 1], W)
            assert torch.equal(together[i], alone[0])
            assert torch.equal(hidden[i], one[0])


def test_the_top_of_logits(ops: Operators) -> None:
    """The lowest id of equal logits counts; some widths have tails."""
    for n, width, equal in product((1, MANY), (1, 3, 16, 61, 255, 256, 257, 5001), (False, True)):
        logits, place, case = 6 * rand(n, width), torch.arange(n) * 97 % width, (n, width, equal)
        if equal:  # the largest twice, and once in a row of nothing else
            logits[torch.arange(n), place] = logits[torch.arange(n), width - 1] = 50.0
            logits[0] = -3.0
        best, ids = ops.top(logits)
        assert torch.equal(best, logits.amax(-1)) and ids.dtype == torch.long, case
        assert ids.tolist() == exact.top(logits)[1].tolist() == [row.index(max(row)) for row in logits.tolist()], case
        want = (logits.double() - best.double()[:, None]).exp().sum(-1).float()
        for one in (ops, exact):
            assert torch.allclose(one.mass(logits, best), want, rtol=3e-6, atol=0), case


def test_the_top_of_logits_far_apart(ops: Operators) -> None:
    """Beyond the range of exp, and masked."""
    logits = torch.tensor([[-1e30, 0.0, 1e30], [-torch.inf, 5.0, -torch.inf]])
    best, ids = ops.top(logits)
    assert ids.tolist() == [2, 1] and ops.mass(logits, best).tolist() == [1.0, 1.0]


def test_swiglu_survives_large_gates(ops: Operators) -> None:
    """Gates beyond the range of exp give 0 or the identity, not infinity."""
    gate = torch.tensor([[-1e4, -200.0, -90.0, -1e-6, 0.0, 90.0, 200.0, 1e4]])
    up, W = torch.ones(1, 8), torch.eye(8)
    got, want = torch.zeros(1, 8), torch.zeros(1, 8)
    ops.swiglu_linear_add_(got, torch.cat((gate, up), 1), ops.pack(W))
    exact.swiglu_linear_add_(want, torch.cat((gate, up), 1), W)
    assert torch.allclose(got, want, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize(("dtype", "tolerance"), zip(DTYPES, (2e-5, 8e-3, 1e-3), strict=True))
@pytest.mark.parametrize("heads", [(9, 3, 64), (4, 4, 8), (6, 2, 24), (8, 1, 128)])
def test_rope_append(ops: Operators, dtype: torch.dtype, tolerance: float, heads: tuple[int, int, int]) -> None:
    """q, the written cache rows, and all others untouched; caches are views of a larger one."""
    query_heads, kv_heads, dim = heads
    for n, norms in product((1, 2, 8, 33), (NO_NORMS, HeadNorms(rand(dim, seed=6), rand(dim, seed=7), EPS))):
        qkv, angle = rand(n, (query_heads + 2 * kv_heads) * dim), rand(n, dim // 2).repeat(1, 2)
        rotation, before = Rotation(angle.cos(), angle.sin()), rand(kv_heads, 2, 50, dim, seed=8, dtype=dtype)
        (got, store), (want, expected) = (
            (one.rope_append(qkv, rotation, norms, *cache.unbind(1), 11), cache)
            for one, cache in ((ops, before.clone()), (exact, before.clone()))
        )
        close(got, want)
        close(store.float(), expected.float(), tolerance)
        for rows in (slice(0, 11), slice(11 + n, 50)):
            assert torch.equal(store[:, :, rows], before[:, :, rows])


def attend(
    one: Operators,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    prefix: int,
    row: int,
    mask: Tensor | None,
    unread: tuple[int, int] = (0, 0),
) -> Tensor:
    seen = one.visibility(len(q), prefix - (unread[1] - unread[0]), mask, q.device)
    return one.attend(q, keys, values, prefix, row, seen, unread)


@cache
def tree_mask(n: int) -> Tensor:
    """Each node's parent is a random earlier one; a node sees its ancestors and itself."""
    mask = torch.eye(n, dtype=torch.bool)
    pick = torch.Generator().manual_seed(n)
    for i in range(1, n):
        parent = int(torch.randint(i, (1,), generator=pick))
        mask[i] |= mask[parent]
    return mask


def attends(ops: Operators, dtype: torch.dtype, q: Tensor) -> tuple[Operators, Tensor, float]:
    """PyTorch's operators for a cache of a dtype, the queries as products take them, and the tolerance of results."""
    alike, _ = reference(ops, dtype)
    inputs = alike.arithmetic.inputs
    return alike, q.to(inputs).float(), 2e-5 if inputs == torch.float32 else 4e-3


def plain_attention(
    q: Tensor, keys: Tensor, values: Tensor, prefix: int, row: int, mask: Tensor, unread: tuple[int, int] = (0, 0)
) -> Tensor:
    """The definition, in float64."""
    n, query_heads, dim = q.shape
    group = query_heads // keys.shape[0]
    committed = [r for r in range(prefix) if not unread[0] <= r < unread[1]]
    rows = committed + list(range(row, row + n))
    k, v = (c[:, rows].double().repeat_interleave(group, 0) for c in (keys, values))
    scores = q.double().transpose(0, 1) @ k.transpose(1, 2) / dim**0.5
    visible = torch.cat((torch.ones(n, len(committed), dtype=torch.bool), mask.bool()), 1)
    out = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v
    return out.transpose(0, 1).reshape(n, -1).float()


PLACES = ((0, 0), (0, 9), (5, 5), (63, 70), (300, 301))
"""Rows of a prefix, and the first node's row."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(9, 3, 64), (4, 4, 8), (6, 1, 16), (6, 2, 40), (4, 2, 128)])
def test_attend(ops: Operators, dtype: torch.dtype, heads: tuple[int, int, int]) -> None:
    """Chains and trees, with a gap of NaN rows between prefix and nodes, against the definition."""
    query_heads, kv_heads, dim = heads
    for n, (prefix, row) in product((1, 3, 8, 17, 33), PLACES):
        q, chain, tree = 2 * rand(n, query_heads, dim), torch.ones(n, n).tril(), tree_mask(n)
        alike, rounded, tolerance = attends(ops, dtype, q)
        store = rand(kv_heads, 2, row + n + 3, dim, seed=9, dtype=dtype)
        store[:, :, prefix:row] = torch.nan
        store[:, :, row + n :] = torch.nan
        keys, values = store[:, 0], store[:, 1]
        for mask, seen in ((None, chain), (tree, tree)):
            want = plain_attention(rounded, keys, values, prefix, row, seen)
            for one in (ops, alike):
                close(attend(one, q, keys, values, prefix, row, mask), want, tolerance, (n, prefix, row))
        close(attend(ops, q, keys, values, prefix, row, tree.to(torch.uint8)), want, tolerance, (n, prefix, row))


def test_attend_across_splits(ops: Operators) -> None:
    """Prefixes around the sizes where a split ends, with one dominant row in the last split."""
    for prefix, n in product((1023, 1024, 1025, 5000), (1, 4)):
        q, keys, values = rand(n, 6, 32), rand(2, prefix + n, 32, seed=1), rand(2, prefix + n, 32, seed=2)
        keys[:, prefix - 1] = 30 * q[0, 0]
        want = plain_attention(q, keys, values, prefix, prefix, torch.ones(n, n).tril())
        for one in (ops, exact):
            close(attend(one, q, keys, values, prefix, prefix, None), want, case=(prefix, n))


UNREAD = [(9, 3, 9), (70, 0, 1), (300, 4, 171), (300, 0, 300), (300, 64, 128), (900, 256, 768), (900, 300, 790)]
"""Rows of a prefix, and its unread range: parts of a block, blocks, chunks, everything."""


@pytest.mark.parametrize("n", [1, 20])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(4, 4, 8), (6, 2, 40)])
def test_attend_leaves_unread_rows_out(ops: Operators, n: int, dtype: torch.dtype, heads: tuple[int, int, int]) -> None:
    """Chains and trees against the definition; unread rows and a gap before the nodes are NaN."""
    query_heads, kv_heads, dim = heads
    q, masks = 2 * rand(n, query_heads, dim), ((None, torch.ones(n, n).tril()), (tree_mask(n), tree_mask(n)))
    alike, rounded, tolerance = attends(ops, dtype, q)
    for case in UNREAD:
        prefix, first, end = case
        row = prefix + 2
        store = rand(kv_heads, 2, row + n, dim, seed=9, dtype=dtype)
        store[:, :, first:end] = store[:, :, prefix:row] = torch.nan
        keys, values = store[:, 0], store[:, 1]
        for mask, seen in masks:
            want = plain_attention(rounded, keys, values, prefix, row, seen, (first, end))
            for one in (ops, alike):
                close(attend(one, q, keys, values, prefix, row, mask, (first, end)), want, tolerance, case)


@pytest.mark.parametrize(("branches", "r"), [(1, 1), (1, 12), (40, 7), (3, 70)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(4, 4, 8), (6, 2, 40)])
def test_attend_branches(
    ops: Operators, branches: int, r: int, dtype: torch.dtype, heads: tuple[int, int, int]
) -> None:
    """Every branch gets what it gets alone, by the definition; rows beyond the prefix are never read."""
    (query_heads, kv_heads, dim), n = heads, branches * r
    q, own = 2 * rand(n, query_heads, dim), rand(2, kv_heads, n, dim, seed=4, dtype=dtype)
    alike, rounded, tolerance = attends(ops, dtype, q)
    for prefix in (0, 64, 300):
        store = rand(kv_heads, 2, prefix + 3, dim, seed=9, dtype=dtype)
        store[:, :, prefix:] = torch.nan
        keys, values = store[:, 0], store[:, 1]
        parts = []
        for b in range(branches):
            rows = slice(b * r, (b + 1) * r)
            k, v = (torch.cat((c[:, :prefix], o[:, rows]), 1) for c, o in zip((keys, values), own))
            parts.append(plain_attention(rounded[rows], k, v, prefix, prefix, torch.ones(r, r).tril()))
        for one in (ops, alike):
            made = one.attend_branches(q, keys, values, prefix, own[0], own[1], branches)
            close(made, torch.cat(parts), tolerance, prefix)


def test_a_mass_repeats_for_any_thread_count(ops: Operators) -> None:
    logits, before = rand(MANY, 3000), torch.get_num_threads()
    best, masses = ops.top(logits)[0], []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            masses.append(ops.mass(logits, best))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*masses)


def test_torch_linear_upcasts_large_weights_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x, W, bias = rand(5, 40), rand(101, 40, dtype=torch.bfloat16), rand(101)
    want = torch.nn.functional.linear(x, W.float(), bias)
    monkeypatch.setattr(operators, "UPCAST_ELEMENTS", 40 * 30)
    close(exact.linear(x, W, bias), want)


def test_torch_attend_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    n, prefix = 23, 17
    q, keys, values = rand(n, 4, 16), rand(2, 40, 16, seed=1), rand(2, 40, 16, seed=2)
    monkeypatch.setattr(operators, "QUERY_CHUNK", 5)
    for mask, seen in ((None, torch.ones(n, n).tril()), (tree_mask(n), tree_mask(n))):
        want = plain_attention(q, keys, values, prefix, prefix, seen)
        close(attend(exact, q, keys, values, prefix, prefix, mask), want)


def test_operators_run_in_half_precision() -> None:
    """Everything in bfloat16, as on an accelerator, stays so and near the float32 result."""
    x, W, norm = rand(4, 32), rand(64, 32), rand(32, seed=2)
    low = Operators(Arithmetic("torch", None, torch.bfloat16, torch.bfloat16))
    half = low.norm_linear(x.bfloat16(), norm.bfloat16(), EPS, W.bfloat16(), rand(64))
    assert half.dtype == torch.bfloat16
    close(half.float(), exact.norm_linear(x, norm, EPS, W, rand(64)), 3e-2)
    keys, values = torch.zeros(2, 9, 8, dtype=torch.bfloat16), torch.zeros(2, 9, 8, dtype=torch.bfloat16)
    angle = rand(4, 4).repeat(1, 2)
    qkv = rand(4, 64).bfloat16()
    norms = HeadNorms(rand(8).bfloat16(), rand(8), EPS)
    q = low.rope_append(qkv, Rotation(angle.cos(), angle.sin()), norms, keys, values, 3)
    assert q.dtype == torch.bfloat16
    assert attend(low, q, keys, values, 2, 3, tree_mask(4)).dtype == torch.bfloat16


def test_wrong_sizes_are_refused(ops: Operators) -> None:
    x, W, cache = rand(2, 16), ops.pack(rand(8, 16)), rand(2, 10, 8)
    bad: list[Callable[[], object]] = [
        lambda: ops.linear(x, ops.pack(rand(8, 8))),
        lambda: ops.pack(rand(8, 16).double()),
        lambda: ops.linear(x, W, rand(7)),
        lambda: ops.linear(x.double(), W),
        lambda: ops.norm_linear(x, rand(15), EPS, W),
        lambda: ops.linear_add_(rand(3, 8), x, W),
        lambda: ops.swiglu_linear_add_(rand(2, 8), x, W),
        lambda: ops.top(rand(2, 8).double()),
        lambda: ops.top(rand(2, 8)[:, :0]),
        lambda: ops.mass(rand(2, 8), rand(3)),
        lambda: ops.attend(rand(2, 4, 8), cache, cache, 3, 9, None),
        lambda: ops.attend(rand(2, 4, 8), cache, cache, 5, 4, None),
        lambda: ops.attend(rand(2, 3, 8), cache, cache, 3, 3, None),
        lambda: ops.attend(rand(2, 4, 8), cache, cache, 3, 3, None, (2, 4)),
        lambda: ops.attend(rand(2, 4, 8), cache, cache, 3, 3, None, (2, 1)),
        lambda: ops.attend(rand(2, 4, 8), cache, cache, 3, 3, None, (-1, 2)),
        lambda: ops.attend(rand(2, 4, 8), cache, cache, 3, 3, torch.ones(3, 3, dtype=torch.bool)),
        lambda: ops.attend_branches(rand(2, 4, 8), cache, cache, 11, rand(2, 2, 8), rand(2, 2, 8), 1),
        lambda: ops.attend_branches(rand(2, 4, 8), cache, cache, 3, rand(2, 3, 8), rand(2, 3, 8), 1),
        lambda: ops.attend_branches(rand(3, 4, 8), cache, cache, 3, rand(2, 3, 8), rand(2, 3, 8), 2),
        lambda: ops.attend_branches(rand(2, 4, 8), cache, cache, 3, *rand(2, 2, 2, 8).bfloat16(), 1),
        lambda: ops.rope_append(rand(2, 64), Rotation(rand(2, 8), rand(2, 8)), NO_NORMS, cache, cache, 9),
        lambda: ops.rope_append(rand(2, 64), Rotation(rand(1, 8), rand(1, 8)), NO_NORMS, cache, cache, 0),
    ]
    for call in bad:
        with pytest.raises(RuntimeError):
            call()


def test_a_cpu_with_matrix_units_rounds_what_its_products_round(every_level: None) -> None:
    assert resolve("auto").name == "amx" and resolve("avx2").name == "avx2"
    decided = decide(CPU, torch.bfloat16, "torch", "auto")
    assert decided == Arithmetic("torch", "amx", torch.float32, torch.bfloat16)
    check_rounds_alike(Operators(decided), torch.bfloat16)
    for weights in (torch.float32, torch.float16):
        assert decide(CPU, weights, "torch", "auto").inputs == torch.float32
    assert decide(CPU, torch.bfloat16, "torch", "avx512").inputs == torch.float32


def test_no_compiler_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    monkeypatch.setenv("SSD_BENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(cpu, "_extension", cpu._extension.__wrapped__)
    for _ in range(2):
        done = program("kernels")
        assert done.returncode == 0 and done.stdout.startswith("native kernels: not available")
        assert done.stdout.count("\n") == 1


def test_stale_torch_lock_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed builder's lock is removed before torch could wait for it."""
    from torch.utils import cpp_extension

    (tmp_path / "lock").touch()
    locked = []
    monkeypatch.setattr(cpp_extension, "load", lambda *_, **__: locked.append((tmp_path / "lock").exists()))
    build._compile(LEVELS[0], tmp_path)
    assert locked == [False]


def check_rounds_alike(ops: Operators, rounded: torch.dtype | None = None) -> None:
    """Passes of 1 to 300 nodes over bfloat16 weights and cache have float32's error against float64,
    or bfloat16's where rounded values were computed first.

    Args:
        rounded: what both sides of products with weights are rounded to, if anything.
    """
    most, K = 300, 200
    x, W, norm = rand(most, K), rand(48, K, dtype=torch.bfloat16), rand(K, seed=2)
    gate_up, wide, packed = rand(most, 2 * K, seed=3), W.double().t(), ops.pack(W)

    def product(side: Tensor) -> Tensor:
        return ((side if rounded is None else side.to(rounded)).double() @ wide).float()

    root = torch.rsqrt(x.double().square().mean(-1, keepdim=True) + EPS)
    normed, gated = (x * root * norm).float(), F.silu(gate_up[:, :K]) * gate_up[:, K:]
    q, store = rand(most, 4, 16), rand(2, 2, 2 * most, 16, seed=9, dtype=torch.bfloat16)
    for n in (1, 2, 32, 33, 64, most):
        close(ops.linear(x[:n], packed), product(x[:n]))
        close(ops.norm_linear(x[:n], norm, EPS, packed), product(normed[:n]), 2e-5 if rounded is None else 2e-3)
        summed, down = torch.zeros(n, 48), torch.zeros(n, 48)
        ops.linear_add_(summed, x[:n], packed)
        ops.swiglu_linear_add_(down, gate_up[:n], packed)
        close(summed, product(x[:n]))
        close(down, product(gated[:n]), 2e-5 if rounded is None else 2e-3)
        taken = q[:n] if rounded is None else q[:n].to(rounded).float()
        seen = plain_attention(taken, store[0], store[1], most, most, torch.ones(n, n).tril())
        close(attend(ops, q[:n], store[0], store[1], most, most, None), seen, 2e-5 if rounded is None else 4e-3)


def test_pytorch_rounds_in_passes_of_any_size_what_it_is_told_to() -> None:
    """Nothing, or both sides of a product to bfloat16; sums stay float32's."""
    check_rounds_alike(exact)
    told = Operators(Arithmetic("torch", "amx", torch.float32, torch.bfloat16))
    check_rounds_alike(told, torch.bfloat16)
    with pytest.raises(AssertionError):
        check_rounds_alike(told)
