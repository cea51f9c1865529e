"""Hardware of a run (`conf/hardware`), resolved and checked before anything is loaded."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch

from ssd_bench.cost.latency import Latency
from ssd_bench.cost.reference import reference_machine
from ssd_bench.errors import ConfigError
from ssd_bench.model.arithmetic import resolve
from ssd_bench.model.backend import check_name
from ssd_bench.settings import Count, Range, Whole, check_value, settings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
Milliseconds = Annotated[float, Range(0, what="a time in ms")]
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


@settings("hardware", frozen=True)
class Options:
    """Settings of `conf/hardware`."""

    device: str | Sequence[str]
    """auto, cpu, cuda, cuda:N, or a list of these over which the blocks are spread."""
    dtype: Literal["float32", "bfloat16", "float16", "float64"]
    """Dtype of weights and KV cache."""
    threads: Count | None
    """CPU threads of PyTorch; null: all cores."""
    warmup: Whole
    """Short generations per arm before anything is measured."""
    kernels: str
    """Backend that runs passes: native (compiled, for CPUs), graphs (captured Triton kernels, for one GPU), torch, or
    auto: the first two where they can serve."""
    isa: Literal["auto", "amx_emulated", "generic", "avx2", "avx512", "avx512_bf16", "amx"]
    """Instruction level of the CPU for all passes; auto is the highest available. Sums are float32 on every level. On
    the last two, products with bfloat16 weights, also in attention, round the other operand to bfloat16 too; nothing
    else is rounded. amx_emulated computes what amx does without the matrix unit, slowly, for tests. The record holds
    the level; the tolerance of the losslessness audit depends on it."""
    latency: Mapping[str, Any] | None
    """Milliseconds of the sublayers, set instead of measured: t_mlp_ms, t_attn_slope_ms and t_attn_intercept_ms."""
    costs: str | None = None
    """Reference machine, such as h200/llama3_1_8b, whose costs a method gets instead of this machine's: it then
    optimises for the machine by which modelled speedups judge it. null: this machine's costs."""
    exclusive: bool = False
    """Wait until no other run with this switch measures on the same CPU or GPUs of this machine."""

    def __post_init__(self) -> None:
        check_name(self.kernels)
        if self.costs is not None:
            reference_machine(self.costs)
            if self.latency is not None:
                raise ConfigError("hardware.costs", self.costs, "null where hardware.latency sets the times")


@dataclass(frozen=True)
class Hardware:
    """Resolved `Options` of a run; blocks are spread over `devices` in their order."""

    devices: tuple[torch.device, ...]
    dtype: torch.dtype
    threads: int
    warmup: int
    kernels: str
    isa: str
    latency: Latency | None
    costs: str | None
    exclusive: bool

    @classmethod
    def of(cls, *values: Any, **options: Any) -> Hardware:
        """Resolve and check the `Options` of `conf/hardware`.

        Raises:
            ConfigError: a missing device, an unsupported dtype or instruction level, a count out of range.
        """
        chosen = Options(*values, **options)
        cores = len(os.sched_getaffinity(0))
        if chosen.threads is not None and not 1 <= chosen.threads <= cores:
            raise ConfigError("hardware.threads", chosen.threads, f"1 to {cores} on this machine, or null for all")
        names = [chosen.device] if isinstance(chosen.device, str) else list(chosen.device)
        devices = tuple(_resolve(name) for name in names)
        if not devices:
            raise ConfigError("hardware.device", names, "at least one device")
        _check_dtype(devices, chosen.dtype)
        if devices[0].type == "cpu":
            resolve(chosen.isa)
        elif chosen.isa != "auto":
            expected = f"auto: levels exist for CPUs only, and this runs on {devices[0]}"
            raise ConfigError("hardware.isa", chosen.isa, expected)
        latency = None if chosen.latency is None else _latency(chosen.latency)
        resolved = (devices, DTYPES[chosen.dtype], chosen.threads or cores)
        return cls(*resolved, chosen.warmup, chosen.kernels, chosen.isa, latency, chosen.costs, chosen.exclusive)

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def label(self) -> str:
        """Names of the devices for records and tables."""
        return ",".join(str(device) for device in self.devices)

    def gpu_names(self) -> list[str]:
        return [torch.cuda.get_device_name(d) for d in self.devices if d.type == "cuda"]

    def peak_bytes(self) -> int:
        """Return the highest memory use so far: of the GPUs' allocators, or of the process on a CPU."""
        if self.devices[0].type == "cuda":
            return sum(torch.cuda.max_memory_allocated(device) for device in self.devices)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _resolve(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError("hardware.device", name, "auto, cpu, cuda, cuda:N or a list of these")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            reason = f"this machine has {count} GPUs" if count else "no GPU is visible here; use hardware.device=cpu"
            raise ConfigError("hardware.device", name, f"an available device: {reason}")
        return torch.device("cuda", device.index or 0)
    return device


def _check_dtype(devices: Sequence[torch.device], dtype: str) -> None:
    if dtype == "bfloat16":
        for device in devices:
            if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
                raise ConfigError("hardware.dtype", dtype, f"float16 or float32: {device} is older than compute 8.0")


def _latency(values: Mapping[str, Any]) -> Latency:
    fields = ("t_mlp_ms", "t_attn_slope_ms", "t_attn_intercept_ms")
    if sorted(values) != sorted(fields):
        raise ConfigError("hardware.latency", values, f"null, or exactly {', '.join(fields)}")
    mlp, slope, intercept = (
        float(check_value(f"hardware.latency.{field}", Milliseconds, values[field])) for field in fields
    )
    return Latency(mlp, slope, intercept)


@contextmanager
def lasting_buffers() -> Iterator[None]:
    """Allocate weights and cache, in this context, outside glibc's heap, and everything after it on the heap.

    By default glibc adapts and puts large buffers on the heap, too, where memory freed between them is lost (160 MB on
    a 135M model). Mapping short-lived activations anew nearly doubles the time of a search.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc only
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 2**17)
    yield
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 2**25)
        mallopt(M_TRIM_THRESHOLD, 2**26)
