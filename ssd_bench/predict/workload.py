"""Work of a record's steps, independent of any machine: passes, nodes, contexts, sublayers."""

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


@dataclass(frozen=True)
class Workload:
    """Work of the steps of both arms; arrays have one value per step.

    Attributes:
        n_layers: L of the model that is timed.
        steps: prompt_index, repeat, arm, step, emitted, and draft_ms, verify_ms, policy_ms as recorded.
        recorded_ar: whether AR's steps are recorded; false: one step per token of the method's output.
        context, nodes, drafted: committed positions, verified nodes, forward passes of drafting.
        n_attn, n_mlp: sublayers that run for a drafted token.
        read: positions that an attention of a drafted token reads, mean over the tokens of the draft.
        exact_attn, exact_mlp: leading sublayers that drafting does not skip; 0 if saved states cannot be used.
        tree: whether the nodes are a tree, not a chain.
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
        """Return a mask of the steps of this arm."""
        return np.asarray(self.steps["arm"] == arm)


def workload(run: Run, n_layers: int | None = None) -> Workload:
    """Return the work of a record's steps, for the recorded or another number of blocks.

    Raises:
        ConfigError: no step of the method emitted a token.
    """
    steps, recorded_ar = _paired_steps(run)
    if not len(steps):
        raise ConfigError("run", str(run.path), "outputs of two tokens or more")
    recorded_layers = int(run.header["model"]["n_layers"])
    layers = n_layers or recorded_layers
    counts = dict(zip(run.layer_sets["layer_set_id"].tolist(), _sublayer_counts(run.layer_sets, layers)))
    ids = steps["layer_set_id"].to_numpy(dtype=float, na_value=-1).astype(int)
    n_attn, n_mlp, first = np.array([counts.get(i, (0, 0, 0)) for i in ids], dtype=float).T
    context, nodes, length = (steps[c].to_numpy(dtype=float) for c in ("context_len", "tree_nodes", "draft_len"))
    drafted, tree = np.where(ids >= 0, length, 0.0), nodes != length + 1
    sizes = dict(zip(run.layer_sets["layer_set_id"].tolist(), run.window_sizes().tolist()))
    window = np.array([sizes.get(i, np.inf) for i in ids])
    # the engine's conditions for saved states: no siblings, no window, sublayers to reuse, and sublayers left to verify
    reusable = (drafted > 0) & ~tree & np.isinf(window) & (first > 0) & (first < 2 * layers)
    exact_attn, exact_mlp = (np.where(reusable, np.floor(count), 0.0) for count in ((first + 1) / 2, first / 2))
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
    """Return the positions that an attention reads, mean over the tokens of a draft.

    Token j = 0, 1, ... of a draft at context n reads min(n + j, w) positions.

    Args:
        context: n.
        drafted: tokens of each draft.
        window: w, infinite where all positions are read.
    """
    last = np.maximum(drafted - 1, 0)
    full = context + last / 2  # positions grow by one a token: their mean is that of the middle token
    growing = np.clip(window - context, 0, drafted)  # tokens before the window is full
    truncated = growing * context + growing * (growing - 1) / 2
    with np.errstate(invalid="ignore"):  # 0 * inf where no token is truncated; that value is not used
        truncated = (truncated + (drafted - growing) * window) / np.maximum(drafted, 1)
    return np.where(context + last <= window, full, np.where(drafted > 0, truncated, np.minimum(context, window)))


def map_layer_set(layer_set: LayerSet, n_layers: int) -> LayerSet:
    """Map a layer set to a model of another number of blocks, by relative depth.

    Block j of L' blocks skips the same sublayers as block floor((j + 1/2) L / L') of the L recorded blocks.
    """
    source = [int((j + 0.5) * layer_set.n_layers / n_layers) for j in range(n_layers)]
    attn, mlp = set(layer_set.skip_attn), set(layer_set.skip_mlp)
    blocks = range(n_layers)
    return LayerSet.skipping(
        n_layers, [j for j in blocks if source[j] in attn], [j for j in blocks if source[j] in mlp]
    )


def _sublayer_counts(table: pd.DataFrame, n_layers: int) -> list[tuple[int, int, int]]:
    """Return attentions and MLPs that run, and the first skipped sublayer, of every row of `layer_sets`."""
    columns = (table[name].tolist() for name in ("n_layers", "skip_attn", "skip_mlp"))
    sets = [map_layer_set(LayerSet.skipping(layers, attn, mlp), n_layers) for layers, attn, mlp in zip(*columns)]
    return [(layer_set.n_attn, layer_set.n_mlp, layer_set.first_skipped) for layer_set in sets]


def _paired_steps(run: Run) -> tuple[pd.DataFrame, bool]:
    """Return the paired steps of both arms; without a recorded AR arm, one AR step per token of the method."""
    pairs = metrics.paired_rows(run.prompts)[list(ANSWER)]
    if len(pairs):
        return run.steps.merge(pairs, on=list(ANSWER)), True
    method = metrics.arm_rows(run.steps, "method")
    plain = method.loc[method.index.repeat(method["emitted"])].copy()
    plain["context_len"] += plain.groupby(level=0).cumcount().astype("int32")
    plain["arm"], plain["layer_set_id"] = "ar", pd.array([pd.NA] * len(plain), dtype="Int32")
    plain[["draft_len", "accepted_len"]], plain[["tree_nodes", "emitted"]] = 0, 1
    plain[list(COLUMNS)] = 0.0
    return pd.concat([plain, method], ignore_index=True), False
