"""Modelled time: the recorded work of every step, at the costs of a reference machine; no recorded time is part of it.

A GPU and a model size whose passes were measured (`ssd_bench.cost.reference`) time the calls that a record counts. The
blocks of a smaller model stand for those of the reference by relative depth. Acceptance, drafts and layer sets are
those of the recorded model. The Python code of a method is not in it, except for the host's time per call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ssd_bench.cost.machine import Machine
from ssd_bench.cost.reference import reference_machine
from ssd_bench.cost.work import work_ms
from ssd_bench.metrics.definitions import arm_rows, break_even_tokens, paired_rows
from ssd_bench.metrics.intervals import Measured, divide, measure, ratio_of_ratios
from ssd_bench.metrics.row import SummaryRow
from ssd_bench.records.header import RunHeader
from ssd_bench.records.reader import Run
from ssd_bench.records.schema import ANSWER, PAIR

REFERENCE = "h200/llama3_1_8b"
"""Reference machine of runs that name none (`hardware.costs`): the GPU and the size nearest to the papers' claims."""

STEP = [*ANSWER, "step"]
PARTS = ("draft_ms", "verify_ms", "policy_ms", "loop_ms")
"""Columns of `modelled_steps`, named as in `steps`; `policy_ms` is method overhead, `loop_ms` the decode loop."""


@dataclass(frozen=True)
class ModelledSummary(SummaryRow):
    """Speedup at the costs of a reference machine; intervals are over prompts alone, since nothing varies by run.

    Attributes:
        modelled_on: name of the reference machine.
        speedup_modelled: speedup of decoding.
        speedup_frozen: the same without method overhead, as if the search were frozen.
        modelled_overhead: method overhead, as a share of the method's decode time.
        modelled_prepare_ms: preparation before the run; searches that the run reused are not in it.
        modelled_break_even_tokens: tokens after which the preparation is paid back; None without one, or if it never is.
    """

    modelled_on: str
    speedup_modelled: Measured
    speedup_frozen: Measured
    modelled_overhead: float | None
    modelled_prepare_ms: float | None
    modelled_break_even_tokens: float | None


def reference_of(header: RunHeader) -> str:
    """Return the name of the reference machine by which a run is judged."""
    return str(header.options("hardware").get("costs") or REFERENCE)


def has_work(run: Run) -> bool:
    """Return whether a record counts the work of its steps; records of before 2026-12 do not."""
    return len(run.work) > 0


def modelled_steps(run: Run, machine: Machine) -> pd.DataFrame:
    """Return the modelled milliseconds of every step.

    Args:
        machine: a machine for a model with as many blocks as the recorded one.

    Returns:
        Columns of `STEP`, emitted, and `PARTS`; in the order of `steps`.
    """
    work = run.work[run.work["step"] > 0].copy()
    work["ms"] = work_ms(work, machine)
    names = {"draft": "draft_ms", "verify": "verify_ms", "overhead": "policy_ms"}
    sums = work.pivot_table(index=STEP, columns="part", values="ms", aggfunc="sum", fill_value=0.0)
    sums = sums.reindex(columns=list(names), fill_value=0.0).rename(columns=names).rename_axis(columns=None)
    steps = run.steps[[*STEP, "emitted", "draft_len", "tree_nodes"]].merge(sums.reset_index(), on=STEP, how="left")
    steps = steps.fillna(dict.fromkeys(names.values(), 0.0))
    tree = steps["tree_nodes"] != steps["draft_len"] + 1  # a chain has the root and one node per drafted token
    drafted = steps["draft_ms"] > 0
    steps["draft_ms"] += (
        drafted * machine.draft_start_ms + (tree & drafted) * machine.tree_token_ms * steps["draft_len"]
    )
    steps["verify_ms"] += tree * machine.tree_node_ms * steps["tree_nodes"]
    steps["loop_ms"] = machine.loop_ms or 0.0
    return steps[[*STEP, "emitted", *PARTS]]


def prepare_ms(run: Run, machine: Machine) -> float | None:
    """Return the modelled milliseconds of the preparation; None if the record does not count it."""
    if run.header.prepare_work is None:
        return None
    return float(work_ms(pd.DataFrame(run.header.prepare_work, columns=list(_WORK)), machine).sum())


_WORK = ("part", "calls", "rows", "attentions", "mlps", "heads", "context", "ms")


def modelled_speedup(steps: pd.DataFrame, prompts: pd.DataFrame, frozen: bool = False) -> Measured:
    """Return the speedup of totals over the answers that both arms decoded, from the times of `modelled_steps`.

    Args:
        prompts: table of the record.
        frozen: leave out the method overhead.
    """
    pairs = paired_rows(prompts[[*ANSWER]])
    paired = steps.merge(pairs, on=list(ANSWER))
    columns = [name for name in PARTS if not (frozen and name == "policy_ms")]
    paired = paired.assign(ms=paired[columns].sum(axis=1))
    sums = {arm: arm_rows(paired, arm).groupby("prompt_index")[["emitted", "ms"]].sum() for arm in PAIR}
    ar, method = sums["ar"].align(sums["method"], join="inner", axis=0)
    if not len(ar):
        return Measured(None)
    return measure(ratio_of_ratios, *(sums[name].to_numpy() for sums in (method, ar) for name in ("emitted", "ms")))


def modelled_numbers(run: Run) -> ModelledSummary | None:
    """Return the modelled numbers of a run; None for a record that does not count its work, or has no steps of both arms."""
    if not has_work(run):
        return None
    name = reference_of(run.header)
    machine = reference_machine(name).of_blocks(run.header.model.n_layers)
    steps = modelled_steps(run, machine)
    speedup = modelled_speedup(steps, run.prompts)
    method = arm_rows(steps, "method")
    total = float(method[list(PARTS)].to_numpy().sum())
    rates = {arm: _tokens_per_s(arm_rows(steps, arm)) for arm in PAIR}
    prepared = prepare_ms(run, machine)
    return ModelledSummary(
        modelled_on=name,
        speedup_modelled=speedup,
        speedup_frozen=modelled_speedup(steps, run.prompts, frozen=True),
        modelled_overhead=divide(float(method["policy_ms"].sum()), total),
        modelled_prepare_ms=prepared,
        modelled_break_even_tokens=break_even_tokens(prepared, rates["ar"], rates["method"]),
    )


def _tokens_per_s(steps: pd.DataFrame) -> float | None:
    return divide(1000 * float(steps["emitted"].sum()), float(np.sum(steps[list(PARTS)].to_numpy())))
