"""Tables of a reference machine (`conf/costs`) from results of `shapes` on one GPU, and their agreement with these.

Results without sweeps have pass times at one context only. From them:

* A drafted token takes a + b * (number of sublayers); the line goes through a draft of half of the sublayers (uniform)
  and a pass with all of them over one node. What a change of layer set costs is thus part of a and b.
* One attention and one MLP divide the time of a block by kernels * launch time + bytes / bandwidth. The launch time and
  the bandwidth are those of all models together; each model's two times are scaled to its measured block.
* The slope of an attention by context is the time to read a position's keys and values at that bandwidth.
* The growth of a pass up to the largest captured one is measured; attention, MLP and head share it as their FLOPs do.
* A larger pass is launched sublayer by sublayer: the rates are those fitted to the searches (`searches`), and a
  sublayer takes at least as long as its launch, and as over the largest captured number of nodes.

Results with sweeps replace the shares and the rates by measured times.

The parts of a pass are an array of four times: an attention's slope by context and its intercept, an MLP, and the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from methods.fixed_layers import pattern_set
from ssd_bench.bench.limits import Model
from ssd_bench.contract.layer_set import BITS
from ssd_bench.cost.latency import NodeTimes
from ssd_bench.cost.machine import Array
from ssd_bench.cost.reference import ReferenceMachine
from ssd_bench.cost.roofline import ROUNDED_BYTES, TREE_NODE_MS
from ssd_bench.cost.shapes import known_shape
from ssd_bench.errors import ConfigError
from studies.costs.searches import (
    KINDS,
    EagerRates,
    eager_parts_ms,
    fit_rates,
    predicted_search_ms,
    search_work,
)
from studies.costs.sweeps import eager_table, large_passes, sublayer_ms

KERNELS = 6, 3  # of a captured attention and MLP (model/backends/graphs): norm, products, rotation, attention, its sum
VALUE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
CAPTURED_NODES = {"graphs": 64}  # by backend; other backends capture nothing
LARGE_NODES = (65, 128, 256, 384, 512, 1024)  # of passes that are not captured
EAGER_ROWS = (1, 64, 128, 256, 384, 512, 1024, 2048)
HALF = 0.5  # skipped share of the measured drafts
# assumed: kernels outside of captured graphs, at 3 µs; siblings: three and a wait of 20 µs
TREE_TOKEN_MS, COPY_MS = 0.029, 0.003


def total_ms(parts: Array, n_layers: int, context: float) -> float:
    """Return the time of a pass with all sublayers."""
    slope, intercept, mlp, remainder = parts.tolist()
    return float(n_layers * (slope * context + intercept + mlp) + remainder)


def node_times(nodes: int, parts: Array) -> NodeTimes:
    return NodeTimes(nodes, *parts.tolist())


@dataclass(frozen=True)
class ShapesResult:
    """A result of `shapes`, with the sizes of its model."""

    content: Mapping[str, Any]
    model: Model

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> ShapesResult:
        """Return a result with the sizes of its model.

        Raises:
            ConfigError: the sizes of its model are unknown.
        """
        shape = known_shape(content["model"])
        if shape is None:
            raise ConfigError("costs", content["model"], "results of models whose sizes are in conf/model")
        return cls(content, Model(shape, VALUE_BYTES[content["dtype"]]))

    @property
    def n_layers(self) -> int:
        return self.model.shape.n_layers

    @property
    def context(self) -> int:
        return int(self.content["context"])

    @property
    def sweeps(self) -> Mapping[str, Any] | None:
        """Measurements by context and rows; None in results of older versions."""
        sweeps: Mapping[str, Any] | None = self.content.get("sweeps")
        return sweeps

    @property
    def captured_nodes(self) -> int:
        return CAPTURED_NODES.get(self.content["kernels"], 1)

    def pass_ms(self) -> dict[int, float]:
        """Return the measured times of passes by nodes, ascending."""
        times = {int(key.split()[0]): ms for key, ms in self.content["pass_ms"].items() if key.endswith(" nodes")}
        return dict(sorted(times.items()))

    def skipped_ms(self) -> tuple[int, int, float]:
        """Return the attentions and MLPs that the uniform draft skips, and the time that this saves."""
        kept = pattern_set("uniform", HALF, self.n_layers)
        times = self.content["pass_ms"]
        return (
            self.n_layers - kept.n_attn,
            self.n_layers - kept.n_mlp,
            max(1e-9, times["1 nodes"] - times["half, uniform"]),
        )


def captured_rates(results: Sequence[ShapesResult]) -> tuple[float, float]:
    """Return the launch time of a kernel and the time to read a byte in captured passes, fitted to all models.

    The time of the sublayers that a uniform draft skips is kernels * launch time + bytes * time per byte.
    """
    from scipy.optimize import nnls

    work, saved = [], []
    for result in results:
        n_attn, n_mlp, ms = result.skipped_ms()
        attention, mlp = (result.model.sublayer(i, 1, result.context, result.context).n_bytes for i in (0, 1))
        work.append([n_attn * KERNELS[0] + n_mlp * KERNELS[1], (n_attn * attention + n_mlp * mlp) / 1e9])
        saved.append(ms)
    weights = 1 / np.array(saved)  # relative errors
    (launch_ms, gigabyte_ms), _ = nnls(np.array(work) * weights[:, None], np.ones(len(saved)))
    return float(launch_ms), float(gigabyte_ms) / 1e9


def single_node(result: ShapesResult, launch_ms: float, byte_ms: float) -> Array:
    """Return the parts of a pass over one node: a block as measured, its division as fitted (or as swept)."""
    parts = _fitted_parts(result.model, launch_ms, byte_ms)
    if result.sweeps is not None:
        parts = np.array([*sublayer_ms(result.sweeps, 1), 0.0])
    parts = parts * _block_factor(result, parts)
    parts[3] = max(0.0, result.pass_ms()[1] - total_ms(parts, result.n_layers, result.context))
    return parts


def saved_by_rounding(result: ShapesResult, launch_ms: float, byte_ms: float, bits: int) -> Array:
    """Return what reading rounded weights saves in a pass: the time of the bytes that are no longer read.

    Products with rounded weights were not measured on a GPU. A byte takes as long as one of a block's weights in
    `single_node`; that of the LM head as in all models together.
    """
    model, shape = result.model, result.model.shape
    saved = model.value_bytes - ROUNDED_BYTES[bits]
    factor = _block_factor(result, _fitted_parts(model, launch_ms, byte_ms))
    block_byte_ms = factor * saved * byte_ms
    sublayers = shape.attn_params * block_byte_ms, shape.mlp_params * block_byte_ms
    return np.array([0.0, *sublayers, shape.head_params * saved * byte_ms])


def _fitted_parts(model: Model, launch_ms: float, byte_ms: float) -> Array:
    """Return an attention and an MLP over one node, by the launch time and the bandwidth of all models together."""
    shape = model.shape
    values = np.array([shape.cache_row, shape.attn_params, shape.mlp_params, 0.0])
    return np.array([0.0, *KERNELS, 0.0]) * launch_ms + values * model.value_bytes * byte_ms


def _block_factor(result: ShapesResult, parts: Array) -> float:
    """Return the measured time of the sublayers that a uniform draft skips, over that of their parts."""
    n_attn, n_mlp, saved_ms = result.skipped_ms()
    slope, intercept, mlp, _ = parts
    return float(saved_ms / (n_attn * (slope * result.context + intercept) + n_mlp * mlp))


def growth(result: ShapesResult, nodes: int) -> Array:
    """Return how the parts of a pass grow from one node to several, up to a factor: by sweeps, or by FLOPs."""
    shape = result.model.shape
    products = (2.0 * params for params in (shape.attn_params, shape.mlp_params, shape.head_params))
    flops = np.array([4.0 * shape.n_heads * shape.head_dim, *products])
    if result.sweeps is None or str(nodes) not in result.sweeps["head"]:
        return flops
    several, single = (np.array([*sublayer_ms(result.sweeps, n), result.sweeps["head"][str(n)]]) for n in (nodes, 1))
    swept = np.maximum(0.0, several - single)
    return swept if total_ms(swept, result.n_layers, result.context) > 0 else flops


def passes(result: ShapesResult, single: Array, rates: EagerRates) -> list[NodeTimes]:
    """Return the table of passes: those of `pass_ms` as measured, larger ones launched sublayer by sublayer."""
    table, largest, measured = [], single, result.pass_ms()
    for nodes, ms in measured.items():
        shares = growth(result, nodes)
        increase = (ms - measured[1]) / total_ms(shares, result.n_layers, result.context)
        largest = single + increase * shares if nodes > 1 else single
        table.append(node_times(nodes, largest))
    if result.sweeps is not None:
        return table + large_passes(result.sweeps, result.n_layers, max(measured))
    for nodes in LARGE_NODES:
        launch_ms = np.array([0.0, rates.call_ms, rates.call_ms, 0.0])
        launched = np.maximum(eager_parts(result, rates, nodes), launch_ms)
        table.append(node_times(nodes, np.maximum(launched, largest)))
    return table


def eager_parts(result: ShapesResult, rates: EagerRates, rows: int) -> Array:
    """Return device times over rows, launched one by one, as `searches.eager_parts_ms`."""
    return np.array(eager_parts_ms(result.model, result.content["limits"], rates, np.array(float(rows))))


def step_ms(result: ShapesResult) -> float:
    """Return the host time of a step: the median of AR's measured times per token, less the pass over one node."""
    tokens = [result.content["ar"]["ms"], *(row["ar_ms_per_token"] for row in result.content["rows"])]
    return max(0.0, float(median(tokens)) - result.pass_ms()[1])


