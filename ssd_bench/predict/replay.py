"""Predicted time of every step of a record on a machine, tokens per second of both arms, and the speedup.

Every part of a step is timed by its recorded calls of the model (`modelled_steps`). Drafts, acceptance and layer sets
are the record's; without a baseline, AR's steps are made up from the method's output. The blocks of a model of another
size are represented by the recorded model's, by relative depth.

* Method overhead consists of calls of the model and of the method's own code. The recorded time of this code is added
  on the machine of the record; on another machine it is left out.
* Decode loop: the time that AR spends outside its verification is the loop's work in every step, including the method's
  steps. On the machine of the record it is scaled by AR's steps, whose speed may have changed since the profile; other
  machines have a constant.
* A draft takes a fixed time in addition to its tokens. A tree takes longer than a chain with as many nodes, in drafting
  (choice of siblings) and in verification (mask, depths, paths). All tokens of a tree count as siblings, since the
  record does not say which have some.
* A draft whose states the verification reuses keeps one state per token; the cost of a method's taps is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ssd_bench.contract.shape import Shape
from ssd_bench.cost.latency import GIVEN, MEASURED
from ssd_bench.cost.machine import Array, Profile
from ssd_bench.cost.reference import ReferenceMachine, reference_machine, reference_names
from ssd_bench.cost.roofline import SimulatedMachine, gpu_named, simulated_machine
from ssd_bench.cost.shapes import known_shape, shape_named
from ssd_bench.cost.work import Machine
from ssd_bench.errors import ConfigError
from ssd_bench.records.reader import Run
from ssd_bench.records.schema import ANSWER, PAIR, ROUNDED
from ssd_bench.results.modelled import PARTS, SPANS, STEP, modelled_steps
from ssd_bench.results.models import model_title
from ssd_bench.results.quantity import divide
from ssd_bench.results.rows import arm_rows, paired_rows

OWN = "own"
OVERHEAD = {
    "own": "overhead: calls of the model by the profile, and the recorded time of the method's own code",
    "calls": "overhead: the calls and comparisons that the record counts, without the time of the method's own code",
}
"""Sources of predicted method overhead, and a sentence on each."""


@dataclass(frozen=True)
class Prediction:
    """Predicted speed of a recorded run on a machine.

    Attributes:
        acceptance: a sentence on its source.
        overhead: source of the predicted method overhead, a key of `OVERHEAD`.
        tokens_per_s: tokens per second of `ar` and `method`.
        speedup, speedup_frozen: with and without method overhead.
        ceiling: M.
        shares: shares of the method's time by part.
    """

    machine: str
    model: str
    acceptance: str
    overhead: str
    tokens_per_s: Mapping[str, float]
    speedup: float
    speedup_frozen: float
    ceiling: float
    shares: Mapping[str, float]


def recorded_shape(run: Run) -> Shape:
    """Return the sizes of the recorded model.

    Raises:
        ConfigError: unknown sizes, or others than the record's.
    """
    model = run.header.model
    shape = known_shape(model.name)
    if shape is None:
        raise ConfigError("model", model.name, "model=NAME: conf/model does not have the sizes of the recorded model")
    if (shape.n_layers, shape.n_params) != (model.n_layers, model.n_params):
        raise ConfigError("model", model.name, "model=NAME: the record was made with another version of this model")
    return shape


def measured_machine(name: str) -> ReferenceMachine:
    """Return the reference machine of an option.

    Raises:
        ConfigError: there is none.
    """
    if name not in reference_names():
        raise ConfigError("hardware", name, f"one of own, {', '.join(reference_names())}, or sim_<gpu>")
    return reference_machine(name)


def own_profile(run: Run) -> Profile:
    """Return the machine of a record.

    Raises:
        ConfigError: the record has no latency profile.
    """
    latency = run.header.latency
    if latency is None or latency.source not in (GIVEN, MEASURED):  # else the costs of a reference machine
        raise ConfigError("run", str(run.path), "a record with a latency profile of its own machine")
    return Profile(latency)


def has_baseline(run: Run) -> bool:
    """Return whether a record has AR's steps of an answer that the method decoded, too."""
    return len(paired_rows(run.prompts)) > 0


