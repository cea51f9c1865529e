"""Work of every recorded step, without times: forward passes, verified nodes, context lengths, sublayers that run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ssd_bench import metrics
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.cost.machine import Array
from ssd_bench.errors import ConfigError
from ssd_bench.records.reader import Run
from ssd_bench.records.schema import ANSWER

COLUMNS = ("draft_ms", "verify_ms", "policy_ms")
"""Columns of `steps` with the recorded times."""


@dataclass(frozen=True)
class Workload:
    """Work of the steps of AR and the method; each array has one value per step.

    Attributes:
        n_layers: L, number of blocks of the timed model; the recorded model may have another number.
        steps: prompt_index, repeat, arm, step, emitted, and draft_ms, verify_ms, policy_ms as recorded.
        recorded_ar: whether the record has AR's steps; if not, AR gets one step per decoded token of the method.
        context: committed positions before the step.
        nodes: verified nodes, the root included.
        drafted: forward passes of drafting, one per drafted token; 0 if no layers drafted.
        n_attn, n_mlp: attentions and MLPs that run for a drafted token.
        read: positions that an attention reads for a drafted token, mean over the draft's tokens.
        exact_attn, exact_mlp: attentions and MLPs before the first skipped sublayer, where the draft's states equal the
            full model's, so that verification can reuse them; 0 if it cannot.
        tree: whether the nodes form a tree, not a chain.
    """

    n_layers: int
    steps: pd.DataFrame
    recorded_ar: bool
    context: Array
    nodes: Array
    drafted: Array
    n_attn: Array
    n_mlp: Array
    read: Array
    exact_attn: Array
    exact_mlp: Array
    tree: Array

    def of_arm(self, arm: str) -> Array:
        """Return a boolean mask, true for the steps of this arm."""
        return np.asarray(self.steps["arm"] == arm)


def workload(run: Run, n_layers: int | None = None) -> Workload:
    """Compute the work of every step of a record.

    Args:
        n_layers: blocks of the timed model; `map_layer_set` maps the layer sets to it. None: the recorded number.

    Raises:
        ConfigError: the record has no steps, because no output has a token after the prefill's.
    """
    steps, recorded_ar = _paired_steps(run)
    if not len(steps):
        raise ConfigError("run", str(run.path), "outputs of two tokens or more")
    recorded_layers = run.header.model.n_layers
    layers = n_layers or recorded_layers
    counts_by_set = dict(zip(run.layer_sets["layer_set_id"].tolist(), _sublayer_counts(run.layer_sets, layers)))
    # -1: no layers drafted, as in AR's steps and in those that copy text; no sublayer runs for their draft
    set_ids = steps["layer_set_id"].to_numpy(dtype=float, na_value=-1).astype(int)
    n_attn, n_mlp, first_skipped = np.array([counts_by_set.get(i, (0, 0, 0)) for i in set_ids], dtype=float).T
    context, nodes, draft_len = (steps[c].to_numpy(dtype=float) for c in ("context_len", "tree_nodes", "draft_len"))
    drafted = np.where(set_ids >= 0, draft_len, 0.0)
    tree = nodes != draft_len + 1  # a chain has the root and one node per drafted token
    window_by_set = dict(zip(run.layer_sets["layer_set_id"].tolist(), run.window_sizes().tolist()))
    window = np.array([window_by_set.get(i, np.inf) for i in set_ids])
    # as the engine: reuse needs a draft without siblings and window, with a sublayer to reuse (first_skipped > 0) and
    # a sublayer left to verify (first_skipped < 2L)
    reusable = (drafted > 0) & ~tree & np.isinf(window) & (first_skipped > 0) & (first_skipped < 2 * layers)
    # attentions and MLPs alternate, so the first n sublayers are ceil(n / 2) attentions and floor(n / 2) MLPs
    halves = (first_skipped + 1) / 2, first_skipped / 2
    exact_attn, exact_mlp = (np.where(reusable, np.floor(half), 0.0) for half in halves)
    return Workload(
        layers,
        steps,
        recorded_ar,
        context,
        nodes,
        drafted,
        n_attn,
        n_mlp,
        positions_read(context, drafted, window),
        exact_attn,
        exact_mlp,
        tree,
    )


def positions_read(context: Array, drafted: Array, window: Array) -> Array:
    """Return how many positions an attention reads per drafted token, as the mean over each draft.

    Token j = 0, 1, ... of a draft at context n reads min(n + j, w) positions.

    Args:
        context: n, committed positions before each step.
        drafted: number of drafted tokens.
        window: w, most positions that the window lets an attention read; infinite without a window.

    Returns:
        One mean per step; for a step without a draft, the positions that a single token would read.
    """
    last = np.maximum(drafted - 1, 0)  # j of the last token
    mean_below_window = context + last / 2  # mean of n, n + 1, ..., n + last
    growing = np.clip(window - context, 0, drafted)  # number of tokens that read fewer than w positions
    sum_growing = growing * context + growing * (growing - 1) / 2  # sum of n + j over j = 0 .. growing - 1
    with np.errstate(invalid="ignore"):  # without a window 0 * inf is NaN; the last line does not use it
        mean_in_window = (sum_growing + (drafted - growing) * window) / np.maximum(drafted, 1)
    mean_at_window = np.where(drafted > 0, mean_in_window, np.minimum(context, window))
    return np.where(context + last <= window, mean_below_window, mean_at_window)


def map_layer_set(layer_set: LayerSet, n_layers: int) -> LayerSet:
    """Map a layer set to a model of another number of blocks, by relative depth.

    Block j of L' blocks skips the same sublayers as block floor((j + 1/2) L / L') of the L recorded blocks.
    """
    # j + 0.5 is the centre of block j
    recorded_block = [int((j + 0.5) * layer_set.n_layers / n_layers) for j in range(n_layers)]
    skip_attn, skip_mlp = set(layer_set.skip_attn), set(layer_set.skip_mlp)
    attn = [j for j in range(n_layers) if recorded_block[j] in skip_attn]
    mlp = [j for j in range(n_layers) if recorded_block[j] in skip_mlp]
    return LayerSet.skipping(n_layers, attn, mlp)


def _sublayer_counts(table: pd.DataFrame, n_layers: int) -> list[tuple[int, int, int]]:
    """Count the sublayers that run in each row of `layer_sets`, mapped to `n_layers` blocks.

    Returns:
        Per row: number of attentions, number of MLPs, and index of the first skipped sublayer in [0, 2L].
    """
    columns = (table[name].tolist() for name in ("n_layers", "skip_attn", "skip_mlp"))
    sets = [map_layer_set(LayerSet.skipping(blocks, attn, mlp), n_layers) for blocks, attn, mlp in zip(*columns)]
    return [(layer_set.n_attn, layer_set.n_mlp, layer_set.first_skipped) for layer_set in sets]


def _paired_steps(run: Run) -> tuple[pd.DataFrame, bool]:
    """Return the steps of the answers that both arms decoded, and whether the record has AR's steps.

    Without them, AR's steps are made from the method's: a step that emitted m tokens becomes m AR steps without times.
    """
    pairs = metrics.paired_rows(run.prompts)[list(ANSWER)]
    if len(pairs):
        return run.steps.merge(pairs, on=list(ANSWER)), True
    method = metrics.arm_rows(run.steps, "method")
    ar = method.loc[method.index.repeat(method["emitted"])].copy()
    ar["context_len"] += ar.groupby(level=0).cumcount().astype("int32")  # AR commits one position per step
    ar["arm"], ar["layer_set_id"] = "ar", pd.array([pd.NA] * len(ar), dtype="Int32")
    ar[["draft_len", "accepted_len"]], ar[["tree_nodes", "emitted"]] = 0, 1
    ar[list(COLUMNS)] = 0.0
    return pd.concat([ar, method], ignore_index=True), False
