"""Costs of sublayers that a search launches one by one, fitted to measured KnapSpec and CLaSp searches.

A search consists of stages, each of which ends with a wait for the device: in KnapSpec one sublayer over all branches
and two comparisons (branches that execute it, branches that skip it), in CLaSp the two sublayers of a block and one
comparison. The time of a stage is

    max(calls * call_ms, device time) + comparisons * compare_ms,

because the host launches calls while the device works. The device time of a sublayer is a roofline:

    max(bytes / (share_bandwidth * read bandwidth), FLOPs / (share_peak * peak arithmetic)).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ssd_bench.bench.limits import Model
from ssd_bench.bench.measures import SEARCH_CONTEXT, SEARCH_TOKENS
from ssd_bench.cost.machine import Array, Calls
from ssd_bench.cost.reference import ReferenceMachine

KINDS = ("knapspec", "clasp")
BUDGET = 0.5  # KnapSpec's budget, and the share of blocks that the timed CLaSp search skips
MOST_WEIGHT = 8  # largest integer weight of an MLP that is tried
STARTS = 0.15, 0.5  # shares of the limits from which the fit starts, each with each


@dataclass(frozen=True)
class SearchWork:
    """The work of a search.

    Attributes:
        attn_rows, mlp_rows: [stages] rows of the attention and of the MLP of every stage; 0: no such call.
        comparisons: [stages] comparisons of branches at the end of every stage.
    """

    attn_rows: Array
    mlp_rows: Array
    comparisons: Array

    @property
    def calls(self) -> Array:
        """Number of calls of every stage."""
        return (self.attn_rows > 0).astype(float) + (self.mlp_rows > 0)


@dataclass(frozen=True)
class EagerRates:
    """Rates of calls that are launched one by one.

    Attributes:
        call_ms, compare_ms: as in `ReferenceMachine`.
        share_bandwidth, share_peak: shares of the machine's read bandwidth and peak arithmetic that calls reach.
    """

    call_ms: float
    compare_ms: float
    share_bandwidth: float
    share_peak: float

    def device_ms(self, n_bytes: float, flops: Array, limits: Mapping[str, Any]) -> Array:
        """Return the device time of bytes to read and FLOPs."""
        reading = n_bytes / (self.share_bandwidth * limits["bandwidth_bytes_per_s"])
        computing = flops / (self.share_peak * limits["peak_flops"])
        return 1e3 * np.maximum(reading, computing)


def knapsack_rows(n_layers: int, heavy: int) -> Array:
    """Return the rows of each sublayer of a KnapSpec search in which no branch is dropped.

    Args:
        heavy: integer weight of an MLP; that of an attention is 1.
    """
    width = int(BUDGET * (1 + heavy) * n_layers) + 1
    columns, rows = np.zeros(width, dtype=bool), []
    columns[0] = True
    for i in range(2 * n_layers):
        # column 0 is the full model's stream: alone it needs no call
        rows.append(SEARCH_TOKENS * columns.sum() if columns[1:].any() else 0)
        weight, skipping = (1, heavy)[i % 2], columns.copy()
        skipping[weight:] |= columns[:-weight]
        columns = skipping
    return np.array(rows, dtype=float)


def knapspec_work(n_layers: int, mean_rows: float) -> SearchWork:
    """Return the work of a KnapSpec search whose sublayers have so many rows on average.

    The results have neither the integer weights nor the dropped branches. The weight of an MLP is that whose search
    without drops is nearest; its rows are scaled to the measured mean.
    """
    candidates = [knapsack_rows(n_layers, heavy) for heavy in range(1, MOST_WEIGHT + 1)]
    nearest = min(candidates, key=lambda rows: abs(np.log(rows.mean() / mean_rows)))
    rows = nearest * mean_rows / nearest.mean()
    attention = np.arange(2 * n_layers) % 2 == 0
    comparisons = np.full(2 * n_layers, 2.0)  # branches that execute the sublayer, and branches that skip it
    return SearchWork(np.where(attention, rows, 0.0), np.where(attention, 0.0, rows), comparisons)


def clasp_work(n_layers: int) -> SearchWork:
    """Return the work of a CLaSp search for half of the blocks: one row per candidate that can still be chosen."""
    count = int(BUDGET * n_layers)
    blocks = np.arange(n_layers)
    low, high = np.maximum(1, count - (n_layers - 1 - blocks)), np.minimum(count, blocks)
    rows = np.maximum(0, high + 1 - low).astype(float)
    return SearchWork(rows, rows, np.ones(n_layers))


def search_work(kind: str, n_layers: int, result: Mapping[str, Any]) -> SearchWork:
    """Return the work of the search of a kind in a result of `shapes`."""
    if kind == "clasp":
        return clasp_work(n_layers)
    return knapspec_work(n_layers, result["search"]["knapspec"]["tokens"])


def eager_parts_ms(
    model: Model, limits: Mapping[str, Any], rates: EagerRates, rows: Array
) -> tuple[Array, Array, Array, Array]:
    """Return device times over rows: an attention's slope by context and its intercept, an MLP, and the LM head.

    Branches share the prefix: its keys and values are read once for all rows.
    """

    def matrices(params: int) -> Array:
        return rates.device_ms(params * model.value_bytes, 2 * params * rows, limits)

    shape = model.shape
    slope = rates.device_ms(shape.cache_row * model.value_bytes, 4 * rows * shape.n_heads * shape.head_dim, limits)
    return slope, matrices(shape.attn_params), matrices(shape.mlp_params), matrices(shape.head_params)


def predicted_search_ms(machine: ReferenceMachine, work: SearchWork) -> float:
    """Return the predicted time of a search on a machine, stage by stage as a record counts its calls."""
    rows, nothing = np.maximum(work.attn_rows, work.mlp_rows), np.zeros_like(work.attn_rows)
    attentions, mlps = (work.attn_rows > 0).astype(float), (work.mlp_rows > 0).astype(float)
    context = np.full_like(rows, float(SEARCH_CONTEXT))
    stages = Calls(rows, context, attentions, mlps, nothing, work.calls, *[nothing] * 6)
    called = machine.calls_ms(stages)[work.calls > 0].sum()
    return float(called + work.comparisons.sum() * machine.compare_ms)


def fit_rates(results: Sequence[tuple[Model, Mapping[str, Any]]]) -> EagerRates:
    """Fit four rates to the searches of all models of one GPU, by least squares of the relative errors."""
    from scipy.optimize import least_squares

    searches = [
        (model, result["limits"], search_work(kind, model.shape.n_layers, result), result["search"][kind]["ms"])
        for model, result in results
        for kind in KINDS
    ]

    def errors(logarithms: Array) -> list[float]:
        rates = EagerRates(*np.exp(logarithms).tolist())
        return [_stages_ms(model, limits, work, rates) / ms - 1 for model, limits, work, ms in searches]

    stage_ms = min(ms / len(work.calls) for _, _, work, ms in searches)
    starts = [np.log([stage_ms / 3, stage_ms / 3, a, b]) for a in STARTS for b in STARTS]
    fits = [least_squares(errors, start) for start in starts]
    return EagerRates(*np.exp(min(fits, key=lambda fit: fit.cost).x).tolist())


def _stages_ms(model: Model, limits: Mapping[str, Any], work: SearchWork, rates: EagerRates) -> float:
    """Return the time of a search at some rates, without a table."""
    slope, intercept, _, _ = eager_parts_ms(model, limits, rates, work.attn_rows)
    _, _, mlp, _ = eager_parts_ms(model, limits, rates, work.mlp_rows)
    device = np.where(work.attn_rows > 0, slope * SEARCH_CONTEXT + intercept, 0.0)
    device += np.where(work.mlp_rows > 0, mlp, 0.0)
    stages = np.maximum(work.calls * rates.call_ms, device) + work.comparisons * rates.compare_ms
    return float(stages.sum())


def left_out_errors(results: Sequence[tuple[Model, Mapping[str, Any]]]) -> list[dict[str, float]]:
    """Return the relative errors of every model's searches, by kind, at rates fitted to the other models only."""
    errors = []
    for index, (model, result) in enumerate(results):
        rates = fit_rates([*results[:index], *results[index + 1 :]])
        works = {kind: search_work(kind, model.shape.n_layers, result) for kind in KINDS}
        errors.append(
            {
                kind: _stages_ms(model, result["limits"], work, rates) / result["search"][kind]["ms"] - 1
                for kind, work in works.items()
            }
        )
    return errors