def fit_costs(contents: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Fit the tables of all models that were measured on one GPU.

    Args:
        contents: results of `shapes`, of one GPU.

    Returns:
        By model, the content of its file in `conf/costs`.

    Raises:
        ConfigError: the results are of several GPUs, or of a model of unknown sizes.
    """
    machines = sorted({content["machine"] for content in contents})
    if len(machines) != 1:
        raise ConfigError("costs", ", ".join(machines), "results of one GPU")
    results = [ShapesResult.of(content) for content in contents]
    launch_ms, byte_ms = captured_rates(results)
    fitted = fit_rates([(result.model, result.content) for result in results])
    tables = {}
    for result in results:
        host = None if result.sweeps is None else result.sweeps["host"]
        rates = fitted if host is None else EagerRates(host["call_ms"], host["compare_ms"], *astuple(fitted)[2:])
        single = single_node(result, launch_ms, byte_ms)
        saved = {bits: saved_by_rounding(result, launch_ms, byte_ms, bits) for bits in BITS}
        captured = passes(result, single, rates)
        if result.sweeps is None:
            eager = [node_times(rows, eager_parts(result, rates, rows)) for rows in EAGER_ROWS]
        else:
            eager = eager_table(result.sweeps)
        tables[result.content["model"]] = {
            "gpu": result.content["machine"],
            "model": result.content["model"],
            "n_layers": result.n_layers,
            "dtype": result.content["dtype"],
            "captured_nodes": result.captured_nodes,
            "host": {
                "step_ms": step_ms(result) if host is None else host["step_ms"],
                "call_ms": rates.call_ms,
                "compare_ms": rates.compare_ms,
                "copy_ms": COPY_MS,
            },
            "draft": {
                "draft_rest_ms": float(single[3]),
                **{f"int{bits}_draft_rest_ms": float(max(0.0, (single - less)[3])) for bits, less in saved.items()},
                "draft_start_ms": 0.0,
                "tree_token_ms": TREE_TOKEN_MS,
                "tree_node_ms": TREE_NODE_MS,
            },
            "passes": captured,
            **{
                f"int{bits}_passes": [
                    replace(node_times(times.nodes, np.maximum(0.0, astuple(times)[1:] - less)), rest_ms=0.0)
                    for times in captured
                    if times.nodes <= result.captured_nodes
                ]
                for bits, less in saved.items()
            },
            "eager": eager,
        }
    return tables


def predicted_rows(machine: ReferenceMachine, content: Mapping[str, Any]) -> pd.DataFrame:
    """Predict the measured speedups of a result from a machine's table, at the acceptance that the rows had.

    Args:
        content: result of `shapes` of the machine's model.

    Returns:
        Columns number, measured, predicted, error (predicted / measured - 1) of the speedup over AR, and measured_ms,
        predicted_ms and error_ms of a token. Rows without an accepted token are left out: their draft length is
        unknown.
    """
    context = content["context"] + content["tokens"] / 2
    rows = [row for row in content["rows"] if row["realised_alpha"] > 0]
    frame = pd.DataFrame([_predicted_row(machine, row, context) for row in rows])
    for suffix in ("", "_ms"):
        frame[f"error{suffix}"] = frame[f"predicted{suffix}"] / frame[f"measured{suffix}"] - 1
    return frame


def _predicted_row(machine: ReferenceMachine, row: Mapping[str, Any], context: float) -> dict[str, Any]:
    layer_set, tokens = pattern_set("uniform", row["skipped"], machine.n_layers), row["realised_M"]
    drafted = (tokens - 1) / row["realised_alpha"]  # k: of M tokens of a step one is the target's
    attn, mlp, remainder = machine.pass_ms(np.array([1.0, drafted + 1]), np.full(2, context))
    draft_ms = layer_set.n_attn * attn[0] + layer_set.n_mlp * mlp[0] + machine.rest_ms(0)
    plain_ms, verify_ms = machine.n_layers * (attn + mlp) + remainder + machine.step_ms
    token_ms = (drafted * draft_ms + machine.draft_start_ms + verify_ms) / tokens
    return {
        "number": row["number"],
        "measured": row["speedup"],
        "predicted": plain_ms / token_ms,
        "measured_ms": row["ms_per_token"],
        "predicted_ms": token_ms,
    }


def predicted_searches(machine: ReferenceMachine, content: Mapping[str, Any]) -> pd.DataFrame:
    """Predict the two measured searches of a result; columns search, measured, predicted (milliseconds) and error."""
    frame = pd.DataFrame(
        {
            "search": kind,
            "measured": content["search"][kind]["ms"],
            "predicted": predicted_search_ms(machine, search_work(kind, machine.n_layers, content)),
        }
        for kind in KINDS
    )
    frame["error"] = frame["predicted"] / frame["measured"] - 1
    return frame


def agreement(machine: ReferenceMachine, content: Mapping[str, Any]) -> dict[str, str]:
    """Return a row of the table that compares a machine with the result from which it was fitted."""
    cells = {"model": machine.model}
    rows = predicted_rows(machine, content) if content["rows"] else None
    for label, column in (("speedup", "error"), ("ms per token", "error_ms")):
        errors = None if rows is None or rows.empty else rows[column].abs()
        cells["rows"] = "0" if errors is None else str(len(errors))
        cells[f"{label}: median error"] = "–" if errors is None else f"{errors.median():.1%}"
        cells[f"{label}: largest"] = "–" if errors is None else f"{errors.max():.1%}"
    for search in predicted_searches(machine, content).to_dict("records"):
        kind = search["search"]
        cells[f"{kind}, ms"] = f"{search['measured']:.1f}"
        cells[f"{kind}, predicted"] = f"{search['predicted']:.1f} ({search['error']:+.1%})"
    return cells
