"""Time of recorded work on a machine: every call of the model, from its sublayers, rows and context."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pandas as pd

from ssd_bench.contract.layer_set import BITS
from ssd_bench.cost.machine import Array, Calls

if TYPE_CHECKING:  # replays with a record's profile need no data sheets
    from ssd_bench.cost.machine import Profile
    from ssd_bench.cost.reference import ReferenceMachine
    from ssd_bench.cost.roofline import SimulatedMachine

Machine: TypeAlias = "Profile | ReferenceMachine | SimulatedMachine"
"""One of three sources of times, all in milliseconds.

`bits` are those of the rounded weights whose times it has, `loop_ms` the work of the decode loop in a step (None: as in
the record, scaled with the forward passes), `copy_ms` the time to keep one state of the residual stream.
"""


def work_ms(work: pd.DataFrame, machine: Machine) -> Array:
    """Return the milliseconds of every row of `work` (columns of the record's table) on a machine.

    Host time outside calls is left out: the decode loop (`Machine.loop_ms`), the method's Python code.
    """
    part, n_calls = work["part"].to_numpy(), work["calls"].to_numpy(dtype=float)
    calls = Calls(*(work[name].to_numpy(dtype=float) for name in Calls._fields))
    attn, mlp, rest = machine.pass_ms(calls.rows, calls.context)
    # a drafted token chooses its successor; a verification also accepts and commits; a prefill only computes the head
    head = machine.head_ms(calls.rows)
    drafted = np.where(calls.rows > 1, head, machine.rest_ms(0))  # of several rows if the draft checks a copy
    after = np.select([part == "draft", part == "verify"], [drafted, rest], default=head)
    decoding = calls.attentions * attn + calls.mlps * mlp + calls.heads * after
    decodes = np.isin(part, ("prefill", "draft", "verify"))
    return n_calls * (np.where(decodes, decoding, machine.calls_ms(calls)) - _saved_ms(calls, machine))


def _saved_ms(calls: Calls, machine: Machine) -> Array:
    """Return the milliseconds that rounded weights save; only drafts read a rounded LM head."""
    saved = np.zeros_like(calls.rows)
    for bits in BITS:
        attentions, mlps, heads = (getattr(calls, f"int{bits}_{part}") for part in ("attentions", "mlps", "heads"))
        at = np.flatnonzero(attentions + mlps + heads)
        if len(at):
            attn, mlp, _ = machine.pass_ms(calls.rows[at], calls.context[at])
            rounded_attn, rounded_mlp, _ = machine.pass_ms(calls.rows[at], calls.context[at], bits)
            saved[at] += attentions[at] * (attn - rounded_attn) + mlps[at] * (mlp - rounded_mlp)
            saved[at] += heads[at] * (machine.rest_ms(0) - machine.rest_ms(bits))
    return saved
