"""Compiled kernels for a CPU, at the arithmetic's instruction level."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import ClassVar

import torch
from torch import Tensor

from ssd_bench.model.arithmetic import Arithmetic, IsaLevel, resolve
from ssd_bench.model.backends.cpu.build import BuildError, load_extension
from ssd_bench.model.decoder import Decoder, Pass
from ssd_bench.model.kv_cache import KVCache
from ssd_bench.model.operators import ROUNDED_ROWS, HeadNorms, Matrix, Operators, RoundedMatrix, Visibility
from ssd_bench.model.rope import Rotation
from ssd_bench.model.weights import MATRICES, Weights

COMPILED = ("norm_linear", "linear", "linear_add_", "swiglu_linear_add_", "top", "mass", "attend", "attend_branches")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class NativeOperators(Operators):
    """Compiled operators; a node's result has the same bits for any number of nodes."""

    def __init__(self, arithmetic: Arithmetic, module: ModuleType):
        super().__init__(arithmetic)
        for name in COMPILED:
            setattr(self, name, getattr(module, name))
        self._matrix, self._rope_append = module.Matrix, module.rope_append

    def pack(self, weight: Tensor) -> Matrix:
        """Return a matrix in tiles, in reading order; a vector in the activations' dtype."""
        return self._matrix(weight.contiguous()) if weight.dim() == 2 else super().pack(weight)

    def embed(self, W: Matrix, tokens: Tensor) -> Tensor:
        return W.floats(tokens)

    def select(self, W: Matrix, rows: Tensor) -> Matrix:
        return W.select(rows)

    def round(self, W: Matrix, bits: int) -> Matrix:
        ids = torch.arange(W.shape[0])
        return self._matrix(*RoundedMatrix.of((W.floats(part) for part in ids.split(ROUNDED_ROWS)), bits))

    def rope_append(
        self, qkv: Tensor, rotation: Rotation, norms: HeadNorms, keys: Tensor, values: Tensor, row: int
    ) -> Tensor:
        return self._rope_append(qkv, *rotation, *norms, keys, values, row)

    def visibility(self, n: int, prefix_len: int, mask: Tensor | None, device: torch.device) -> Visibility:
        return mask


class NativeDecoder(Decoder):
    """The decoder on compiled operators, which read 16-bit weights and caches directly and sum in float32."""

    name: ClassVar[str] = "native"
    rank: ClassVar[int] = 1
    device_types: ClassVar[tuple[str, ...]] = ("cpu",)

    def __init__(self, arithmetic: Arithmetic, weights: Weights):
        super().__init__(arithmetic, weights)
        arch = weights.arch
        self._blocks = extension(arithmetic).Blocks(arch.n_heads, arch.n_kv_heads, arch.head_dim, arch.eps)
        for block in weights.blocks:
            self._blocks.append(**vars(block))

    @classmethod
    def problem(cls, dtype: torch.dtype, isa: str) -> str:
        if dtype not in DTYPES:
            return f"the native kernels take float32, bfloat16 and float16 weights, not {dtype}"
        problem = native_problem(isa)
        return f"the native kernels could not be built: {problem}" if problem else ""

    @classmethod
    def operators(cls, arithmetic: Arithmetic) -> Operators:
        return NativeOperators(arithmetic, extension(arithmetic))

    def quantise(self, bits: int) -> None:
        first = bits not in self.bits
        super().quantise(bits)
        if first:
            for block in self.in_bits(bits).blocks:
                self._blocks.append_rounded(bits, **{name: getattr(block, name) for name in MATRICES})

    def _run_sublayers(self, forward: Pass, hidden: Tensor, tapped: Tensor | None, cache: KVCache) -> Tensor:
        """Run all sublayers in one call, by one team of threads."""
        inputs = self._attention_inputs(forward, hidden.device)
        self._blocks.run(
            hidden,
            forward.sublayers,
            forward.prefix_len,
            inputs.row,
            *inputs.rotation,
            inputs.visibility,
            forward.taps,
            tapped,
            cache.keys,
            cache.values,
            inputs.unread,
            [forward.bits.get(i, 0) for i in forward.sublayers] if forward.bits else [],
        )
        return hidden


BACKEND = NativeDecoder


def native_problem(isa: str = "auto") -> str:
    """Return in one line why this level has no compiled operators; empty if it has."""
    module = _extension(resolve(isa))
    return module if isinstance(module, str) else ""


def extension(arithmetic: Arithmetic) -> ModuleType:
    """Return the compiled functions of the level chosen by `NativeDecoder.decide`."""
    module = _extension(resolve(arithmetic.isa or "auto"))
    assert isinstance(module, ModuleType), "`problem` comes first"
    return module


@cache
def _extension(level: IsaLevel) -> ModuleType | str:
    """Return a level's operators, built on the first call (under a minute), or why there are none."""
    try:
        return load_extension(level)
    except BuildError as error:
        return str(error)
