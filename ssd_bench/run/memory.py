"""Memory that a run needs, checked against what is free before its weights are loaded."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

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
    """Refuse a model that does not fit, which the system would otherwise kill while it loads.

    Args:
        positions: positions of the cache.

    Raises:
        ConfigError: says what the run needs, part by part, and what is free.
    """
    hardware, method = plan.machine.hardware, plan.method
    bits = sorted(method.bits, reverse=True) if isinstance(method, Quantised) else []
    parts = needed_bytes(declared_architecture(plan.model.checkpoint), hardware.dtype, bits, positions)
    needed, free = sum(parts.values()), free_bytes(hardware)
    if needed > free:
        listed = ", ".join(f"{name} {part / GB:.1f}" for name, part in parts.items())
        advice = "hardware.dtype=bfloat16, another model" + (", drafts without rounded weights" if bits else "")
        expected = f"one that fits into {hardware.label}: it needs {needed / GB:.1f} GB ({listed}), {free / GB:.1f} GB "
        raise ConfigError("model", plan.model.dims.name, f"{expected}are free; try {advice} or another machine")


def needed_bytes(shape: Shape, dtype: torch.dtype, bits: list[int], positions: int) -> dict[str, float]:
    """Return the bytes of weights, of their rounded copies and of the cache: a lower bound, by part."""
    blocks = shape.n_layers * (shape.attn_params + shape.mlp_params)
    copies = {f"a copy in {of} bits": ROUNDED_BYTES[of] * (blocks + shape.head_params) for of in bits}
    cache = shape.n_layers * shape.cache_row * positions * dtype.itemsize
    return {"weights": shape.n_params * dtype.itemsize, **copies, "cache": cache}


def free_bytes(hardware: Hardware) -> int:
    """Return the memory that this process may still take: of its GPUs, or of the host within a container's limit."""
    if hardware.devices[0].type == "cuda":
        return sum(torch.cuda.mem_get_info(device)[0] for device in hardware.devices)
    return min([int(psutil.virtual_memory().available), *_left_in_container()])


def _left_in_container() -> list[int]:
    try:
        limit, used = (int((CGROUP / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
        stated = dict(line.split() for line in (CGROUP / "memory.stat").read_text(encoding="ascii").splitlines())
    except (OSError, ValueError):  # no such files, or "max": no limit
        return []
    # pages of files count as used, but make room when a process asks for memory
    return [limit - used + int(stated.get("active_file", 0)) + int(stated.get("inactive_file", 0))]
