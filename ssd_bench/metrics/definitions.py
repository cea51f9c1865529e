"""Each number that a report shows, defined in one place: pure functions of the tables of a record.

Symbols: k drafted length, m accepted length (bonus token excluded), r skip ratio, c = 1 - r, L blocks, n context.
Times are milliseconds, rates tokens per second. A number that is not defined is None, never NaN. Functions that
return `Measured` give a 95 % interval over prompts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pandas as pd

from ssd_bench.core.layer_set import LayerSet
from ssd_bench.cost.tpt import tpt
from ssd_bench.metrics.intervals import (
    Array,
    Measured,
    divide,
    mean_of_ratios,
    measure,
    ratio,
    ratio_of_means,
    ratio_of_ratios,
)
from ssd_bench.records.reader import Run
from ssd_bench.records.schema import PAIR

TIMES = ["arm", "prompt_index", "repeat", "turn", "new_tokens", "prefill_ms", "decode_ms"]
"""Of `prompts`, all that speeds are made of: rows of these are picked in a fraction of the time that texts take."""


UNIT = ["prompt_index", "repeat", "turn"]
"""What two arms answer alike."""


def arm_rows(frame: pd.DataFrame, arm: str) -> pd.DataFrame:
    """The rows of `prompts` or `steps` of one arm ("ar", "method" or "hf")."""
    return frame[frame["arm"] == arm]


# --- acceptance -------------------------------------------------------------------------------------------------------


def tokens_per_pass(steps: pd.DataFrame) -> float | None:
    """M: emitted tokens per target verification pass (AR = 1); the bonus token counts, the prefill's own does not."""
    return divide(steps["emitted"].sum(), len(steps))


def tokens_per_call(prompts: pd.DataFrame, steps: pd.DataFrame) -> float | None:
    """M_call: emitted tokens per target forward pass, where each prefill is one pass that gives one token."""
    return divide(prompts["new_tokens"].sum(), len(steps) + len(prompts))


def alpha_micro(steps: pd.DataFrame) -> float | None:
    """alpha = sum m / sum k over all steps; None if nothing was drafted."""
    return divide(steps["accepted_len"].sum(), steps["draft_len"].sum())


def alpha_macro(steps: pd.DataFrame) -> float | None:
    """Mean over prompts (repeats apart) of sum m / sum k; prompts without a draft have none and are left out."""
    sums = steps.groupby(["prompt_index", "repeat"])[["accepted_len", "draft_len"]].sum()
    sums = sums[sums["draft_len"] > 0]
    return float((sums["accepted_len"] / sums["draft_len"]).mean()) if len(sums) else None


def alpha_conditional(steps: pd.DataFrame) -> float | None:
    """Accepted / tested drafted tokens, sum m / sum min(k, m + 1): a token after a rejected one was not tested.

    This is the probability that KnapSpec's Eq. 4 takes and its Eq. 9 estimates, that of one token whose predecessors
    were accepted; alpha = sum m / sum k is below it for k > 1.
    """
    tested = np.minimum(steps["draft_len"], steps["accepted_len"] + 1)
    return divide(steps["accepted_len"].sum(), tested.sum())


def alpha_by_position(steps: pd.DataFrame) -> pd.DataFrame:
    """Conditional acceptance by position i = 1, 2, ... in the draft.

    Returns:
        Columns position, tested (steps with k >= i whose first i - 1 drafted tokens were accepted), accepted (of
        those, m >= i), alpha = accepted / tested; one row per position that was ever tested.
    """
    rows = []
    for position in range(1, int(steps["draft_len"].max() if len(steps) else 0) + 1):
        tested = steps[(steps["draft_len"] >= position) & (steps["accepted_len"] >= position - 1)]
        accepted = int((tested["accepted_len"] >= position).sum())
        if len(tested):
            rows.append((position, len(tested), accepted, accepted / len(tested)))
    return pd.DataFrame(rows, columns=["position", "tested", "accepted", "alpha"])


def mean_draft_len(steps: pd.DataFrame) -> float | None:
    """Mean k over all steps, those without a draft included."""
    return divide(steps["draft_len"].sum(), len(steps))


def skip_ratio(run: Run) -> float | None:
    """r: share of the 2L sublayers that is skipped, mean over drafted tokens; None if no layers drafted."""
    steps = _with_sets(run)
    return divide(_skipped_tokens(steps), steps["draft_len"].sum())


