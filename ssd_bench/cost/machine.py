"""Machines for predictions: the times that they must provide, and the machine of a record with its latency profile."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ssd_bench.cost.latency import GIVEN, MEASURED, Latency, NodeTimes, interpolate
from ssd_bench.errors import ConfigError
from ssd_bench.records.reader import Run

Array = NDArray[np.float64]

COPY_MS = 0.02
"""Milliseconds to keep a tapped state of a few nodes on a CPU of 2.5 GHz; 0.013 to 0.022 on the miniature."""

_COLUMNS = tuple(field.name for field in fields(NodeTimes))


class Machine(Protocol):
    """The times of the parts of a step, in milliseconds.

    Attributes:
        name: as tables show it.
        draft_rest_ms: one drafted token without its sublayers.
        draft_start_ms: one draft without its tokens.
        tree_token_ms: extra time of a drafted token with siblings.
        tree_node_ms: extra time of a verified node of a tree, compared with one of a chain.
        loop_ms: work of the decode loop in a step; None: as in the record, scaled with the forward passes.
        copy_ms: keeping one state of the residual stream.
        call_ms: host time of one call that a search launches by itself, in addition to its sublayers.
        compare_ms: one comparison of streams, for whose result the host waits.
    """

    @property
    def name(self) -> str: ...

    def __hash__(self) -> int: ...  # predictions are cached by machine

    @property
    def draft_rest_ms(self) -> float: ...

    @property
    def draft_start_ms(self) -> float: ...

    @property
    def tree_token_ms(self) -> float: ...

    @property
    def tree_node_ms(self) -> float: ...

    @property
    def loop_ms(self) -> float | None: ...

    @property
    def copy_ms(self) -> float: ...

    @property
    def call_ms(self) -> float: ...

    @property
    def compare_ms(self) -> float: ...

    def pass_ms(self, nodes: Array, context: Array) -> tuple[Array, Array, Array]:
        """Return the times of one attention, of one MLP and of the rest of passes, by their nodes and contexts."""
        ...

    def of_blocks(self, n_layers: int) -> Machine:
        """Return the machine for the work of a model of so many blocks, each of which stands for several of its own."""
        ...


@dataclass(frozen=True)
class Profile:
    """The measured (or given) latency profile of a record: `Latency.pass_ms` over arrays, without torch."""

    latency: Latency
    name: str = "its own machine"
    loop_ms: float | None = None
    copy_ms: float = COPY_MS
    call_ms: float = 0.0
    compare_ms: float = 0.0

    @property
    def draft_rest_ms(self) -> float:
        return self.latency.draft_rest_ms

    @property
    def draft_start_ms(self) -> float:
        return self.latency.draft_start_ms

    @property
    def tree_token_ms(self) -> float:
        return self.latency.tree_token_ms

    @property
    def tree_node_ms(self) -> float:
        return self.latency.tree_node_ms

    def pass_ms(self, nodes: Array, context: Array) -> tuple[Array, Array, Array]:
        """Interpolate the measured passes over 1, 2, 4, .. nodes; without measured passes, use the paper's model."""
        latency, passes = self.latency, self.latency.passes
        if not passes:
            attn = latency.t_attn_slope_ms * context + latency.t_attn_intercept_ms
            return attn, np.full_like(context, latency.t_mlp_ms), np.zeros_like(context)
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

    def of_blocks(self, n_layers: int) -> Profile:
        """Return this machine: a record's profile belongs to its model."""
        return self


def own_profile(run: Run) -> Profile:
    """Return the machine of a record.

    Raises:
        ConfigError: the record has no latency profile.
    """
    latency = run.header.latency
    if latency is None or latency.source not in (GIVEN, MEASURED):  # else the costs of a reference machine
        raise ConfigError("run", str(run.path), "a record with a latency profile of its own machine")
    return Profile(latency)
