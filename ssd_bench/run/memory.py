"""Memory that a run needs, checked against what is free before its weights are loaded."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import psutil
import torch

from ssd_bench.contract.method import Method
from ssd_bench.contract.optional import Quantised
from ssd_bench.contract.shape import Shape
from ssd_bench.cost.roofline import ROUNDED_BYTES
from ssd_bench.errors import ConfigError
from ssd_bench.model.snapshot import GB
from ssd_bench.model.weights import declared_architecture
from ssd_bench.run.hardware import Hardware
from ssd_bench.run.plan import Plan

CGROUP = Path("/sys/fs/cgroup")
"""Folder of the limits of a container (cgroup v2)."""


def check_memory(plan: Plan, positions: int) -> None:
    """Refuse a model that does not fit with so many cache positions: the system would kill it while it loads.

    Raises:
        ConfigError: says what the run needs, part by part, and what is free.
    """
    hardware, bits = plan.machine.hardware, rounded_bits(plan.method)
    shape = declared_architecture(plan.model.checkpoint)
    parts = needed_bytes(shape, hardware.dtype.itemsize, bits, positions)
    needed, free = sum(parts.values()), free_bytes(hardware)
    if needed > free:
        gc.collect()  # an earlier run's model may wait in a reference cycle
        free = free_bytes(hardware)
    if needed > free:
        listed = ", ".join(f"{name} {part / GB:.1f}" for name, part in parts.items())
        advice = "hardware.dtype=bfloat16, another model" + (", drafts without rounded weights" if bits else "")
        expected = f"one that fits into {hardware.label}: it needs {needed / GB:.1f} GB ({listed}), {free / GB:.1f} GB "
        raise ConfigError("model", plan.model.dims.name, f"{expected}are free; try {advice} or another machine")


def rounded_bits(method: Method) -> list[int]:
    """Return the bits of the rounded weights that a method's drafts may read, descending."""
    return sorted(method.bits, reverse=True) if isinstance(method, Quantised) else []


def needed_bytes(shape: Shape, value_bytes: int, bits: Sequence[int], positions: float) -> dict[str, float]:
    """Return the bytes of weights, of their rounded copies and of the cache: a lower bound, by part.

    A weight and a cached value have `value_bytes`.
    """
    blocks = shape.n_layers * (shape.attn_params + shape.mlp_params)
    copies = {f"a copy in {of} bits": ROUNDED_BYTES[of] * (blocks + shape.head_params) for of in bits}
    cache = shape.n_layers * shape.cache_row * positions * value_bytes
    return {"weights": shape.n_params * value_bytes, **copies, "cache": cache}


def free_bytes(hardware: Hardware) -> int:
    """Return the memory that this process may still take: of its GPUs, or of the host within a container's limit."""
    if hardware.devices[0].type == "cuda":
        return sum(map(_free_on_gpu, hardware.devices))
    return min([int(psutil.virtual_memory().available), *_left_in_container()])


def _free_on_gpu(device: torch.device) -> int:
    # PyTorch keeps the memory of freed tensors, of an earlier run for instance, and uses it again
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def _left_in_container() -> list[int]:
    try:
        limit, used = (int((CGROUP / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
        stated = dict(line.split() for line in (CGROUP / "memory.stat").read_text(encoding="ascii").splitlines())
    except (OSError, ValueError):  # no such files, or "max": no limit
        return []
    # pages of files count as used, but make room when a process asks for memory
    return [limit - used + int(stated.get("active_file", 0)) + int(stated.get("inactive_file", 0))]
