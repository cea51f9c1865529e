"""Time of recorded work on a machine: every call of the model, from its sublayers, rows and context."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ssd_bench.cost.machine import Array, Calls, Machine, head_ms


def work_ms(work: pd.DataFrame, machine: Machine) -> Array:
    """Return the milliseconds of every row of `work` (columns of the record's table) on a machine.

    Host time that no call explains is not part of it: the decode loop (`Machine.loop_ms`), the Python code of a method.
    """
    part, n_calls = work["part"].to_numpy(), work["calls"].to_numpy(dtype=float)
    calls = Calls(*(work[name].to_numpy(dtype=float) for name in Calls._fields))
    attn, mlp, rest = machine.pass_ms(calls.rows, calls.context)
    # a drafted token chooses its successor; a verification also accepts and commits; a prefill only computes the head
    after = np.select(
        [part == "draft", part == "verify"], [machine.draft_rest_ms, rest], default=head_ms(machine, calls.rows)
    )
    decoding = calls.attentions * attn + calls.mlps * mlp + calls.heads * after
    decodes = np.isin(part, ("prefill", "draft", "verify"))
    return n_calls * (np.where(decodes, decoding, machine.calls_ms(calls)) - _saved_ms(calls, machine))


def _saved_ms(calls: Calls, machine: Machine) -> Array:
    """Return what 8-bit weights save in calls; only drafts read the LM head in 8 bits."""
    saved = np.zeros_like(calls.rows)
    at = np.flatnonzero(calls.int8_attentions + calls.int8_mlps + calls.int8_heads)
    if len(at):
        attn, mlp, _ = machine.pass_ms(calls.rows[at], calls.context[at])
        int8_attn, int8_mlp = machine.int8_pass_ms(calls.rows[at], calls.context[at])
        saved[at] = calls.int8_attentions[at] * (attn - int8_attn) + calls.int8_mlps[at] * (mlp - int8_mlp)
        saved[at] += calls.int8_heads[at] * (machine.draft_rest_ms - machine.int8_draft_rest_ms)
    return saved
