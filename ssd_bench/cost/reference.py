"""Reference machines: tables of measured costs of one model size on one GPU, in `conf/costs/GPU/MODEL.yaml`.

`studies/costs` writes the files from results of `shapes`. Every value has an entry under `sources` in its file:
measured, fitted (with the formula) or assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np

from ssd_bench.conf import CONF, read_yaml
from ssd_bench.contract.layer_set import BITS
from ssd_bench.cost.latency import Latency, NodeTimes
from ssd_bench.cost.machine import Array, Calls, LatencyTimes, times_between
from ssd_bench.errors import ConfigError

COSTS = CONF / "costs"
COLUMNS = tuple(field.name for field in fields(NodeTimes))
SUBLAYER_COLUMNS = ("attn_slope_ms", "attn_intercept_ms", "mlp_ms")


@dataclass(frozen=True)
class ReferenceMachine(LatencyTimes):
    """The costs of a model size on a GPU; a `Machine`.

    Calls of a search are launched one by one and wait for the device where branches are compared with the full model.
    Between two waits the host queues calls while the device works; the slower of the two counts (`stage_ms`).

    Attributes:
        name: GPU/MODEL.
        model: the choice of `conf/model` whose sizes were measured.
        latency: times of passes by nodes, and of drafts.
        eager: device times of sublayers and head over rows, launched one by one as in a search.
        captured_nodes: most nodes of a captured pass; larger passes are launched sublayer by sublayer.
        step_ms: host time of a decode step outside its passes.
        call_ms: host time to launch one call of a search: a sublayer over branches, or a head over rows.
        compare_ms: host time of one comparison of branches with the full model's stream, including the wait for the
            device.
        block_factor: number of blocks for which a block of the timed work stands (`of_blocks`).
    """

    name: str
    gpu: str
    model: str
    n_layers: int
    eager: tuple[NodeTimes, ...]
    captured_nodes: int
    step_ms: float
    call_ms: float
    compare_ms: float
    copy_ms: float
    block_factor: float = 1.0

    @classmethod
    def read(cls, name: str, content: Mapping[str, Any]) -> ReferenceMachine:
        """Return the machine of a file's content."""
        # files made before rounded weights were known lack their tables
        names = ("passes", *(f"int{bits}_passes" for bits in BITS))
        tables: dict[str, Any] = {table: _node_times(content.get(table, [])) for table in names}
        tables |= {key: float(ms) for key, ms in content["draft"].items()}
        single = tables["passes"][0]
        latency = Latency(single.mlp_ms, single.attn_slope_ms, single.attn_intercept_ms, source=name, **tables)
        return cls(
            name=name,
            gpu=content["gpu"],
            model=content["model"],
            n_layers=content["n_layers"],
            latency=latency,
            eager=_node_times(content["eager"]),
            captured_nodes=content["captured_nodes"],
            **{key: float(ms) for key, ms in content["host"].items()},
        )

    @property
    def loop_ms(self) -> float:
        return self.step_ms

    def eager_ms(self, rows: Array, context: Array) -> tuple[Array, Array, Array]:
        """Return device times of one attention, one MLP and one head over rows, launched one by one."""
        return times_between(self.eager, rows, context)

    def stage_ms(self, calls: Array, device_ms: Array, comparisons: Array) -> Array:
        """Return the times between a search's waits, for its calls, device times (`eager_ms`) and comparisons."""
        # the host runs ahead of the device: the slower of the two counts until the wait
        return np.maximum(calls * self.call_ms, device_ms) + comparisons * self.compare_ms

    def calls_ms(self, calls: Calls) -> Array:
        """Return the times of a method's calls; calls launched without a wait between them are one stage."""
        attn, mlp, _ = self.pass_ms(calls.rows, calls.context)
        eager_attn, eager_mlp, eager_head = self.eager_ms(calls.rows, calls.context)
        sublayers = calls.attentions + calls.mlps
        eager = self.stage_ms(
            sublayers, calls.attentions * eager_attn + calls.mlps * eager_mlp, calls.comparisons.astype(float)
        )
        captured = calls.whole & (calls.rows <= self.captured_nodes)
        passes = np.where(captured, calls.attentions * attn + calls.mlps * mlp, eager)
        # a head is launched once, however many blocks a block stands for
        launch_ms = self.call_ms / self.block_factor
        return passes + np.where(calls.heads > 0, np.maximum(launch_ms, calls.heads * eager_head), 0.0)

    def of_blocks(self, n_layers: int) -> ReferenceMachine:
        """Return the machine of a smaller model, each of whose blocks stands for several blocks of this one.

        Times of sublayers, calls and comparisons are multiplied by the ratio of blocks; times per pass and step stay.
        """
        factor = self.n_layers / n_layers

        def scaled(times: NodeTimes) -> NodeTimes:
            return replace(times, **{column: factor * getattr(times, column) for column in SUBLAYER_COLUMNS})

        tables: dict[str, Any] = {
            name: tuple(map(scaled, getattr(self.latency, name)))
            for name in ("passes", *(f"int{bits}_passes" for bits in BITS))
        }
        one_node = {f"t_{column}": factor * getattr(self.latency, f"t_{column}") for column in SUBLAYER_COLUMNS}
        return replace(
            self,
            n_layers=n_layers,
            latency=replace(self.latency, **one_node, **tables),
            eager=tuple(map(scaled, self.eager)),
            call_ms=factor * self.call_ms,
            compare_ms=factor * self.compare_ms,
            block_factor=factor * self.block_factor,
        )


def _node_times(rows: list[list[float]]) -> tuple[NodeTimes, ...]:
    return tuple(NodeTimes(int(row[0]), *map(float, row[1:])) for row in rows)


def reference_names() -> list[str]:
    """Return the names of all reference machines, GPU/MODEL."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in COSTS.glob("*/*.yaml"))


@cache
def reference_machine(name: str) -> ReferenceMachine:
    """Return the reference machine in `conf/costs/<name>.yaml`.

    Raises:
        ConfigError: the name is unknown.
    """
    if name not in reference_names():
        raise ConfigError("hardware.costs", name, f"one of {', '.join(reference_names())}")
    return ReferenceMachine.read(name, read_yaml(COSTS / f"{name}.yaml"))
