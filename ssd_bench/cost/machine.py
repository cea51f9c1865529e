"""Machines for predictions: their times of passes, and a machine with a latency profile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ssd_bench.contract.layer_set import BITS
from ssd_bench.cost.latency import Latency, NodeTimes, interpolate

Array = NDArray[np.float64]

COPY_MS = 0.02
"""Milliseconds to keep a tapped state of a few nodes on a CPU of 2.5 GHz; 0.013 to 0.022 on the miniature."""

_COLUMNS = tuple(field.name for field in fields(NodeTimes))


class Calls(NamedTuple):
    """A method's calls of the model, one entry each; columns of the table `work` as arrays."""

    rows: Array
    context: Array
    attentions: Array
    mlps: Array
    heads: Array
    launches: Array
    int8_attentions: Array
    int8_mlps: Array
    int8_heads: Array
    int4_attentions: Array
    int4_mlps: Array
    int4_heads: Array

    @property
    def whole(self) -> NDArray[np.bool_]:
        """Whether a call is one pass with several sublayers, not sublayers launched one by one."""
        sublayers, passes = self.attentions + self.mlps, self.launches - (self.heads > 0)
        return np.asarray(sublayers > passes)

    @property
    def comparisons(self) -> NDArray[np.bool_]:
        """Whether a call compares streams and runs neither sublayers nor heads."""
        return np.asarray(self.attentions + self.mlps + self.heads == 0)


class PassTimes(ABC):
    """Times of the parts of passes, in milliseconds."""

    @abstractmethod
    def pass_ms(self, nodes: Array, context: Array, bits: int = 0) -> tuple[Array, Array, Array]:
        """Return the times of one attention, of one MLP and, for `bits` 0, of the rest of passes."""

    @abstractmethod
    def rest_ms(self, bits: int) -> float:
        """Return the time of a drafted token without its sublayers, by the bits of the head's weights; 0: as loaded."""

    def head_ms(self, rows: Array) -> Array:
        """Return the milliseconds of an LM head over a number of rows, with the choice of a token in each.

        The rest of a verification includes the decode loop, so only its growth with the rows is the head's.
        """
        here = np.zeros_like(rows)
        return self.rest_ms(0) + self.pass_ms(rows, here)[2] - self.pass_ms(np.ones_like(rows), here)[2]


@dataclass(frozen=True)
class LatencyTimes(PassTimes):
    """Times from a latency profile: `Latency.pass_ms` over arrays, without torch."""

    latency: Latency

    @property
    def bits(self) -> Collection[int]:
        return [bits for bits in BITS if self.latency.has_passes(bits)]

    @property
    def draft_start_ms(self) -> float:
        return self.latency.draft_start_ms

    @property
    def tree_token_ms(self) -> float:
        return self.latency.tree_token_ms

    @property
    def tree_node_ms(self) -> float:
        return self.latency.tree_node_ms

    def rest_ms(self, bits: int) -> float:
        return self.latency.rest_ms(bits)

    def pass_ms(self, nodes: Array, context: Array, bits: int = 0) -> tuple[Array, Array, Array]:
        """Interpolate the measured passes over 1, 2, 4, .. nodes; without measured passes, use the paper's model.

        Raises:
            ConfigError: as `Latency.passes_in`.
        """
        latency, passes = self.latency, self.latency.passes_in(bits)
        if not passes:
            attn = latency.t_attn_slope_ms * context + latency.t_attn_intercept_ms
            return attn, np.full_like(context, latency.t_mlp_ms), np.zeros_like(context)
        return times_between(passes, nodes, context)


def times_between(passes: tuple[NodeTimes, ...], nodes: Array, context: Array) -> tuple[Array, Array, Array]:
    """Return the times of one attention, of one MLP and of the rest, between the measured passes."""
    columns: dict[str, Any] = {
        name: np.array([getattr(times, name) for times in passes], dtype=float) for name in _COLUMNS
    }
    sizes = columns["nodes"]
    high = np.clip(np.searchsorted(sizes, nodes), 0, len(sizes) - 1)
    low = np.maximum(high - 1, 0)
    share = np.where(high > 0, (nodes - sizes[low]) / np.where(high > 0, sizes[high] - sizes[low], 1.0), 0.0)
    fewer, more = (NodeTimes(**{name: column[at] for name, column in columns.items()}) for at in (low, high))
    times: tuple[Array, Array, Array] = interpolate(fewer, more, share, context, np.maximum)
    return times


@dataclass(frozen=True)
class Profile(LatencyTimes):
    """A record's measured (or given) latency profile."""

    name: str = "its own machine"
    loop_ms: float | None = None
    copy_ms: float = COPY_MS

    def calls_ms(self, calls: Calls) -> Array:
        """Return the times of the calls' sublayers and heads; the profile has none for comparisons."""
        attn, mlp, _ = self.pass_ms(calls.rows, calls.context)
        passes = calls.attentions * attn + calls.mlps * mlp
        if not self.latency.calls:
            return passes + calls.heads * self.head_ms(calls.rows)
        attn, mlp, head = times_between(self.latency.calls, calls.rows, calls.context)
        return np.where(calls.whole, passes, calls.attentions * attn + calls.mlps * mlp) + calls.heads * head

    def of_blocks(self, n_layers: int) -> Profile:
        """Return this machine: a record's profile belongs to its model."""
        return self
