"""Numbers of a run without a formula in `quantities.yaml`: TPT, layer sets, acceptance by answer.

Symbols: k drafted length, m accepted length (bonus token excluded), r skip ratio, c = 1 - r, L blocks, n context. Times
are in milliseconds, rates in tokens per second. An undefined number is None, never NaN.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache

import numpy as np
import pandas as pd

from ssd_bench.contract.layer_set import BITS, LayerSet
from ssd_bench.cost.machine import LatencyTimes
from ssd_bench.cost.tpt import tpt
from ssd_bench.records.header import RunHeader
from ssd_bench.records.reader import ROUNDED_SIZES, Run
from ssd_bench.results.quantity import Array, divide
from ssd_bench.results.rows import arm_rows


@lru_cache(maxsize=4)  # every number of a summary needs some of them
def steps_of(run: Run, arm: str = "method") -> pd.DataFrame:
    return arm_rows(run.steps, arm)


@lru_cache(maxsize=4)
def answers_of(run: Run, arm: str = "method") -> pd.DataFrame:
    return arm_rows(run.prompts, arm)


# --- acceptance -------------------------------------------------------------------------------------------------------


def alpha_macro(steps: pd.DataFrame) -> float | None:
    """Return the mean of alpha over answers (a prompt in a repeat); answers without a draft are left out."""
    # mean over answers of sum m / sum k, as KnapSpec's code and KNN-SSD's speed.py average it
    sums = steps.groupby(["prompt_index", "repeat"])[["accepted_len", "draft_len"]].sum()
    sums = sums[sums["draft_len"] > 0]
    return float((sums["accepted_len"] / sums["draft_len"]).mean()) if len(sums) else None


def skip_ratio_of_all(run: Run) -> float | None:
    """Return r over all drafted tokens, for SWIFT's Eq. 6.

    A token drafted without layers skips all sublayers. None if layers drafted no token, or read a window of the cache
    or rounded weights, whose cost c = 1 - r does not describe.
    """
    steps, by_layers = steps_of(run), _with_sets(run)
    cheaper = np.isfinite(by_layers["read"]) | (by_layers[[*ROUNDED_SIZES]].sum(axis=1) > 0)
    if not by_layers["draft_len"].sum() or cheaper.any():
        return None
    n_not_by_layers = steps["draft_len"].sum() - by_layers["draft_len"].sum()
    skipped = 1 - (by_layers["n_attn"] + by_layers["n_mlp"]) / (2 * by_layers["n_layers"])
    return divide((skipped * by_layers["draft_len"]).sum() + n_not_by_layers, steps["draft_len"].sum())


def searched_drafts(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the steps drafted with a set from the method's search, not its initial set; without a search, all."""
    return steps[steps["layer_set_id"].notna() & steps["searched"].fillna(True).astype(bool)]


def skipped_shares(run: Run) -> pd.DataFrame:
    """Return the steps of `searched_drafts`, with the shares of attentions and MLPs skipped.

    Columns are prompt_index, context_len, attention, MLP.
    """
    steps = searched_drafts(_with_sets(run))
    shares = {
        "attention": 1 - steps["n_attn"] / steps["n_layers"],
        "MLP": 1 - steps["n_mlp"] / steps["n_layers"],
    }
    return steps[["prompt_index", "context_len"]].assign(**shares)


@lru_cache(maxsize=8)  # several numbers of a summary need it
def _with_sets(run: Run) -> pd.DataFrame:
    """Return the method's steps that drafted by layers: columns of `steps` and of `Run.set_sizes`."""
    steps = steps_of(run).dropna(subset=["layer_set_id"]).astype({"layer_set_id": "int64"})
    return steps.merge(run.set_sizes(steps["layer_set_id"].unique()), left_on="layer_set_id", right_index=True)


def main_set(run: Run, domain: str | None = None) -> LayerSet | None:
    set_id = main_set_id(run, domain)
    return None if set_id is None else run.layer_set(set_id)


def main_set_id(run: Run, domain: str | None = None) -> int | None:
    """Return the id of the set that drafted most tokens in the steps of `searched_drafts` (in a domain), or None."""
    steps = searched_drafts(steps_of(run))
    if domain is not None:
        in_domain = run.prompts.loc[run.prompts["domain"] == domain, "prompt_index"]
        steps = steps[steps["prompt_index"].isin(in_domain)]
    if steps.empty:
        return None
    drafted = steps.groupby("layer_set_id")["draft_len"].sum()
    return int(str(drafted.idxmax()))


# --- models of speed --------------------------------------------------------------------------------------------------


def expected_speedup(m: float | None, acceptance: float | None, skip: float | None) -> float | None:
    """Return E(speedup) where a drafted token costs c = 1 - r AR steps and a verification costs one."""
    # SWIFT Eq. 6 (KNN-SSD Eq. 9): M / (k c + 1) with k = (M - 1) / alpha drafted tokens per verification
    if m is None or acceptance is None or skip is None:
        return None
    return divide(m * acceptance, (m - 1) * (1 - skip) + acceptance)


