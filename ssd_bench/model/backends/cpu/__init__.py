"""Compiled kernels for a CPU, at the level of instructions that the arithmetic names."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import ClassVar

import torch
from torch import Tensor

from ssd_bench.model.arithmetic import Arithmetic, Level, resolve
from ssd_bench.model.backends.cpu.build import BuildError, load_extension
from ssd_bench.model.decoder import Decoder, Pass
from ssd_bench.model.kv_cache import KVCache
from ssd_bench.model.operators import Matrix, Operators, Seen
from ssd_bench.model.weights import Weights

COMPILED = (
    "norm_linear", "linear", "linear_add_", "swiglu_linear_add_", "top", "mass", "rope_append", "attend",
    "attend_branches",
)  # fmt: skip
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class NativeOperators(Operators):
    """The operators as compiled functions, for any number of nodes: a node's result has the same bits in all of them.

    Args:
        arithmetic: of a level of this CPU.
        module: the extension of that level.
    """

    def __init__(self, arithmetic: Arithmetic, module: ModuleType):
        super().__init__(arithmetic)
        for name in COMPILED:
            setattr(self, name, getattr(module, name))
        self._pack = module.Matrix

    def packed(self, weight: Tensor) -> Matrix:
        """Matrices in tiles, in the order in which products read them; vectors as activations."""
        return self._pack(weight.contiguous()) if weight.dim() == 2 else super().packed(weight)

    def embed(self, W: Matrix, tokens: Tensor) -> Tensor:
        made: Tensor = W.floats(tokens)
        return made

    def select(self, W: Matrix, rows: Tensor) -> Matrix:
        return W.select(rows)

    def seen(self, n: int, prefix_len: int, mask: Tensor | None, device: torch.device) -> Seen:
        """The mask itself; a chain needs none."""
        return mask


class NativeDecoder(Decoder):
    """The decoder on compiled operators, which read 16-bit weights and caches as they are and sum in float32."""

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
        return _operators(arithmetic)

    def _through(self, what: Pass, hidden: Tensor, kept: Tensor | None, cache: KVCache) -> Tensor:
        """All sublayers in one call."""
        place = self._place(what, hidden.device)
        self._blocks.run(
            hidden, what.sublayers, what.prefix_len, place.row, place.cos, place.sin, place.seen, what.taps, kept,
            cache.keys, cache.values, place.unread,
        )  # fmt: skip
        return hidden


BACKEND = NativeDecoder


def native_problem(isa: str = "auto") -> str:
    """One line that says why there are no compiled operators of this level; empty where there are."""
    found = _extension(resolve(isa))
    return found if isinstance(found, str) else ""


def extension(arithmetic: Arithmetic) -> ModuleType:
    """The compiled functions of the level of an arithmetic that `NativeDecoder` decided."""
    module = _extension(resolve(arithmetic.isa or "auto"))
    assert isinstance(module, ModuleType), "`problem` comes first"
    return module


@cache
def _operators(arithmetic: Arithmetic) -> NativeOperators:
    return NativeOperators(arithmetic, extension(arithmetic))


@cache
def _extension(level: Level) -> ModuleType | str:
    """The compiled operators of a level, built on the first call (under a minute), or why not."""
    try:
        return load_extension(level)
    except BuildError as error:
        return str(error)