def with_baseline(run: Run) -> Run:
    """Return the run with the steps of all answers that both arms decoded.

    Without AR's answers a method's step that emitted m tokens gives m AR steps, without times.

    Raises:
        ConfigError: the record has no steps, because no output has a token after the prefill's.
    """
    work = run.work
    if has_baseline(run):
        steps = run.steps.merge(paired_rows(run.prompts)[list(ANSWER)], on=list(ANSWER))
    else:
        method = arm_rows(run.steps, "method")
        ar = _plain_steps(method)
        steps = pd.concat([ar, method], ignore_index=True)
        work = pd.concat([work, _plain_work(run, ar)], ignore_index=True)
    if not len(steps):
        raise ConfigError("run", str(run.path), "outputs of two tokens or more")
    return replace(run, steps=steps, work=work)


def _plain_steps(method: pd.DataFrame) -> pd.DataFrame:
    ar = method.loc[method.index.repeat(method["emitted"])].copy()
    ar["context_len"] += ar.groupby(level=0).cumcount().astype("int32")  # AR commits one position per step
    ar["step"] = (ar.groupby(list(ANSWER)).cumcount() + 1).astype(method["step"].dtype)
    ar["arm"], ar["layer_set_id"] = "ar", pd.array([pd.NA] * len(ar), dtype="Int32")
    ar[["draft_len", "accepted_len"]], ar[["tree_nodes", "emitted"]] = 0, 1
    ar[list(SPANS)] = 0.0
    return ar


def _plain_work(run: Run, ar: pd.DataFrame) -> pd.DataFrame:
    n_layers = run.header.model.n_layers
    counts = {"calls": 1, "rows": 1, "attentions": n_layers, "mlps": n_layers, "heads": 1.0, "launches": 2}
    counts |= dict.fromkeys(ROUNDED, 0)
    return ar[STEP].assign(part="verify", **counts, context=ar["context_len"].astype(float))


def step_times(run: Run, machine: Machine) -> pd.DataFrame:
    """Predict the milliseconds of every step; a simulated or reference machine includes the model.

    Returns:
        Columns prompt_index, repeat, turn, arm, step, emitted, and draft_ms, verify_ms, policy_ms, loop_ms, predicted.
        `attrs`: `overhead`, a key of `OVERHEAD`.
    """
    complete = with_baseline(run)
    times = modelled_steps(complete, machine.of_blocks(run.header.model.n_layers))
    if machine.loop_ms is None:
        times["loop_ms"] = _recorded_loop(run, complete.steps, times)
    code = code_ms(run, complete.steps) if isinstance(machine, Profile) else None
    times.attrs["overhead"] = "calls" if code is None else "own"
    if code is not None:
        times["policy_ms"] += np.where(times["arm"] == "method", code, 0.0)
    return times


def _recorded_loop(run: Run, steps: pd.DataFrame, times: pd.DataFrame) -> float:
    """Return the decode loop's recorded milliseconds in a step, at the predicted speed.

    The loop is all time of AR, without a baseline of the method, outside the parts of its steps.
    """
    arm = "ar" if has_baseline(run) else "method"
    rows, spans = arm_rows(steps, arm), ["draft_ms", "verify_ms"]
    answers = run.prompts.merge(steps[list(ANSWER)].drop_duplicates(), on=list(ANSWER))
    loop_ms = arm_rows(answers, arm)["decode_ms"].sum() - rows[spans].to_numpy().sum()
    if arm == "method":  # the proposals of AR are part of its loop
        loop_ms -= rows["policy_ms"].sum()
    # predicted over recorded time of verifications, with AR's empty drafts
    recorded_ms = rows[spans if arm == "ar" else ["verify_ms"]].to_numpy().sum()
    scale = divide(arm_rows(times, arm)["verify_ms"].sum(), recorded_ms) or 0.0
    return scale * max(0.0, divide(loop_ms, len(rows)) or 0.0)


