"""Simulated GPUs: a roofline (bytes over bandwidth or FLOPs over their rate) and a cost for every kernel launch.

A sublayer over n nodes at context c reads its weights, and an attention the keys and values of c + n positions, once:

    max(bytes / (bandwidth * efficiency), FLOPs / (rate * efficiency)) + kernels * launch.

Activations, a few KB per node, are left out. Several GPUs hold the blocks in order, as in this engine and the papers:
their times add up, and the stream moves from one to the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ssd_bench.conf import choices, config_file, plug_in_with
from ssd_bench.contract.layer_set import BITS
from ssd_bench.contract.shape import Shape
from ssd_bench.cost.machine import Array, Calls, PassTimes
from ssd_bench.errors import ConfigError
from ssd_bench.settings import Range, settings

PREFIX = "sim_"
ADD_GPU = (
    "to add a GPU, copy conf/hardware/sim_h100.yaml to conf/hardware/sim_NAME.yaml and set latency.name, memory_gb, "
    "bandwidth_gb_s and dense_tflops by its data sheet (docs/advise.md)"
)
"""Instruction for a missing GPU."""
VALUE_BYTES = 2  # bfloat16 or float16, as in every speed table of the papers
FLOAT_BYTES = 4
ROUNDED_BYTES = {8: 1, 4: 0.625}
"""Bytes of a weight by its bits. 8 bits: without each output's scale, 4 bytes per row of thousands of weights; 4 bits:
with the scale and minimum of a group of 32, 2 bytes each."""
USABLE = 0.9  # of a GPU's memory for weights; the rest holds cache, activations and the runtime

# Numbers of kernels that this engine's PyTorch operations launch on a GPU, counted in `ssd_bench.model.operators`
NORM = 7  # upcast, square, mean, add, rsqrt, scale, downcast and weight
ATTN_KERNELS = NORM + 18  # qkv, tables 2, rotations of q and k 10, cache rows 2, attention 1, output and residual 2
ATTN_MASK_KERNELS = 4  # passes over several nodes: positions, comparison, padding, float mask
MLP_KERNELS = NORM + 5  # gate and up, SiLU, product, down, residual
REST_KERNELS = 1 + NORM + 5  # embedding, norm, head, upcast, softmax, maximum, copy to the host

CAPTURED_ROWS = 64
"""Most rows of a pass that this engine replays as a captured graph; larger calls are launched by operator."""

SIBLINGS_MS = 0.03
"""Milliseconds of a drafted token's siblings (assumed): top-k over the vocabulary, a longer copy to the host."""

TREE_NODE_MS = 0.005
"""Milliseconds of host work per tree node (mask, depths, children) at 2.5 GHz; 0.006 at 21 nodes, 0.005 at 65."""


Positive = Annotated[float, Range(above=0)]
Efficiency = Annotated[float, Range(above=0, most=1, what="a share")]
Cost = Annotated[float, Range(0)]


@settings("hardware.latency", frozen=True)
class Gpu:
    """A GPU, from `latency` in `conf/hardware/sim_*.yaml`.

    Attributes:
        name: the vendor's name.
        memory_gb, bandwidth_gb_s, dense_tflops: data sheet; 10^9 bytes, 10^9 bytes/s, 10^12 half-precision FLOP/s
            without sparsity.
        bandwidth_efficiency, flops_efficiency: shares of bandwidth and FLOP/s that decoding kernels reach, in (0, 1].
        launch_us: one more kernel in a pass.
        sync_us: a pass apart from its kernels, such as a round trip to the host; once per drafted token and per
            verification.
        loop_us: the decode loop's Python code in a step.
        hop_us: moving the stream to the next GPU.
        call_us: host time of a call that a search launches by itself.
        compare_us: a comparison of streams, for whose result the host waits.
    """

    name: str
    memory_gb: Positive
    bandwidth_gb_s: Positive
    dense_tflops: Positive
    bandwidth_efficiency: Efficiency
    flops_efficiency: Efficiency
    launch_us: Cost
    sync_us: Cost
    loop_us: Cost
    hop_us: Cost
    call_us: Cost
    compare_us: Cost


