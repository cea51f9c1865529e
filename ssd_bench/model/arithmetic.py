"""Choice of a run's arithmetic: operators, CPU instructions, rounding.

All passes of a run use the same arithmetic, over one node or a thousand; other CPU features never change a result.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from ssd_bench.errors import ConfigError

FORCED = "SSD_BENCH_ISA"
"""Environment variable with the level of `auto`, to run everything (all tests, say) on that level."""


@dataclass(frozen=True)
class IsaLevel:
    """A level of CPU instructions for compiled kernels.

    Attributes:
        name: choice of `hardware.isa`.
        needs: required CPU flags, by Linux's names.
        rounds: whether products with bfloat16 weights and caches also round their other operand to bfloat16.
    """

    name: str
    needs: tuple[str, ...]
    flags: tuple[str, ...]
    rounds: bool = False


AVX2 = ("avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe")
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
AVX512_BF16 = (*AVX512, "avx512_vnni", "avx512_bf16")
AMX = (*AVX512_BF16, "amx_tile", "amx_bf16")
AVX512_BF16_FLAGS = ("-march=skylake-avx512", "-mavx512vnni", "-mavx512bf16")
# Ascending. -march also fixes the tuning: tuned for this very machine, the compiler would choose itself which products
# and sums it fuses, and the last bits of a result would depend on the machine.
LEVELS = (
    IsaLevel("amx_emulated", (), ("-DSSD_EMULATED_TILES",), rounds=True),  # amx's kernels for any CPU, to test them
    IsaLevel("generic", (), ()),  # the architecture's own vectors: SSE2 on x86-64, NEON on ARM
    IsaLevel("avx2", AVX2, ("-march=haswell",)),
    IsaLevel("avx512", AVX512, ("-march=skylake-avx512",)),
    IsaLevel("avx512_bf16", AVX512_BF16, AVX512_BF16_FLAGS, rounds=True),
    IsaLevel("amx", AMX, (*AVX512_BF16_FLAGS, "-mamx-tile", "-mamx-bf16"), rounds=True),
)


@dataclass(frozen=True)
class Arithmetic:
    """Arithmetic of every pass of a run.

    Attributes:
        isa: instruction level of the kernels, whose rounding PyTorch's operators share; None on accelerators.
        activations: dtype of the residual stream, vectors and sums.
        inputs: dtype to which both operands of a product are rounded, in attention too; sums are not rounded.
    """

    kernels: str
    isa: str | None
    activations: torch.dtype
    inputs: torch.dtype

    def named(self) -> dict[str, str | None]:
        """Return the fields as strings for records and tables."""
        kinds = {"activations": self.activations, "inputs": self.inputs}
        names = {field: str(dtype).removeprefix("torch.") for field, dtype in kinds.items()}
        return {"kernels": self.kernels, "isa": self.isa, **names}

    def __str__(self) -> str:
        return "/".join(str(part) for part in self.named().values())


def decide(device: torch.device, weights: torch.dtype, kernels: str, isa: str) -> Arithmetic:
    """Return the arithmetic of a run with weights of a dtype on a device.

    A CPU reads 16-bit weights and caches and computes in float32. On levels with bfloat16 products, both operands are
    rounded to bfloat16 if the weights are. An accelerator computes in the dtype of the weights.

    Raises:
        ConfigError: as `resolve`.
    """
    if device.type != "cpu":
        return Arithmetic(kernels, None, weights, weights)
    wide, level = torch.promote_types(weights, torch.float32), resolve(isa)
    rounded = level.rounds and weights == torch.bfloat16
    return Arithmetic(kernels, level.name, wide, torch.bfloat16 if rounded else wide)


def resolve(isa: str) -> IsaLevel:
    """Return the level of a choice; `auto` is this CPU's highest level, or the one in `SSD_BENCH_ISA`.

    Raises:
        ConfigError: the level is unknown, or missing on this CPU.
    """
    field, levels = "hardware.isa", available_levels()
    if isa == "auto":
        isa = os.environ.get(FORCED) or levels[-1].name
        field = FORCED
    level = next((level for level in levels if level.name == isa), None)
    if level is None:
        expected = f"auto or one of {', '.join(level.name for level in levels)}, which this CPU has"
        raise ConfigError(field, isa, expected)
    return level


@cache
def available_levels() -> tuple[IsaLevel, ...]:
    """Return this CPU's levels, ascending."""
    flags = _flags()
    return tuple(level for level in LEVELS if flags.issuperset(level.needs))


def _flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return set(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())
