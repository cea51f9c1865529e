"""Limits of a machine: measured bandwidth and arithmetic, the least work of a pass, and the share of the limit.

A pass reads its weights and all earlier keys and values once, and multiplies every weight with every node:

    limit = max(bytes / read bandwidth, FLOPs / peak arithmetic).

Successive passes' limits add up. Norms, biases and activations are left out. A share may exceed 1 if the weights fit in
a cache, or if PyTorch uses instructions beyond the chosen level.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ssd_bench.contract.shape import Shape
from ssd_bench.model.backends.cpu import NativeDecoder, extension
from ssd_bench.model.decoder import PREFILL_CHUNK, Decoder, Pass
from ssd_bench.model.kv_cache import KVCache

ROUNDS = 5  # of every kernel; the fastest counts, because a limit is measured
READ_BYTES = 2**28  # read by compiled kernels; exceeds caches
SUMMED_BYTES = {"cpu": 2**30, "cuda": 2**32}  # read by PyTorch; a GPU finishes less before it is at full speed
PRODUCT_STEPS = 2**18  # multiply-adds of every sum in a register, a few milliseconds
MATRIX = {"cpu": 2048, "cuda": 8192}  # rows and columns of PyTorch's product


@dataclass(frozen=True)
class Traffic:
    """Least work of a pass: bytes read from memory, and floating-point operations."""

    n_bytes: float
    flops: float

    def __add__(self, work: Traffic) -> Traffic:
        return Traffic(self.n_bytes + work.n_bytes, self.flops + work.flops)


@dataclass(frozen=True)
class Model:
    """Sizes of a decoder and the work of its passes; `value_bytes` per element of its matrices and KV cache."""

    shape: Shape
    value_bytes: int

    @classmethod
    def of(cls, decoder: Decoder) -> Model:
        return cls(decoder.arch, decoder.weights.dtype.itemsize)

    def sublayer(self, i: int, nodes: int, rows: int, seen: float) -> Traffic:
        """Return the work of sublayer i over some nodes.

        Args:
            rows: rows of the KV cache before the nodes, each read once.
            seen: mean number of positions that a node attends to, itself included.
        """
        shape = self.shape
        if i % 2:
            return self._matrices(shape.mlp_params, nodes)
        attended = Traffic(rows * shape.cache_row * self.value_bytes, 4 * nodes * shape.n_heads * shape.head_dim * seen)
        return self._matrices(shape.attn_params, nodes) + attended

    def forward(self, nodes: int, context: int, predicted: int | None = None) -> Traffic:
        """Return the work of all sublayers over a chain of nodes, and of the LM head over `predicted` (None: all)."""
        seen = context + (nodes + 1) / 2
        block = self.sublayer(0, nodes, context, seen) + self.sublayer(1, nodes, context, seen)
        blocks = Traffic(self.shape.n_layers * block.n_bytes, self.shape.n_layers * block.flops)
        predicted = nodes if predicted is None else predicted
        return blocks + self._matrices(self.shape.head_params, predicted) if predicted else blocks

    def prefill(self, length: int) -> list[Traffic]:
        """Return the work of each pass over a prompt, with the LM head over its last position."""
        starts = range(0, length, PREFILL_CHUNK)
        return [self.forward(min(PREFILL_CHUNK, length - s), s, int(s == starts[-1])) for s in starts]

    def _matrices(self, params: int, nodes: int) -> Traffic:
        return Traffic(params * self.value_bytes, 2 * params * nodes)


@dataclass(frozen=True)
class MachineLimits:
    """Measured limits of a machine.

    Attributes:
        by: the kernels that measured them.
        reads: bytes per second of each kernel that only reads.
        products: FLOP/s of each kernel that only multiplies and adds, as the run's products do.
    """

    by: str
    reads: Mapping[str, float]
    products: Mapping[str, float]

    @property
    def bandwidth(self) -> float:
        """Highest read bandwidth in bytes per second."""
        return max(self.reads.values())

    @property
    def peak(self) -> float:
        """Highest arithmetic speed in FLOP/s."""
        return max(self.products.values())

    def named(self) -> dict[str, Any]:
        """Return both limits, the kernels that reached them, and the speeds of all kernels."""
        best_read, best_product = (max(speeds, key=speeds.__getitem__) for speeds in (self.reads, self.products))
        return {
            "by": self.by,
            "bandwidth_bytes_per_s": self.bandwidth,
            "bandwidth_by": best_read,
            "peak_flops": self.peak,
            "peak_by": best_product,
            "reads_bytes_per_s": dict(self.reads),
            "products_flops": dict(self.products),
        }

    def figure(self, measured_ms: float, passes: Sequence[Traffic], count: int = 1) -> dict[str, Any]:
        """Compare a measured time with its limit.

        Args:
            measured_ms: time of one of `count` equal parts, such as tokens.
            passes: work of all passes of all parts.

        Returns:
            ms, limit_ms, share = limit_ms / ms, bound_by (memory or arithmetic), and bytes and flops of a part.
        """
        reading = [work.n_bytes / self.bandwidth for work in passes]
        computing = [work.flops / self.peak for work in passes]
        limit_ms = sum(map(max, reading, computing)) * 1e3 / count
        total = sum(passes, Traffic(0, 0))
        return {
            "ms": measured_ms,
            "limit_ms": limit_ms,
            "share": limit_ms / measured_ms,
            "bound_by": "memory" if sum(reading) >= sum(computing) else "arithmetic",
            "bytes": total.n_bytes / count,
            "flops": total.flops / count,
        }


def measure(decoder: Decoder) -> MachineLimits:
    """Measure the limits of a decoder's first device, by compiled kernels if they run its passes, else by PyTorch."""
    if not isinstance(decoder, NativeDecoder):
        return _by_torch(decoder.device, decoder.arithmetic.activations)
    compiled = extension(decoder.arithmetic)
    reads = {
        f"{name}{pages}": max(speeds)
        for pages, huge in (("", False), (", huge pages", True))
        for name, speeds in compiled.read_speeds(READ_BYTES, huge, ROUNDS).items()
    }
    # Only kernels of the unit that runs the decoder's products count: with bfloat16 inputs or without.
    rounds_inputs = decoder.arithmetic.inputs == torch.bfloat16
    products = {
        name: max(speeds)
        for name, speeds in compiled.product_speeds(PRODUCT_STEPS, ROUNDS).items()
        if ("bfloat16" in name) == rounds_inputs
    }
    return MachineLimits(f"compiled kernels ({decoder.arithmetic.isa})", reads, products)


