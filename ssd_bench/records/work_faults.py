"""Faults of the table `work`: impossible calls, and answers and steps whose passes it does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from ssd_bench.contract.generation import PARTS
from ssd_bench.records.fault import ROUNDING, Fault, broken_rules, in_all, row_key
from ssd_bench.records.schema import ANSWER

STEP_TIMES = {"draft": "draft_ms", "verify": "verify_ms", "overhead": "policy_ms"}
"""Part of a step -> column of `steps` with the time that its calls are a part of."""


def work_faults(
    header: Mapping[str, Any], prompts: pd.DataFrame, steps: pd.DataFrame, layer_sets: pd.DataFrame, work: pd.DataFrame
) -> Iterator[Fault]:
    """Yield impossible rows of `work`, and answers and steps whose passes it does not have."""
    if work.empty:  # an older record
        return
    n_layers = (header.get("model") or {}).get("n_layers", np.inf)
    int8 = ["int8_attentions", "int8_mlps", "int8_heads"]
    columns = ["calls", "rows", "attentions", "mlps", "heads", "context", "launches", *int8]
    counts = work[columns].to_numpy(dtype=float)
    times = work["ms"].fillna(0.0).to_numpy(dtype=float)
    rules = {
        "part is none of the parts of a step": ~work["part"].isin(PARTS).to_numpy(bool),
        "a count is negative or zero": (counts[:, :7] < 0).any(axis=1) | (counts[:, [0, 1, 6]] < 1).any(axis=1),
        "a pass has more sublayers than the model": (counts[:, 2:4] > n_layers).any(axis=1),
        "more is in 8 bits than is read": ~((counts[:, 7:] >= 0) & (counts[:, 7:] <= counts[:, 2:5])).all(axis=1),
        "only drafts and searches read 8-bit weights": (counts[:, 7:].sum(axis=1) > 0)
        & work["part"].isin(("prefill", "verify")).to_numpy(bool),
        "ms is negative or no number": ~((times >= 0) & np.isfinite(times)),
    }
    yield from broken_rules("work", work, rules)
    step_key = [*ANSWER, "step"]
    steps = steps.drop_duplicates(step_key)  # rows that occur twice are faults of their tables
    answers = prompts[prompts["arm"] != "hf"].drop_duplicates(ANSWER).set_index(list(ANSWER))
    steps_and_prefills = [*zip(*(steps[name] for name in step_key)), *((*key, 0) for key in answers.index)]
    strange = ~pd.MultiIndex.from_frame(work[step_key]).isin(steps_and_prefills)
    if strange.any():
        yield "work", row_key(work, int(strange.argmax())), "its step is in no table"
    expected = steps.merge(_set_sizes(layer_sets), on="layer_set_id", how="left").set_index(step_key)
    verify, draft = (work[work["part"] == part] for part in ("verify", "draft"))
    whole = verify.groupby(step_key)[["attentions", "mlps"]].sum()  # also if saved states divide the pass in two
    last = verify[verify["heads"] > 0].groupby(step_key)[["calls", "rows", "heads", "context"]].sum()
    drafted = draft.groupby(step_key)[["calls", "attentions", "mlps", *int8]].max()
    prefill = work[(work["part"] == "prefill") & (work["attentions"] > 0)]
    layers = expected["tree_nodes"] * 0 + (n_layers if np.isfinite(n_layers) else whole["attentions"].max())
    by_layers = expected[expected["layer_set_id"].notna() & (expected["draft_len"] > 0)]
    yield from _unequal(whole["attentions"], layers, "its verification does not run every attention")
    yield from _unequal(whole["mlps"], layers, "its verification does not run every MLP")
    yield from _unequal(last["rows"], expected["tree_nodes"], "its verified rows are not tree_nodes")
    yield from _unequal(last["calls"], layers * 0 + 1, "it verifies more than once")
    yield from _unequal(last["heads"], layers * 0 + 1, "it does not compute the LM head of every node")
    yield from _unequal(last["context"], expected["context_len"], "its verification does not read context_len rows")
    yield from _unequal(drafted["attentions"], by_layers["n_attn"], "its draft runs other attentions than its set")
    yield from _unequal(drafted["mlps"], by_layers["n_mlp"], "its draft runs other MLPs than its set")
    for column, what in zip(int8, ("attentions", "MLPs", "heads")):
        rounded = by_layers[f"n_{column}"]
        yield from _unequal(drafted[column], rounded, f"its draft reads other {what} in 8 bits than its set")
    yield from _unequal(
        drafted["calls"].clip(upper=by_layers["draft_len"].reindex(drafted.index)),
        by_layers["draft_len"],
        "its draft has fewer passes than draft_len",
    )
    nodes = (prefill["calls"] * prefill["rows"]).groupby([prefill[name] for name in ANSWER]).sum()
    yield from _unequal(nodes, answers["prompt_len"], "its prefill does not run prompt_len nodes")
    yield from _long_calls(steps, work)


def _long_calls(steps: pd.DataFrame, work: pd.DataFrame) -> Iterator[Fault]:
    """Yield steps whose calls together took longer than the part of the step that they belong to."""
    step_key = [*ANSWER, "step"]
    calls = work[work["ms"].notna()].groupby([*step_key, "part"])["ms"].sum().unstack("part")
    times = steps.set_index(step_key)
    for part, column in STEP_TIMES.items():
        if part in calls:
            excess = calls[part] - times[column].reindex(calls.index)
            longer = (excess > ROUNDING * (1 + calls[part])).to_numpy(bool)
            if longer.any():
                prompt, repeat, turn, arm, step = excess.index[int(longer.argmax())]
                text = f"step {step}: {column} is shorter than its calls in work{in_all(longer, 'steps')}"
                yield "steps", (prompt, repeat, turn, arm), text


def _set_sizes(layer_sets: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of attentions and of MLPs that each layer set runs, in all and in 8 bits, by layer_set_id."""
    run: dict[str, Any] = {
        name: layer_sets["n_layers"] - layer_sets[f"skip_{kind}"].map(len).astype("int64")
        for name, kind in (("n_attn", "attn"), ("n_mlp", "mlp"))
    }
    ends = [
        (2 * count, () if int8 is None else int8) for count, int8 in zip(layer_sets["n_layers"], layer_sets["int8"])
    ]
    run["n_int8_attentions"] = [sum(i % 2 == 0 for i in int8 if i < head) for head, int8 in ends]
    run["n_int8_mlps"] = [sum(i % 2 == 1 for i in int8 if i < head) for head, int8 in ends]
    run["n_int8_heads"] = [sum(i == head for i in int8) for head, int8 in ends]
    return layer_sets[["layer_set_id"]].astype("Int32").assign(**run)


def _unequal(values: pd.Series[Any], expected: pd.Series[Any], text: str) -> Iterator[Fault]:
    """Yield the first answer or step (by index) whose value is missing, too many, or not expected; say how many."""
    keys = expected.index.union(values.index)
    differing = values.reindex(keys).to_numpy(dtype=float) != expected.reindex(keys).to_numpy(dtype=float)
    if differing.any():
        prompt, repeat, turn, arm, *step = keys[int(differing.argmax())]
        text += in_all(differing, "steps" if step else "answers")
        yield "work", (prompt, repeat, turn, arm), f"step {step[0]}: {text}" if step else text
