"""Modelled time: the recorded work of every step, at the costs of a reference machine, without any recorded time.

The measured passes of a GPU and a model size (`ssd_bench.cost.reference`) time the calls counted in a record. The
blocks of a smaller model stand for the reference's by relative depth. Acceptance, drafts and layer sets come from the
recorded model. A method's Python code is left out, except for the host's time per call.

`ModelledTimes` replaces a run's times, so that modelled and measured numbers have the same definitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ssd_bench.contract.generation import Work
from ssd_bench.cost.latency import Latency
from ssd_bench.cost.reference import reference_machine
from ssd_bench.cost.work import Machine, work_ms
from ssd_bench.records.header import RunHeader
from ssd_bench.records.reader import Run
from ssd_bench.records.schema import ANSWER, PAIR
from ssd_bench.results.rows import rows_with, sums_at

REFERENCE = "h200/llama3_1_8b"
"""Reference machine of runs that name none (`hardware.costs`): GPU and size nearest to the papers' claims."""

STEP = [*ANSWER, "step"]
SPANS = ("draft_ms", "verify_ms", "policy_ms")
"""Times in `steps` and `prompts`; `policy_ms` is method overhead."""
PARTS = (*SPANS, "loop_ms")
"""Columns of `modelled_steps`: all of a step, including the decode loop."""


def reference_of(header: RunHeader) -> str:
    return str(header.options("hardware").get("costs") or REFERENCE)


def modelled_steps(run: Run, machine: Machine) -> pd.DataFrame:
    """Return the modelled milliseconds of every step.

    Args:
        machine: for a model with as many blocks as the recorded one.

    Returns:
        Columns of `STEP`, emitted, and `PARTS`; in the order of `steps`.
    """
    steps, (work, row) = run.steps, rows_with(run.work[run.work["step"] > 0], run.steps, STEP)
    part, ms = work["part"].to_numpy(), work_ms(work, machine)
    draft, verify, overhead = (
        sums_at(row, ms * (part == name), len(steps)) for name in ("draft", "verify", "overhead")
    )
    draft_len, tree_nodes = (steps[name].to_numpy() for name in ("draft_len", "tree_nodes"))
    tree = tree_nodes != draft_len + 1  # a chain has the root and one node per drafted token
    drafted = draft > 0
    # a step that verified from the first skipped sublayer on kept a state of each drafted token; only then has a
    # verification a pass without an LM head, in which the last node catches up
    from_fork = sums_at(row, (part == "verify") & (work["heads"].to_numpy() == 0), len(steps)) > 0
    draft += drafted * machine.draft_start_ms + (tree & drafted) * machine.tree_token_ms * draft_len
    draft += from_fork * machine.copy_ms * draft_len
    verify += tree * machine.tree_node_ms * tree_nodes
    loop = np.full(len(steps), machine.loop_ms or 0.0)
    times = dict(zip(PARTS, (draft, verify, overhead, loop), strict=True))
    return steps[[*STEP, "emitted"]].assign(**times)


@dataclass(frozen=True)
class ModelledTimes:
    """Modelled times of a run, without its tables.

    Attributes:
        steps, prompts: column -> milliseconds, in the order of `steps`, and of the prompts of AR and the method.
    """

    latency: Latency
    prepare_ms: float
    steps: Mapping[str, NDArray[np.float64]]
    prompts: Mapping[str, NDArray[np.float64]]

    @classmethod
    def of(cls, run: Run) -> ModelledTimes:
        """Model the times of a run at its reference machine.

        Raises:
            ConfigError: the reference machine is unknown.
        """
        machine = reference_machine(reference_of(run.header)).of_blocks(run.header.model.n_layers)
        steps = modelled_steps(run, machine)
        prompts = run.prompts[run.prompts["arm"].isin(PAIR)]
        prefill, prefilled = rows_with(run.work[run.work["step"] == 0], prompts, ANSWER)
        decoded, answer = rows_with(steps, prompts, ANSWER)
        parts = {name: sums_at(answer, decoded[name].to_numpy(), len(prompts)) for name in PARTS}
        times = {
            "prefill_ms": sums_at(prefilled, work_ms(prefill, machine), len(prompts)),
            "decode_ms": sum(parts.values(), np.zeros(len(prompts))),
            **{name: parts[name] for name in SPANS},
        }
        spans = {name: steps[name].to_numpy() for name in SPANS}
        preparation = pd.DataFrame(run.header.prepare_work, columns=[part.name for part in fields(Work)])
        return cls(machine.latency, float(work_ms(preparation, machine).sum()), spans, times)

    def replace_in(self, run: Run) -> Run:
        """Replace the recorded times of the run, in both tables and the header.

        The arm of Hugging Face, whose work is not counted, is left out.
        """
        # the work of searches before the run is counted with the preparation, not search by search
        searches = [replace(search, seconds=0.0) for search in run.header.searches]
        return replace(
            run,
            header=replace(run.header, prepare_ms=self.prepare_ms, searches=searches, latency=self.latency),
            prompts=run.prompts[run.prompts["arm"].isin(PAIR)].assign(**self.prompts),
            steps=run.steps.assign(**self.steps),
        )


def reference_run(run: Run) -> Run:
    """Return the run with the times and latency profile of its reference machine.

    Raises:
        ConfigError: as `ModelledTimes.of`.
    """
    return ModelledTimes.of(run).replace_in(run)
