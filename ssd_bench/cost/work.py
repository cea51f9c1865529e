"""Time of recorded work on a machine: every call of the model, from its sublayers, rows and context."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ssd_bench.cost.machine import Array, Machine

CAPTURED_ROWS = 64
"""Most rows of a pass that a GPU replays as a captured graph; calls over more rows are launched by operator."""


def head_ms(machine: Machine, rows: Array) -> Array:
    """Return the milliseconds of an LM head over a number of rows, with the choice of a token in each.

    The rest of a verification includes the decode loop, so only its growth with the rows is the head's.
    """
    here = np.zeros_like(rows)
    return machine.draft_rest_ms + machine.pass_ms(rows, here)[2] - machine.pass_ms(np.ones_like(rows), here)[2]


def work_ms(work: pd.DataFrame, machine: Machine) -> Array:
    """Return the milliseconds of every row of `work` (columns of the record's table) on a machine.

    Host time that no call explains is not part of it: the decode loop (`Machine.loop_ms`), the Python code of a method.
    """
    part = work["part"].to_numpy()
    calls, rows, attentions, mlps, heads, context = (
        work[name].to_numpy(dtype=float) for name in ("calls", "rows", "attentions", "mlps", "heads", "context")
    )
    attn, mlp, rest = machine.pass_ms(rows, context)
    # a drafted token chooses its successor, a verification also accepts and commits; other heads stand alone
    after = np.select([part == "draft", part == "verify"], [machine.draft_rest_ms, rest], head_ms(machine, rows))
    searches = ~np.isin(part, ("prefill", "draft", "verify"))
    # a whole pass over few rows is one captured graph; a single sublayer, a head, and wide passes are launched eagerly
    sublayers = attentions + mlps
    launches = np.where((sublayers > 1) & (rows <= CAPTURED_ROWS), 0.0, np.maximum(sublayers, 1.0))
    host = np.where((sublayers == 0) & (heads == 0), machine.compare_ms, launches * machine.call_ms)
    each = attentions * attn + mlps * mlp + heads * after + np.where(searches, host, 0.0)
    return np.asarray(calls * each)