@dataclass(frozen=True)
class SimulatedMachine(PassTimes):
    """A model on equal GPUs, a `Machine`; each block of the timed work stands for `block_factor` of its blocks."""

    gpu: Gpu
    shape: Shape
    devices: int = 1
    block_factor: float = 1.0

    bits = BITS
    draft_start_ms = 0.0  # host work, part of `loop_ms`
    tree_token_ms = SIBLINGS_MS
    tree_node_ms = TREE_NODE_MS

    @property
    def name(self) -> str:
        return self.gpu.name if self.devices == 1 else f"{self.devices} x {self.gpu.name}"

    @property
    def loop_ms(self) -> float:
        return self.gpu.loop_us / 1e3

    @property
    def copy_ms(self) -> float:
        return self.gpu.launch_us / 1e3

    @property
    def call_ms(self) -> float:
        return self.block_factor * self.gpu.call_us / 1e3

    @property
    def compare_ms(self) -> float:
        return self.block_factor * self.gpu.compare_us / 1e3

    def rest_ms(self, bits: int) -> float:
        return float(self._rest_ms(np.ones(1), ROUNDED_BYTES.get(bits, VALUE_BYTES))[0])

    def pass_ms(self, nodes: Array, context: Array, bits: int = 0) -> tuple[Array, Array, Array]:
        """Return the times of one attention, of one MLP and of the rest; products stay in half precision."""
        weight_bytes = ROUNDED_BYTES.get(bits, VALUE_BYTES)
        return *self._sublayers_ms(nodes, context, weight_bytes), self._rest_ms(nodes)

    def _sublayers_ms(self, nodes: Array, context: Array, weight_bytes: float) -> tuple[Array, Array]:
        shape = self.shape
        heads, seen = shape.n_heads * shape.head_dim, context + nodes
        cache = shape.cache_row * VALUE_BYTES * (seen + nodes)  # bytes: all positions are read, the nodes' written
        # FLOPs: 2 per weight and node; 4 per position, node and head dimension (scores, then the sum over values)
        attn = self._roofline_ms(
            shape.attn_params * weight_bytes + cache, 2 * nodes * shape.attn_params + 4 * nodes * heads * seen
        )
        mlp = self._roofline_ms(np.full_like(nodes, shape.mlp_params * weight_bytes), 2 * nodes * shape.mlp_params)
        masked = np.where(nodes > 1, ATTN_MASK_KERNELS, 0)
        attn += self._launch_ms(ATTN_KERNELS + masked)
        mlp += self._launch_ms(MLP_KERNELS)
        return self.block_factor * attn, self.block_factor * mlp

    def calls_ms(self, calls: Calls) -> Array:
        """Return the times of a method's calls, including launches that are not captured."""
        attn, mlp, _ = self.pass_ms(calls.rows, calls.context)
        sublayers = calls.attentions + calls.mlps
        launches = np.where(calls.whole & (calls.rows <= CAPTURED_ROWS), 0.0, np.maximum(sublayers, 1.0))
        host = np.where(calls.comparisons, self.compare_ms, launches * self.call_ms)
        return calls.attentions * attn + calls.mlps * mlp + calls.heads * self.head_ms(calls.rows) + host

    def of_blocks(self, n_layers: int) -> SimulatedMachine:
        """Return this machine for the work of a model with another number of blocks, by relative depth."""
        return replace(self, block_factor=self.shape.n_layers / n_layers)

    def _rest_ms(self, nodes: Array, weight_bytes: float = VALUE_BYTES) -> Array:
        """Return the time of embedding, norm, LM head and choice of tokens, of the host and between GPUs."""
        shape = self.shape
        # bytes of the logits: written and read in half precision, then in float32 (upcast, softmax or argmax)
        logits = nodes * shape.vocab_size * 2 * (VALUE_BYTES + FLOAT_BYTES)
        head = self._roofline_ms(shape.head_params * weight_bytes + logits, 2 * nodes * shape.head_params)
        return head + self._launch_ms(REST_KERNELS) + (self.gpu.sync_us + (self.devices - 1) * self.gpu.hop_us) / 1e3

    def _roofline_ms(self, n_bytes: Array, flops: Array) -> Array:
        gpu = self.gpu
        memory_s = n_bytes / (gpu.bandwidth_gb_s * 1e9 * gpu.bandwidth_efficiency)
        compute_s = flops / (gpu.dense_tflops * 1e12 * gpu.flops_efficiency)
        return 1e3 * np.maximum(memory_s, compute_s)

    def _launch_ms(self, kernels: float | Array) -> Any:
        return kernels * self.gpu.launch_us / 1e3


def simulated_names() -> list[str]:
    """Return the GPUs with a data sheet."""
    return [name for name in choices("hardware") if name.startswith(PREFIX)]


def gpu_named(name: str) -> Gpu:
    """Return the GPU in `conf/hardware/<name>.yaml`, here or in a plug-in.

    Raises:
        ConfigError: the file is missing, in several packages, or invalid.
    """
    plug_in_with("hardware", name)
    file = config_file("hardware", name) if name.startswith(PREFIX) else None
    if file is None:
        hint = "" if name.startswith(PREFIX) else "; a machine at hand needs no prediction: run on it"
        expected = f"one of own, {', '.join(simulated_names())}{hint}; {ADD_GPU}"
        raise ConfigError("hardware", name, expected)
    return _gpu(file)


def _gpu(path: Path) -> Gpu:
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, ValueError, OmegaConfBaseException) as error:
        raise ConfigError("hardware", str(path), f"a readable YAML file ({error})") from error
    described = content.get("latency") if isinstance(content, Mapping) else None
    names = [field.name for field in fields(Gpu)]
    if not isinstance(described, Mapping) or sorted(map(str, described)) != sorted(names):
        raise ConfigError("hardware.latency", described, f"exactly the settings {', '.join(names)} in {path.name}")
    return Gpu(**{str(key): value for key, value in described.items()})


def simulated_machine(name: str, shape: Shape, devices: int | None = None) -> SimulatedMachine:
    """Return a model on simulated GPUs: `devices`, or the fewest that hold the weights in half precision.

    Raises:
        ConfigError: unknown GPU, too few for the weights, or more than blocks.
    """
    gpu = gpu_named(name)
    needed = max(1, math.ceil(shape.n_params * VALUE_BYTES / (gpu.memory_gb * 1e9 * USABLE)))
    if devices is not None and not needed <= devices <= shape.n_layers:
        weights = shape.n_params * VALUE_BYTES / 1e9
        expected = f"{needed} to {shape.n_layers}: the weights are {weights:.1f} GB, a {gpu.name} holds {gpu.memory_gb}"
        raise ConfigError("devices", devices, expected)
    return SimulatedMachine(gpu, shape, devices or needed)
