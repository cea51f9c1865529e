"""Fused operations of a decoder layer: compiled CPU kernels where they can be built, PyTorch everywhere else."""

from functools import lru_cache
from typing import Any, cast

import torch

from ssd_bench.errors import ConfigError
from ssd_bench.kernels import torch_ops
from ssd_bench.kernels.build import BuildError, load_extension
from ssd_bench.kernels.interface import Ops

__all__ = ["CHOICES", "NODE_LIMIT", "Ops", "native", "native_problem", "select"]

CHOICES = ("auto", "torch", "native")
NODE_LIMIT = 32  # beyond it a float32 GEMM on upcast weights beats the kernels, which are built for few nodes
NATIVE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@lru_cache(maxsize=1)
def _native_or_problem() -> tuple[Ops | None, str]:
    try:
        module: Any = load_extension()
    except BuildError as error:
        return None, str(error)
    module.delegate(NODE_LIMIT, torch_ops)
    module.native = True
    return cast(Ops, module), ""


def native() -> Ops | None:
    """The compiled operations, built on the first call (under a minute), or None (see native_problem)."""
    return _native_or_problem()[0]


def native_problem() -> str:
    """One line that says why native() is None; empty where it is not."""
    return _native_or_problem()[1]


def select(device: torch.device | str, dtype: torch.dtype, choice: str = "auto") -> Ops:
    """The operations for weights of dtype on device: the compiled ones where possible unless choice says otherwise.

    Raises ConfigError (field hardware.kernels) for an unknown choice and for 'native' where it is impossible.
    """
    field = "hardware.kernels"
    if choice not in CHOICES:
        raise ConfigError(field, choice, f"one of {', '.join(CHOICES)}")
    if choice == "torch":
        return cast(Ops, torch_ops)
    problem = ""
    if torch.device(device).type != "cpu":
        problem = f"the native kernels run on the CPU only, not on {device}"
    elif dtype not in NATIVE_DTYPES:
        problem = f"the native kernels take float32, bfloat16 and float16 weights, not {dtype}"
    else:
        ops = native()
        if ops is not None:
            return ops
        problem = f"the native kernels could not be built: {native_problem()}"
    if choice == "native":
        raise ConfigError(field, choice, f"{problem}; use torch or auto")
    return cast(Ops, torch_ops)