def predicted_tpt(run: Run, arm: str = "method") -> float | None:
    """Return the TPT (KnapSpec Eq. 4), in tokens per second, that the latency profile predicts for the arm's steps.

    One formula for all methods. Conditional alpha and mean k are realised, n is the mean context length, t_target = L
    (t_attn(n) + t_mlp). t_draft is the mean over drafted tokens of n_attn(S) t_attn(n) + n_mlp(S) t_mlp, where n is at
    most the window's positions, and rounded sublayers have their own times. Tokens drafted without layers cost nothing.
    None without a latency profile or steps, or if the profile lacks times of the rounded weights that drafts read.
    """
    steps = steps_of(run, arm)
    sets = _with_sets(run) if arm == "method" else None
    return _predicted_tpt(run.header, _arrays(steps, TPT_STEPS), None if sets is None else _arrays(sets, TPT_SETS))


def predicted_tpt_by_prompt(run: Run) -> dict[Hashable, float | None]:
    """Return `predicted_tpt` of the method's steps by prompt_index."""
    steps, sets = steps_of(run), _with_sets(run)
    step_prompts, set_prompts = (frame["prompt_index"].to_numpy() for frame in (steps, sets))
    # a report needs thousands, and selecting rows of a frame is slow
    step_columns, set_columns = _arrays(steps, TPT_STEPS), _arrays(sets, TPT_SETS)
    predicted: dict[Hashable, float | None] = {}
    for index in np.unique(step_prompts).tolist():
        of_steps = {name: column[step_prompts == index] for name, column in step_columns.items()}
        of_sets = {name: column[set_prompts == index] for name, column in set_columns.items()}
        predicted[index] = _predicted_tpt(run.header, of_steps, of_sets)
    return predicted


TPT_STEPS = ("context_len", "accepted_len", "draft_len")
TPT_SETS = ("n_attn", "n_mlp", *ROUNDED_SIZES, "read", "draft_len")
"""Columns that predict a TPT: of the steps, and of steps that drafted by layers with their sets."""


def _arrays(frame: pd.DataFrame, names: Iterable[str]) -> dict[str, Array]:
    return {name: frame[name].to_numpy(dtype=float) for name in names}


def _predicted_tpt(header: RunHeader, steps: Mapping[str, Array], sets: Mapping[str, Array] | None) -> float | None:
    """Return the predicted TPT of `TPT_STEPS`, with `TPT_SETS` of steps that drafted by layers (None for AR)."""
    latency, n, drafted = header.latency, len(steps["draft_len"]), float(steps["draft_len"].sum())
    if not n or latency is None:
        return None
    context, t_draft = float(steps["context_len"].mean()), 0.0
    if sets is not None:
        # mean over drafted tokens of n_attn(S) t_attn(min(n, window)) + n_mlp(S) t_mlp
        read = np.minimum(sets["read"], context)
        t_read = latency.t_attn_slope_ms * read + latency.t_attn_intercept_ms
        token = sets["n_attn"] * t_read + sets["n_mlp"] * latency.t_mlp_ms
        for bits in BITS:
            n_attn, n_mlp = sets[f"n_attn_int{bits}"], sets[f"n_mlp_int{bits}"]
            if not (n_attn + n_mlp > 0).any():
                continue
            if not latency.has_passes(bits):
                return None
            attn, mlp, _ = LatencyTimes(latency).pass_ms(np.ones(len(read)), read, bits)
            token += n_attn * (attn - t_read) + n_mlp * (mlp - latency.t_mlp_ms)
        t_draft = divide(float((token * sets["draft_len"]).sum()), drafted) or 0.0
    t_target = latency.target_ms(header.model.n_layers, context)
    tested = np.minimum(steps["draft_len"], steps["accepted_len"] + 1).sum()
    return tpt(divide(steps["accepted_len"].sum(), tested) or 0.0, drafted / n, t_draft, t_target)


def estimated_tpt(steps: pd.DataFrame) -> tuple[float | None, int]:
    """Return the method's own TPT estimate in tokens per second, the mean over its search events, and their number."""
    events = steps["est_tokens_per_s"].dropna()
    return (float(events.mean()) if len(events) else None), len(events)


def break_even_tokens(prepare_ms: float | None, ar: float | None, method: float | None) -> float | None:
    """Return after how many output tokens an offline preparation is paid back; None without one, or if never.

    The arms' speeds are in tokens per second.
    """
    # preparation time over the time that the method saves per token
    if not prepare_ms or not ar or not method or method <= ar:
        return None
    return prepare_ms / (1000 / ar - 1000 / method)
