"""The work of recorded steps in the rows of the table `work`: as the record counts it, or derived from its steps.

Older records count no work. That of their drafts and verifications follows from their steps, because the engine decides
it; the calls of a method are not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ssd_bench import metrics
from ssd_bench.cost.machine import Array
from ssd_bench.errors import ConfigError
from ssd_bench.metrics.modelled import STEP, has_work
from ssd_bench.records.reader import Run
from ssd_bench.records.schema import ANSWER

COUNTS = ("calls", "rows", "attentions", "mlps", "heads", "launches", "context")
"""Columns of the table `work` that are derived."""
INT8 = ("int8_attentions", "int8_mlps", "int8_heads")
"""Columns of the table `work` that are 0: records that do not count their work are older than 8-bit weights."""
COLUMNS = ("draft_ms", "verify_ms", "policy_ms")
"""Columns of `steps` with the recorded times."""


def has_baseline(run: Run) -> bool:
    """Return whether a record has AR's steps of an answer that the method decoded, too."""
    return len(metrics.paired_rows(run.prompts)) > 0


def with_work(run: Run) -> Run:
    """Return the run with the steps of all answers that both arms decoded, and with work for each of them.

    Without AR's answers its steps are made from the method's: m AR steps, which have no times, for a step that emitted
    m tokens. Work that the record does not count is derived (`derived_work`).

    Raises:
        ConfigError: the record has no steps, because no output has a token after the prefill's.
    """
    if has_baseline(run):
        pairs = metrics.paired_rows(run.prompts)[list(ANSWER)]
        steps = run.steps.merge(pairs, on=list(ANSWER))
        uncounted = steps.iloc[:0] if has_work(run) else steps
    else:
        method = metrics.arm_rows(run.steps, "method")
        ar = _plain_steps(method)
        steps = pd.concat([ar, method], ignore_index=True)
        uncounted = ar if has_work(run) else steps
    if not len(steps):
        raise ConfigError("run", str(run.path), "outputs of two tokens or more")
    parts = [frame for frame in (run.work, derived_work(run, uncounted)) if len(frame)]
    return replace(run, steps=steps, work=pd.concat(parts, ignore_index=True))


def _plain_steps(method: pd.DataFrame) -> pd.DataFrame:
    """Return AR steps that emit the tokens of a method's steps."""
    ar = method.loc[method.index.repeat(method["emitted"])].copy()
    ar["context_len"] += ar.groupby(level=0).cumcount().astype("int32")  # AR commits one position per step
    ar["step"] = (ar.groupby(list(ANSWER)).cumcount() + 1).astype(method["step"].dtype)
    ar["arm"], ar["layer_set_id"] = "ar", pd.array([pd.NA] * len(ar), dtype="Int32")
    ar[["draft_len", "accepted_len"]], ar[["tree_nodes", "emitted"]] = 0, 1
    ar[list(COLUMNS)] = 0.0
    return ar


def reuses_states(run: Run) -> bool:
    """Return whether verifications of the run reuse the states of their drafts where the engine can."""
    reuse = run.header.options("decode").get("reuse_prefix")
    if reuse is None:
        reuse = run.header.options("method").get("reuse_prefix", False)
    return bool(reuse)


def derived_work(run: Run, steps: pd.DataFrame) -> pd.DataFrame:
    """Derive the work of drafts and verifications from the steps of a record, as the engine would count it.

    Args:
        steps: rows of its table `steps`.
    """
    n_layers, sizes = run.header.model.n_layers, run.set_sizes()
    # -1: no layers drafted, as in AR's steps and in those that copy text; no sublayer runs for their draft
    set_ids = steps["layer_set_id"].to_numpy(dtype=float, na_value=-1).astype(int)
    by_step = sizes.reindex(set_ids)
    columns = ("n_attn", "n_mlp", "first_changed")
    n_attn, n_mlp, first_changed = by_step[[*columns]].fillna(0.0).to_numpy(dtype=float).T
    context, nodes, draft_len = (steps[c].to_numpy(dtype=float) for c in ("context_len", "tree_nodes", "draft_len"))
    drafted = np.where(set_ids >= 0, draft_len, 0.0)
    window = by_step["read"].fillna(np.inf).to_numpy(dtype=float)
    # as the engine: reuse needs a draft without siblings and window, with a sublayer to reuse (first_changed > 0) and
    # a sublayer left to verify (first_changed < 2L); a chain has the root and one node per drafted token
    reusable = (drafted > 0) & (nodes == draft_len + 1) & np.isinf(window)
    reusable &= (first_changed > 0) & (first_changed < 2 * n_layers) & reuses_states(run)
    fork = np.where(reusable, first_changed, 0.0)
    # attentions and MLPs alternate, so the first n sublayers are ceil(n / 2) attentions and floor(n / 2) MLPs
    early_attn, early_mlp = np.ceil(fork / 2), np.floor(fork / 2)
    single = np.ones_like(nodes)

    draft = (drafted, single, n_attn, n_mlp, single, 2 * single, positions_read(context, drafted, window))
    # only the last node has to pass the sublayers before the first changed one: drafting did the others
    early = (single, single, early_attn, early_mlp, 0 * single, single, context + drafted)
    verify = (single, nodes, n_layers - early_attn, n_layers - early_mlp, single, 2 * single, context)
    parts = [("draft", drafted > 0, draft), ("verify", reusable, early), ("verify", nodes > 0, verify)]
    return pd.concat([_work_rows(steps, *entry) for entry in parts], ignore_index=True)


def _work_rows(steps: pd.DataFrame, part: str, chosen: Any, counts: Sequence[Array]) -> pd.DataFrame:
    """Return rows of the table `work` for the chosen steps.

    Args:
        chosen: [steps] mask of the steps that have this work.
        counts: for all steps, the columns of `COUNTS`.
    """
    columns = {name: column[chosen] for name, column in zip(COUNTS, counts, strict=True)}
    return steps.loc[chosen, STEP].assign(part=part, **columns, **dict.fromkeys(INT8, 0.0))


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