def skip_ratio_of_all(run: Run) -> float | None:
    """Return r as SWIFT's formula needs it: over all drafted tokens, of which those that no layers drafted skip all.

    The same as `skip_ratio` where layers drafted every token. None if they drafted none, or read a window of the cache:
    the formula, c = 1 - r, has no cost for it.
    """
    steps, by_layers = arm_rows(run.steps, "method"), _with_sets(run)
    if not by_layers["draft_len"].sum() or np.isfinite(by_layers["read"]).any():
        return None
    others = steps["draft_len"].sum() - by_layers["draft_len"].sum()
    return divide(_skipped_tokens(by_layers) + others, steps["draft_len"].sum())


def _skipped_tokens(steps: pd.DataFrame) -> float:
    """Return the share of skipped sublayers, summed over the drafted tokens of steps with their sets."""
    skipped = (2 * steps["n_layers"] - steps["n_attn"] - steps["n_mlp"]) / (2 * steps["n_layers"])
    return float((skipped * steps["draft_len"]).sum())


def skipped_sublayers(run: Run) -> tuple[float | None, float | None]:
    """Attention and MLP sublayers that drafting skips, each of L, means over drafted tokens."""
    steps = _with_sets(run)
    drafted = steps["draft_len"].sum()
    kinds = (steps["n_layers"] - steps[column] for column in ("n_attn", "n_mlp"))
    attn, mlp = (divide((skipped * steps["draft_len"]).sum(), drafted) for skipped in kinds)
    return attn, mlp


def skipped_shares(run: Run) -> pd.DataFrame:
    """The method's steps that drafted by layers, with the shares of attentions and of MLPs that their sets skip.

    Returns:
        Columns prompt_index, context_len, attention, MLP.
    """
    steps = _with_sets(run)
    shares = {
        "attention": 1 - steps["n_attn"] / steps["n_layers"],
        "MLP": 1 - steps["n_mlp"] / steps["n_layers"],
    }
    return steps[["prompt_index", "context_len"]].assign(**shares)


@lru_cache(maxsize=8)  # several numbers of a summary are made of it
def _with_sets(run: Run) -> pd.DataFrame:
    """The method's steps that drafted by layers, with their sets.

    Returns:
        The columns of `steps`, and n_layers, n_attn and n_mlp (sublayers that run), read (most positions that an
        attention reads; infinite without a window).
    """
    sets = run.layer_sets.assign(
        n_attn=run.layer_sets["n_layers"] - run.layer_sets["skip_attn"].map(len).astype("int64"),
        n_mlp=run.layer_sets["n_layers"] - run.layer_sets["skip_mlp"].map(len).astype("int64"),
        read=run.window_sizes(),
    )
    steps = arm_rows(run.steps, "method").dropna(subset=["layer_set_id"]).astype({"layer_set_id": "int64"})
    return steps.merge(sets[["layer_set_id", "n_layers", "n_attn", "n_mlp", "read"]], on="layer_set_id")


def main_set(run: Run, domain: str | None = None) -> LayerSet | None:
    """Return the set that drafted most tokens, as `main_set_id`."""
    set_id = main_set_id(run, domain)
    return None if set_id is None else run.layer_set(set_id)


def main_set_id(run: Run, domain: str | None = None) -> int | None:
    """Return the id of the set, with its window, that drafted most tokens; None if no layers drafted.

    Args:
        domain: of the prompts that count; None: all.
    """
    steps = arm_rows(run.steps, "method").dropna(subset=["layer_set_id"])
    if domain is not None:
        own = run.prompts.loc[run.prompts["domain"] == domain, "prompt_index"]
        steps = steps[steps["prompt_index"].isin(own)]
    if steps.empty:
        return None
    drafted = steps.groupby("layer_set_id")["draft_len"].sum()
    return int(str(drafted.idxmax()))


# --- speed ------------------------------------------------------------------------------------------------------------


