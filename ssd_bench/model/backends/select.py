"""Fused operations of a decoder layer: compiled CPU kernels where they can be built, PyTorch everywhere else."""

from functools import cache
from types import ModuleType
from typing import cast

import torch

from ssd_bench.errors import ConfigError
from ssd_bench.model.backends.arithmetic import Arithmetic, Level, decide, resolve, with_code
from ssd_bench.model.backends.cpu.build import BuildError, load_extension
from ssd_bench.model.backends.interface import Ops
from ssd_bench.model.backends.torch import TorchOps

CHOICES = ("auto", "torch", "native")
NODE_LIMIT = 32  # beyond it a float32 GEMM on upcast weights beats the kernels, which are built for few nodes
NATIVE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class NativeOps:
    """`interface.Ops` as compiled functions, of passes over few nodes; PyTorch's beyond.

    Args:
        arithmetic: what `arithmetic.decide` said.
        module: the extension of its level.
    """

    def __init__(self, arithmetic: Arithmetic, module: ModuleType):
        self.arithmetic = arithmetic
        module.delegate(NODE_LIMIT, TorchOps(arithmetic))
        self.norm_linear, self.linear = module.norm_linear, module.linear
        self.linear_add_, self.swiglu_linear_add_ = module.linear_add_, module.swiglu_linear_add_
        self.rope_append, self.attend = module.rope_append, module.attend
        self.attend_branches = module.attend_branches


@cache
def _extension(level: Level) -> ModuleType | str:
    """The compiled operations of a level that has code, built on the first call (under a minute), or why not."""
    try:
        return load_extension(level)
    except BuildError as error:
        return str(error)


def native_problem(isa: str = "auto") -> str:
    """One line that says why there are no compiled operations of this level; empty where there are."""
    found = _extension(with_code(resolve(isa)))
    return found if isinstance(found, str) else ""


def select(device: torch.device | str, dtype: torch.dtype, choice: str = "auto", isa: str = "auto") -> Ops:
    """The operations for weights of dtype on device: the compiled ones where possible unless choice says otherwise.

    Args:
        choice: `hardware.kernels`.
        isa: `hardware.isa`.

    Raises:
        ConfigError: an unknown choice or level, 'native' where it is impossible, or a level that this CPU lacks.
    """
    field, device = "hardware.kernels", torch.device(device)
    if choice not in CHOICES:
        raise ConfigError(field, choice, f"one of {', '.join(CHOICES)}")
    kernels = "torch" if choice == "torch" else "native"
    if kernels == "native" and (problem := _problem(device, dtype, isa)):
        if choice == "native":
            raise ConfigError(field, choice, f"{problem}; use torch or auto")
        kernels = "torch"
    return _ops(decide(device, dtype, kernels, isa))


def _problem(device: torch.device, dtype: torch.dtype, isa: str) -> str:
    """Why compiled operations cannot serve, empty where they can."""
    if device.type != "cpu":
        return f"the native kernels run on the CPU only, not on {device}"
    if dtype not in NATIVE_DTYPES:
        return f"the native kernels take float32, bfloat16 and float16 weights, not {dtype}"
    problem = native_problem(isa)
    return f"the native kernels could not be built: {problem}" if problem else ""


@cache
def _ops(arithmetic: Arithmetic) -> Ops:
    if arithmetic.kernels == "torch":
        return TorchOps(arithmetic)
    level = with_code(resolve(arithmetic.isa or "auto"))
    return cast(Ops, NativeOps(arithmetic, cast(ModuleType, _extension(level))))