def code_ms(run: Run, steps: pd.DataFrame) -> Array | None:
    """Return the recorded milliseconds of a method's own code in every step, without calls of the model.

    None if the calls were not timed, as on a GPU.
    """
    work = run.work
    # without comparisons, of which no profile has times
    overhead = work[(work["part"] == "overhead") & (work[["attentions", "mlps", "heads"]].sum(axis=1) > 0)]
    if overhead["ms"].isna().any():
        return None
    calls = overhead.groupby(STEP, as_index=False)["ms"].sum()
    inside = steps[STEP].merge(calls, on=STEP, how="left")["ms"].fillna(0.0)
    return np.maximum(steps["policy_ms"].to_numpy(dtype=float) - inside.to_numpy(dtype=float), 0.0)


def predict(run: Run, machine: str | Machine = OWN, model: str | None = None, devices: int | None = None) -> Prediction:
    """Predict tokens per second and speedup of a recorded run on a machine.

    Args:
        machine: `own` for the machine of the record, `sim_<gpu>`, the name of a reference machine, or a `Machine`.
        model: of another size, as in `shape_named`, on simulated machines only; None: the recorded model.
        devices: number of simulated GPUs; None: the fewest that hold the weights.

    Raises:
        ConfigError: the machine or model is unknown, or the record cannot be replayed on it.
    """
    chosen = _machine(run, machine, model, devices)
    name = chosen.model if isinstance(chosen, ReferenceMachine) else model or run.header.model.name
    times = step_times(run, chosen)
    by_arm = {arm: arm_rows(times, arm) for arm in PAIR}
    if by_arm["method"].empty:
        raise ConfigError("run", str(run.path), "a method's outputs of two tokens or more")
    emitted = {arm: float(rows["emitted"].sum()) for arm, rows in by_arm.items()}
    total = {arm: float(rows[list(PARTS)].to_numpy().sum()) for arm, rows in by_arm.items()}
    parts = {part.removesuffix("_ms"): float(by_arm["method"][part].sum()) for part in PARTS}
    ar_ms, method_ms = (total[arm] / emitted[arm] for arm in PAIR)
    return Prediction(
        machine=chosen.name,
        model=name,
        acceptance=_acceptance_text(run, name, chosen),
        overhead=times.attrs["overhead"],
        tokens_per_s={arm: 1000 * emitted[arm] / total[arm] for arm in PAIR},
        speedup=ar_ms / method_ms,
        speedup_frozen=ar_ms / (method_ms - parts["policy"] / emitted["method"]),
        ceiling=emitted["method"] / len(by_arm["method"]),
        shares={part: ms / total["method"] for part, ms in parts.items()},
    )


def _machine(run: Run, machine: str | Machine, model: str | None, devices: int | None) -> Machine:
    if isinstance(machine, str) and "/" in machine:
        chosen: Machine = measured_machine(machine)
    elif isinstance(machine, str) and machine != OWN:
        gpu_named(machine)  # refuse a misspelt GPU before its model
        return simulated_machine(machine, shape_named(model) if model else recorded_shape(run), devices)
    else:
        chosen = own_profile(run) if isinstance(machine, str) else machine
    if not isinstance(chosen, SimulatedMachine) and (model, devices) != (None, None):
        expected = "hardware=sim_<gpu> with this option: measured times belong to one model and one machine"
        raise ConfigError("model" if model else "devices", model or devices, expected)
    return chosen


def _acceptance_text(run: Run, name: str, machine: Machine) -> str:
    header = run.header
    text = f"drafts and acceptance as recorded: {header.method}, {model_title(header.model.name)}, {header.task.name}"
    if name == header.model.name:
        return text
    assert isinstance(machine, SimulatedMachine | ReferenceMachine), "the record's machine has the record's model"
    blocks = machine.shape.n_layers if isinstance(machine, SimulatedMachine) else machine.n_layers
    depths = f"blocks by relative depth, {header.model.n_layers} stand for {blocks}"
    return f"{text}; the acceptance of {name} may differ; {depths}"