def token_times(prompts: pd.DataFrame, end_to_end: bool = False) -> pd.DataFrame:
    """Tokens and milliseconds per prompt (index: prompt_index), repeats added up.

    Decode-only leaves out the prefill, with its time and its own token; end-to-end includes both.
    """
    tokens, ms = (prompts[name].to_numpy(dtype=float) for name in ("new_tokens", "decode_ms"))
    if end_to_end:
        ms = ms + prompts["prefill_ms"].to_numpy(dtype=float)
    else:
        tokens = np.maximum(tokens - 1, 0)
    # a report sums up thousands of times: bincount takes a twentieth of a groupby
    index, group = np.unique(prompts["prompt_index"].to_numpy(), return_inverse=True)
    sums = {name: np.bincount(group, column, len(index)) for name, column in (("tokens", tokens), ("ms", ms))}
    return pd.DataFrame(sums, index=pd.Index(index, name="prompt_index"))


def tokens_per_s(prompts: pd.DataFrame, end_to_end: bool = False) -> Measured:
    """Return tokens per second of the rows: total tokens over total time; undefined where no token was decoded."""
    sums = token_times(prompts, end_to_end)
    if not sums["tokens"].any():
        return Measured(None, n=len(sums))
    return ratio(1000 * sums["tokens"].to_numpy(), sums["ms"].to_numpy())


def paired_rows(prompts: pd.DataFrame, arms: tuple[str, str] = PAIR) -> pd.DataFrame:
    """The rows of two arms, AR and the method unless told, of those prompts, repeats and turns that both decoded."""
    two = prompts[prompts["arm"].isin(arms)]
    return two[two.duplicated(UNIT, keep=False)]  # an arm has one row of each


def speedup(prompts: pd.DataFrame, end_to_end: bool = False, arms: tuple[str, str] = PAIR) -> Measured:
    """Speedup: tokens/s over tokens/s, each a ratio of totals, on the prompts that two arms of the same run decoded.

    Args:
        arms: what is divided by, and what is divided; AR and the method unless told, as in the other speedups.
    """
    return _speed_ratio(prompts, end_to_end, ratio_of_ratios, arms)


def speedup_mean(prompts: pd.DataFrame, end_to_end: bool = False, arms: tuple[str, str] = PAIR) -> Measured:
    """Arithmetic mean of the prompts' own speedups; prompts without a decoded token have none and are left out."""
    return _speed_ratio(prompts, end_to_end, mean_of_ratios, arms)


def speedup_rates(prompts: pd.DataFrame, end_to_end: bool = False, arms: tuple[str, str] = PAIR) -> Measured:
    """Ratio of the mean rates: mean over prompts of tokens/s over the same of the other arm (code of SWIFT, KNN-SSD).

    Prompts without a decoded token are left out.
    """
    return _speed_ratio(prompts, end_to_end, ratio_of_means, arms)


def speedup_wall(prompts: pd.DataFrame, arms: tuple[str, str] = PAIR) -> Measured:
    """Ratio of the total times, prefills included, whatever the lengths of the outputs (logs of ConfLayers)."""
    both = paired_rows(prompts, arms)
    theirs, ours = (token_times(arm_rows(both, arm), end_to_end=True)["ms"].to_numpy() for arm in arms)
    return ratio(theirs, ours)


def speedup_matched(prompts: pd.DataFrame) -> Measured:
    """Speedup (ratio of totals, decode-only) over the pairs whose two outputs have the same length."""
    both = paired_rows(prompts)
    same = both.groupby(UNIT)["new_tokens"].transform("nunique") == 1
    return speedup(both[same])


def _speed_ratio(
    prompts: pd.DataFrame, end_to_end: bool, statistic: Callable[..., Array], arms: tuple[str, str]
) -> Measured:
    both = paired_rows(prompts, arms)
    theirs, ours = (token_times(arm_rows(both, arm), end_to_end) for arm in arms)
    if not (theirs["tokens"].any() and ours["tokens"].any()):
        return Measured(None, n=len(ours))
    if statistic is not ratio_of_ratios:
        defined = (ours > 0).all(axis=1) & (theirs > 0).all(axis=1)
        theirs, ours = theirs[defined], ours[defined]
    return measure(statistic, *(sums[column].to_numpy() for sums in (ours, theirs) for column in ("tokens", "ms")))


