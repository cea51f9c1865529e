"""Times of passes and of calls in the sweeps of a result of `shapes` (`ssd_bench.bench.cost_sweeps`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ssd_bench.cost.latency import NodeTimes, fit_line


def sublayer_ms(sweeps: Mapping[str, Any], nodes: int) -> tuple[float, float, float]:
    """Return an attention's slope by context and intercept, and an MLP, over several nodes."""
    slope, intercept = _line(sweeps, "attention", str(nodes))
    return slope, intercept, sweeps["mlp"][str(nodes)]


def _line(sweeps: Mapping[str, Any], sweep: str, rows: str) -> tuple[float, float]:
    points = [(int(context), times[sweep][rows]) for context, times in sweeps["contexts"].items()]
    slope, intercept, _ = fit_line(points)
    return slope, intercept


def large_passes(sweeps: Mapping[str, Any], n_layers: int, captured: int) -> list[NodeTimes]:
    """Return the measured passes over more nodes than are captured."""
    context, times = next(reversed(sweeps["contexts"].items()))
    table = []
    for nodes in sorted(int(key) for key in sweeps["mlp"] if int(key) > captured):
        slope, intercept, mlp = sublayer_ms(sweeps, nodes)
        sublayers = n_layers * (slope * int(context) + intercept + mlp)
        remainder = max(sweeps["head"][str(nodes)], times["passes"][str(nodes)] - sublayers)
        table.append(NodeTimes(nodes, slope, intercept, mlp, remainder))
    return table


def eager_table(sweeps: Mapping[str, Any]) -> list[NodeTimes]:
    """Return device times over rows of branches."""
    return [
        NodeTimes(int(rows), *_line(sweeps, "branches", rows), mlp_ms, sweeps["branch_head"][rows])
        for rows, mlp_ms in sorted(sweeps["branch_mlp"].items(), key=lambda item: int(item[0]))
    ]