def _by_torch(device: torch.device, dtype: torch.dtype) -> MachineLimits:
    data = torch.ones(SUMMED_BYTES[device.type] // 4, dtype=torch.float32, device=device)
    times = interleaved({"sum": data.sum, "max": data.max, "dot": partial(torch.dot, data, data)}, device, ROUNDS)
    reads = {name: data.nbytes / min(rounds_s) for name, rounds_s in times.items()}
    size = MATRIX[device.type]
    sides = torch.ones(2, size, size, dtype=dtype, device=device)
    products = interleaved({f"{size} x {size}": partial(torch.mm, sides[0], sides[1])}, device, ROUNDS)
    return MachineLimits("PyTorch", reads, {name: 2 * size**3 / min(rounds_s) for name, rounds_s in products.items()})


@torch.inference_mode()
def run_pass(
    decoder: Decoder,
    cache: KVCache,
    n: int,
    context: int,
    sublayers: Sequence[int] | None = None,
    bits: int = 0,
    predicts: bool = True,
) -> None:
    """Run a pass over n nodes at a context, and the LM head if it `predicts`, down to the chosen tokens on the host.

    Args:
        sublayers: None: all.
        bits: of the weights of sublayers and head; 0: as loaded.
    """
    chosen = decoder.all_sublayers if sublayers is None else sublayers
    tokens = torch.zeros(n, dtype=torch.long, device=decoder.device)
    rounded = dict.fromkeys(chosen, bits) if bits else None
    hidden, _ = decoder.run(Pass(chosen, tokens, context, bits=rounded), cache)
    if predicts:
        decoder.logits(hidden, bits=bits).argmax(-1).tolist()


def interleaved(runs: Mapping[str, Callable[[], Any]], device: torch.device, rounds: int) -> dict[str, list[float]]:
    """Return each run's seconds until the device is done, by round, after a warm-up round.

    Runs take turns, so that all share drift.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for index in range(rounds + 1):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if index:
                times[name].append(time.perf_counter() - begin)
    return times