def draft_cost(run: Run) -> Measured:
    """Return c as measured: time of a token drafted by layers over AR's time of a token on the same prompts."""
    steps = arm_rows(run.steps, "method").dropna(subset=["layer_set_id"])
    drafted = steps.groupby("prompt_index")[["draft_ms", "draft_len"]].sum()
    both = drafted.join(token_times(arm_rows(paired_rows(run.prompts[TIMES]), "ar")), how="inner")
    if not (both["draft_len"].any() and both["tokens"].any()):
        return Measured(None, n=len(both))
    return measure(ratio_of_ratios, *(both[name].to_numpy() for name in ("draft_ms", "draft_len", "ms", "tokens")))


def mean_acceptance_length(steps: pd.DataFrame) -> Measured:
    """M with its interval."""
    emitted = steps.groupby("prompt_index")["emitted"].agg(["sum", "size"])
    return ratio(emitted["sum"].to_numpy(), emitted["size"].to_numpy())


def alpha(steps: pd.DataFrame) -> Measured:
    """alpha (micro) with its interval."""
    sums = steps.groupby("prompt_index")[["accepted_len", "draft_len"]].sum()
    return ratio(sums["accepted_len"].to_numpy(), sums["draft_len"].to_numpy())


# --- models of speed --------------------------------------------------------------------------------------------------


def expected_speedup(m: float | None, acceptance: float | None, skip: float | None) -> float | None:
    """E(speedup) = M alpha / ((M - 1) c + alpha), c = 1 - r (SWIFT): a drafted token costs c, a verification 1."""
    if m is None or acceptance is None or skip is None:
        return None
    return divide(m * acceptance, (m - 1) * (1 - skip) + acceptance)


def predicted_tpt(run: Run, arm: str = "method") -> float | None:
    """TPT that the latency profile of the run predicts for what the arm did, in tokens per second.

    One formula for all methods: conditional alpha and mean k as realised, n = mean context length,
    t_target = L (t_attn(n) + t_mlp), t_draft = n_attn(S) t_attn(n) + n_mlp(S) t_mlp averaged over drafted tokens, n at
    most what their window reads; tokens that no layers drafted cost nothing. None without a latency profile or steps.
    """
    steps, latency = arm_rows(run.steps, arm), run.header.get("latency") or {}
    keys = ("t_attn_slope_ms", "t_attn_intercept_ms", "t_mlp_ms")
    n_layers = (run.header.get("model") or {}).get("n_layers")
    if steps.empty or n_layers is None or any(latency.get(key) is None for key in keys):
        return None
    slope, intercept, t_mlp = (latency[key] for key in keys)
    context = float(steps["context_len"].mean())
    t_attn = slope * context + intercept
    t_draft = 0.0
    if arm == "method":
        sets = _with_sets(run)
        t_read = slope * sets["read"].clip(upper=context) + intercept
        cost = ((sets["n_attn"] * t_read + sets["n_mlp"] * t_mlp) * sets["draft_len"]).sum()
        t_draft = divide(cost, steps["draft_len"].sum()) or 0.0
    return tpt(alpha_conditional(steps) or 0.0, mean_draft_len(steps) or 0.0, t_draft, n_layers * (t_attn + t_mlp))


def estimated_tpt(steps: pd.DataFrame) -> tuple[float | None, int]:
    """TPT as the method itself estimated it: mean over its search events, in tokens per second, and their number."""
    events = steps["est_tokens_per_s"].dropna()
    return (float(events.mean()) if len(events) else None), len(events)


def decode_time_shares(prompts: pd.DataFrame) -> dict[str, float | None]:
    """Return shares of the decode time, summing to 1: draft, verify, policy, and other (whatever no span covers).

    All are None where no prompt has a decode step: the loop then took some time for nothing.
    """
    total = prompts["decode_ms"].sum() if (prompts["new_tokens"] > 1).any() else 0.0
    shares = {name: divide(prompts[f"{name}_ms"].sum(), total) for name in ("draft", "verify", "policy")}
    known = [share for share in shares.values() if share is not None]
    return {**shares, "other": 1 - sum(known) if known else None}


def break_even_tokens(prepare_ms: float | None, ar: float | None, method: float | None) -> float | None:
    """Tokens after which an offline preparation has paid for itself; None if there was none or it never does.

    Args:
        ar, method: tokens per second of the two arms.
    """
    if not prepare_ms or not ar or not method or method <= ar:
        return None
    return prepare_ms / (1000 / ar - 1000 / method)
