"""What a machine can do at most, what a figure must do at least, and so its share of the limit.

A pass reads its weights and the keys and values before it once, and multiplies every weight with every node:

    limit = max(bytes / read bandwidth, FLOPs / peak arithmetic).

Passes follow each other, so the limit of several is the sum of theirs. Both sides leave out what is small: norms,
biases, activations. A share may be above 1 where the weights fit in a cache, which is read faster than memory, or where
PyTorch multiplies with instructions beyond the level that was asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ssd_bench.model.backends.cpu import NativeDecoder, extension
from ssd_bench.model.decoder import PREFILL_CHUNK, Decoder
from ssd_bench.model.shape import Shape

ROUNDS = 5  # of every kernel; the fastest counts, since a limit is asked for
READ_BYTES = 2**28  # read by compiled kernels: more than caches hold
SUMMED_BYTES = {"cpu": 2**30, "cuda": 2**32}  # read by PyTorch's: a GPU is done with less before it is at full speed
PRODUCT_STEPS = 2**18  # multiply-adds of every sum in a register, a few milliseconds
MATRIX = {"cpu": 2048, "cuda": 8192}  # rows and columns of PyTorch's product


@dataclass(frozen=True)
class Work:
    """What must at least be done: bytes read from memory, and floating-point operations."""

    n_bytes: float
    flops: float

    def __add__(self, other: Work) -> Work:
        return Work(self.n_bytes + other.n_bytes, self.flops + other.flops)


@dataclass(frozen=True)
class Model:
    """A decoder's sizes, and the work that they make.

    Attributes:
        shape: its sizes.
        value_bytes: of an element of its matrices and of its KV cache.
    """

    shape: Shape
    value_bytes: int

    @classmethod
    def of(cls, decoder: Decoder) -> Model:
        return cls(decoder.arch, decoder.weights.dtype.itemsize)

    def sublayer(self, i: int, nodes: int, rows: int, seen: float) -> Work:
        """Sublayer i over some nodes.

        Args:
            rows: of the KV cache that are read once, from before the nodes.
            seen: positions that a node sees on average, itself included.
        """
        shape = self.shape
        if i % 2:
            return self._matrices(shape.mlp_params, nodes)
        attended = Work(rows * shape.cache_row * self.value_bytes, 4 * nodes * shape.n_heads * shape.head_dim * seen)
        return self._matrices(shape.attn_params, nodes) + attended

    def forward(self, nodes: int, context: int, predicted: int | None = None) -> Work:
        """All sublayers over a chain of nodes after a context, and the LM head over so many of them (None: all)."""
        seen = context + (nodes + 1) / 2
        one_block = self.sublayer(0, nodes, context, seen) + self.sublayer(1, nodes, context, seen)
        blocks = Work(self.shape.n_layers * one_block.n_bytes, self.shape.n_layers * one_block.flops)
        predicted = nodes if predicted is None else predicted
        return blocks + self._matrices(self.shape.head_params, predicted) if predicted else blocks

    def prefill(self, length: int) -> list[Work]:
        """The passes over a prompt, the LM head over its last position."""
        starts = range(0, length, PREFILL_CHUNK)
        return [self.forward(min(PREFILL_CHUNK, length - s), s, int(s == starts[-1])) for s in starts]

    def _matrices(self, params: int, nodes: int) -> Work:
        return Work(params * self.value_bytes, 2 * params * nodes)


@dataclass(frozen=True)
class Limits:
    """The most that this machine does.

    Attributes:
        by: whose kernels measured it.
        reads: bytes per second that each kernel only reads.
        products: FLOP/s of each kernel that only multiplies and adds, as products of the run do.
    """

    by: str
    reads: Mapping[str, float]
    products: Mapping[str, float]

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return max(self.reads.values())

    @property
    def peak(self) -> float:
        """FLOP/s."""
        return max(self.products.values())

    def named(self) -> dict[str, Any]:
        """As results show it: both limits, which kernels reached them, and what the others did."""
        best_read, best_product = (max(of, key=of.__getitem__) for of in (self.reads, self.products))
        return {
            "by": self.by, "bandwidth_bytes_per_s": self.bandwidth, "bandwidth_by": best_read,
            "peak_flops": self.peak, "peak_by": best_product,
            "reads_bytes_per_s": dict(self.reads), "products_flops": dict(self.products),
        }  # fmt: skip

    def figure(self, measured_ms: float, passes: Sequence[Work], count: int = 1) -> dict[str, Any]:
        """A measured time beside its limit.

        Args:
            measured_ms: of one of `count` equal parts, such as tokens.
            passes: all that was done, one after the other.

        Returns:
            ms, limit_ms, share = limit_ms / ms, what binds (memory or arithmetic), and bytes and flops of a part.
        """
        reading = [work.n_bytes / self.bandwidth for work in passes]
        computing = [work.flops / self.peak for work in passes]
        limit_ms = sum(map(max, reading, computing)) * 1e3 / count
        total = sum(passes, Work(0, 0))
        return {
            "ms": measured_ms, "limit_ms": limit_ms, "share": limit_ms / measured_ms,
            "bound_by": "memory" if sum(reading) >= sum(computing) else "arithmetic",
            "bytes": total.n_bytes / count, "flops": total.flops / count,
        }  # fmt: skip


def measure(decoder: Decoder) -> Limits:
    """Of the first device of a decoder, by compiled kernels where they run its passes, else by PyTorch."""
    if not isinstance(decoder, NativeDecoder):
        return _by_torch(decoder.device, decoder.arithmetic.activations)
    compiled = extension(decoder.arithmetic)
    found = {
        f"{name}{pages}": max(speeds)
        for pages, huge in (("", False), (", huge pages", True))
        for name, speeds in compiled.read_speeds(READ_BYTES, huge, ROUNDS).items()
    }
    rounds = decoder.arithmetic.inputs == torch.bfloat16  # else the unit for its products is not the one in use
    products = {
        name: max(speeds)
        for name, speeds in compiled.product_speeds(PRODUCT_STEPS, ROUNDS).items()
        if ("bfloat16" in name) == rounds
    }
    return Limits(f"compiled kernels ({decoder.arithmetic.isa})", found, products)


def _by_torch(device: torch.device, dtype: torch.dtype) -> Limits:
    """What PyTorch's reductions read of one large tensor, and its product of two large matrices of a dtype."""
    data = torch.ones(SUMMED_BYTES[device.type] // 4, dtype=torch.float32, device=device)
    times = interleaved({"sum": data.sum, "max": data.max, "dot": partial(torch.dot, data, data)}, device, ROUNDS)
    reads = {name: data.nbytes / min(taken) for name, taken in times.items()}
    size = MATRIX[device.type]
    sides = torch.ones(2, size, size, dtype=dtype, device=device)
    products = interleaved({f"{size} x {size}": partial(torch.mm, sides[0], sides[1])}, device, ROUNDS)
    return Limits("PyTorch", reads, {name: 2 * size**3 / min(taken) for name, taken in products.items()})


def seconds(run: Callable[[], Any], device: torch.device) -> float:
    """Of one call, until the device is done."""
    begin = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def interleaved(runs: Mapping[str, Callable[[], Any]], device: torch.device, rounds: int) -> dict[str, list[float]]:
    """Seconds of each run in each round; one uncounted round first, then in turn, so that drift hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for index in range(rounds + 1):
        for name, run in runs.items():
            took = seconds(run, device)
            if index:
                times[name].append(took)
    return times
