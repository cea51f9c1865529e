"""Loading of a planned model, its cache, and its latency profile on this machine."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import torch

from ssd_bench.cost import profiling
from ssd_bench.cost.latency import Latency
from ssd_bench.cost.reference import reference_machine
from ssd_bench.engine.engine import SCRATCH
from ssd_bench.engine.probe import ModelProbe
from ssd_bench.errors import ConfigError
from ssd_bench.model.decoder import Decoder
from ssd_bench.model.kv_cache import BUCKET, KVCache
from ssd_bench.paths import cache_dir
from ssd_bench.records import provenance
from ssd_bench.run.hardware import lasting_buffers
from ssd_bench.run.memory import check_memory, rounded_bits
from ssd_bench.run.plan import Plan
from ssd_bench.run_warnings import WarningLog


def load_model(plan: Plan, capacity: int | None = None) -> tuple[Decoder, KVCache]:
    """Load a plan's weights and allocate its cache, for its longest sequence or for `capacity` positions.

    The weights are copied in 8 or 4 bits if the method's drafts read them.

    Raises:
        ConfigError: as `check_memory`.
    """
    hardware, positions = plan.machine.hardware, (capacity or plan.prompts.context) + SCRATCH
    check_memory(plan, positions)
    torch.set_num_threads(hardware.threads)
    with lasting_buffers():
        decoder = plan.machine.backend.load(plan.model.checkpoint, hardware.dtype, hardware.devices)
        for bits in rounded_bits(plan.method):
            decoder.quantise(bits)
        cache = decoder.new_cache(positions)
        # Allocate what the prompts need before the first one is timed; answers longer than a bucket make it grow.
        longest = max(len(encoded.ids) for encoded in plan.prompts.encoded)
        cache.reserve(cache.capacity if capacity else min(longest + BUCKET, cache.capacity))
    return decoder, cache


def check_logits(plan: Plan, probe: ModelProbe) -> None:
    """Refuse a model whose logits overflow, which finite weights do not rule out."""
    if not math.isfinite(probe.top2_gap(plan.prompts.shortest.ids)):
        expected = "one in which this model's logits are finite: those of a prompt are not"
        raise ConfigError("hardware.dtype", plan.machine.hardware.dtype_name, expected)


def latency_of(plan: Plan, decoder: Decoder, cache: KVCache, log: WarningLog | None = None) -> Latency:
    """Return the profile of `hardware.latency` or `hardware.costs`, or one measured on this machine.

    Profiles are cached by model, hardware and context (rounded up to a power of two).
    """
    hardware = plan.machine.hardware
    if hardware.latency is not None:
        return hardware.latency
    if hardware.costs is not None:
        return reference_machine(hardware.costs).of_blocks(decoder.arch.n_layers).latency
    return profiling.load_or_measure(decoder, cache, profile_path(plan, cache.rows), log)


def profile_path(plan: Plan, rows: int) -> Path:
    """Return the file of a model's profile on this machine, measured up to `rows` of context."""
    context_bits = (rows - 1).bit_length()  # short contexts say little about long ones
    parts = (
        plan.origin.weights,
        plan.machine.hardware.label,
        plan.machine.hardware.dtype_name,
        plan.machine.hardware.threads,
        str(plan.machine.backend.arithmetic),
        plan.machine.hardware.gpu_names(),
        provenance.cpu_model(),
        torch.__version__,
        context_bits,
        rounded_bits(plan.method),
        profiling.VERSION,
    )
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return cache_dir() / "latency" / f"{plan.model.dims.name}-{key}.json"
