"""The one place that decides how a run computes: whose operators, which instructions, and what is rounded to what.

All passes of a run compute alike, of one node or a thousand: what a CPU could do besides never changes a result.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from ssd_bench.errors import ConfigError

FORCED = "SSD_BENCH_ISA"
"""Environment variable with the level that `auto` stands for, to try one everywhere, in all tests as well."""


@dataclass(frozen=True)
class Level:
    """A set of instructions.

    Attributes:
        name: its choice of `hardware.isa`.
        needs: flags of the CPU, by Linux's names.
        flags: the compiler's.
        rounds: whether its products with bfloat16 weights and caches take bfloat16 on the other side too.
    """

    name: str
    needs: tuple[str, ...]
    flags: tuple[str, ...]
    rounds: bool = False


AVX2 = ("avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe")
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
# Ascending. Tuning is part of a level: left to the compiler's idea of this very machine, it would decide which products
# and sums are fused, and with it their last bits.
LEVELS = (
    Level("amx_emulated", (), ("-DSSD_EMULATED_TILES",), rounds=True),  # amx's kernels for any CPU, to test them
    Level("generic", (), ()),  # the architecture's own vectors: SSE2 on x86-64, NEON on ARM
    Level("avx2", AVX2, ("-march=haswell",)),
    Level("avx512", AVX512, ("-march=skylake-avx512",)),
    Level("avx512_bf16", (*AVX512, "avx512_bf16"), ("-march=skylake-avx512", "-mavx512bf16"), rounds=True),
    Level(
        "amx", (*AVX512, "avx512_bf16", "amx_tile", "amx_bf16"),
        ("-march=skylake-avx512", "-mavx512bf16", "-mamx-tile", "-mamx-bf16"), rounds=True,
    ),
)  # fmt: skip
CHOICES = ("auto", *(level.name for level in LEVELS))


@dataclass(frozen=True)
class Arithmetic:
    """How every pass of a run computes.

    Attributes:
        kernels: name of the backend.
        isa: level whose code runs; PyTorch's own operators choose their instructions themselves, and round nothing
            that the level does not. None on accelerators.
        activations: dtype of the residual stream, of all vectors, and of sums.
        inputs: dtype that both sides of a product are rounded to before it, in attention too; sums are not.
    """

    kernels: str
    isa: str | None
    activations: torch.dtype
    inputs: torch.dtype

    def named(self) -> dict[str, str | None]:
        """As records and tables show it."""
        kinds = {"activations": self.activations, "inputs": self.inputs}
        names = {field: str(dtype).removeprefix("torch.") for field, dtype in kinds.items()}
        return {"kernels": self.kernels, "isa": self.isa, **names}

    def __str__(self) -> str:
        return "/".join(str(part) for part in self.named().values())


def decide(device: torch.device, weights: torch.dtype, kernels: str, isa: str) -> Arithmetic:
    """The arithmetic of a run.

    A CPU reads 16-bit weights and caches and computes in float32, with compiled kernels or without; where its products
    of bfloat16 are an instruction, they take both sides so. An accelerator computes in the dtype of the weights.

    Args:
        device: of the weights.
        weights: their dtype.
        kernels: name of the backend.
        isa: a choice of `hardware.isa`; accelerators have none.

    Raises:
        ConfigError: a level that does not exist, or that this CPU lacks.
    """
    if device.type != "cpu":
        return Arithmetic(kernels, None, weights, weights)
    wide, level = torch.promote_types(weights, torch.float32), resolve(isa)
    rounded = level.rounds and weights == torch.bfloat16
    return Arithmetic(kernels, level.name, wide, torch.bfloat16 if rounded else wide)


def resolve(isa: str) -> Level:
    """The level of a choice; `auto` is the highest that this CPU has, or the one in `SSD_BENCH_ISA`.

    Raises:
        ConfigError: an unknown level, or one that this CPU lacks.
    """
    field, known = "hardware.isa", available()
    if isa == "auto":
        isa = os.environ.get(FORCED) or known[-1].name
        field = FORCED
    level = next((level for level in known if level.name == isa), None)
    if level is None:
        there = f"auto or one of {', '.join(level.name for level in known)}, which this CPU has"
        raise ConfigError(field, isa, there)
    return level


@cache
def available() -> tuple[Level, ...]:
    """The levels that this CPU has, ascending."""
    has = _flags()
    return tuple(level for level in LEVELS if has.issuperset(level.needs))


def _flags() -> set[str]:
    """What an x86 CPU can do and the system lets it do."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return set(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())
