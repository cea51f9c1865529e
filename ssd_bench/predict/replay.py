"""Predicted time of every step of a record on a machine, tokens per second of both arms, and the speedup.

A step consists of drafting (k forward passes of the layer set's sublayers, plus a fixed time per token), one
verification over all nodes, method overhead (`policy`) and the work of the decode loop. Drafts, acceptance and layer
sets are those of the record.

* Verification on saved states: the record says whether the option was set (`reuse_prefix`). In older records, taps of a
  method may have prevented it: the recorded verification times then decide how the run verified, and a method whose
  taps prevented saved states is assumed to tap the stream between all blocks. With saved states the cost of taps is
  left out.
* Method overhead: the record has its time, but not its forward passes. The time is scaled by the change of a plain AR
  step, as if it were forward passes of the same kind. On a GPU this usually overestimates it: searches are wide passes,
  which cost a GPU hardly more than narrow passes, and their bookkeeping does not grow with the model. Hence two bounds:
  the recorded milliseconds (as if all overhead were host work), and zero.
* Decode loop: the time that AR spends outside its verification is the loop's work in every step, including the steps of
  the method. On the machine of the record it is the recorded time, scaled like method overhead; on a simulated machine
  it is a constant of its description.
* A draft takes a fixed time in addition to its tokens, and a tree takes longer than a chain with the same number of
  nodes, in drafting (choice of siblings) and in verification (mask, depths, paths). The record does not say which
  drafted tokens had siblings, so that all tokens of a tree count as siblings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ssd_bench import metrics
from ssd_bench.contract.shape import Shape
from ssd_bench.cost.machine import Array, Machine, Profile, own_profile
from ssd_bench.cost.roofline import SimulatedMachine, gpu_named, simulated_machine
from ssd_bench.cost.shapes import known_shape, shape_named
from ssd_bench.errors import ConfigError
from ssd_bench.predict.workload import Workload, workload
from ssd_bench.records.reader import Run
from ssd_bench.records.schema import ANSWER, PAIR

MODES = ("whole", "saved", "tapped")
"""Modes of verification: every sublayer over all nodes; on saved states if possible; or `whole` with tapped states."""

PARTS = ("draft_ms", "verify_ms", "policy_ms", "loop_ms")


@dataclass(frozen=True)
class Prediction:
    """Predicted speed of a recorded run on a machine.

    Attributes:
        machine, model: their names.
        acceptance: a sentence on its source.
        tokens_per_s: tokens per second of `ar` and `method`.
        speedup: speedup with scaled method overhead.
        speedup_policy_held, speedup_policy_free: with the recorded overhead, and without overhead.
        speedup_forward: speedup of drafting and verification alone.
        ceiling: M.
        shares: shares of the method's time by part.
        policy_scale: factor on the recorded overhead.
        verification: one of MODES.
    """

    machine: str
    model: str
    acceptance: str
    tokens_per_s: Mapping[str, float]
    speedup: float
    speedup_policy_held: float
    speedup_policy_free: float
    speedup_forward: float
    ceiling: float
    shares: Mapping[str, float]
    policy_scale: float
    verification: str


def recorded_shape(run: Run) -> Shape:
    """Return the sizes of the recorded model.

    Raises:
        ConfigError: its sizes are unknown, or differ from those of the record.
    """
    model = run.header.model
    shape = known_shape(model.name)
    if shape is None:
        raise ConfigError("model", model.name, "model=NAME: conf/model does not have the sizes of the recorded model")
    if (shape.n_layers, shape.n_params) != (model.n_layers, model.n_params):
        raise ConfigError("model", model.name, "model=NAME: the record was made with another version of this model")
    return shape


def step_times(run: Run, machine: Machine, mode: str | None = None) -> pd.DataFrame:
    """Predict the milliseconds of every step.

    Args:
        machine: the machine that times the steps; a `SimulatedMachine` includes the model.
        mode: one of MODES; None: `verification_mode`.

    Returns:
        Columns prompt_index, repeat, arm, step, emitted, and draft_ms, verify_ms, policy_ms and loop_ms, predicted.
    """
    work = workload(run, machine.shape.n_layers if isinstance(machine, SimulatedMachine) else None)
    return _step_times(run, work, machine, mode or verification_mode(run))


def verification_mode(run: Run) -> str:
    """Return how the run verified, one of MODES.

    It is `whole` unless the option for saved states was set. Then it is the mode nearest to the recorded times if the
    record has a latency profile with passes, else `saved`.
    """
    reuse = run.header.options("decode").get("reuse_prefix")
    if reuse is None:
        reuse = run.header.options("method").get("reuse_prefix", False)
    if not reuse:
        return "whole"
    work = workload(run)
    reusable = work.exact_attn > 0
    if not reusable.any() or not run.header.profiled:
        return "saved"
    recorded, machine = work.steps["verify_ms"].to_numpy(dtype=float), own_profile(run)
    times = {mode: _verify_ms(work, machine, mode) for mode in ("saved", "tapped")}
    plain = work.of_arm("ar")
    # the machine's speed may have changed since its profile: AR's steps, equal in both modes, correct for it
    speed = _ratio(recorded[plain].sum(), times["saved"][plain].sum()) or 1.0
    real = np.maximum(recorded[reusable], 1e-9)
    errors = {mode: np.abs(np.log(ms[reusable] * speed / real)).mean() for mode, ms in times.items()}
    return min(errors, key=lambda mode: errors[mode])


def _step_times(run: Run, work: Workload, machine: Machine, mode: str) -> pd.DataFrame:
    single_nodes = np.ones_like(work.context)
    # an attention's time is linear in the positions it reads: the mean time is the time at the mean
    attn, mlp, _ = machine.pass_ms(single_nodes, work.read)
    token_rest = machine.draft_rest_ms + np.where(work.tree, machine.tree_token_ms, 0.0)
    draft = work.drafted * (work.n_attn * attn + work.n_mlp * mlp + token_rest)
    draft += np.where(work.drafted > 0, machine.draft_start_ms, 0.0)
    if mode == "saved":
        draft += np.where(work.exact_attn > 0, work.drafted * machine.copy_ms, 0.0)
    verify = _verify_ms(work, machine, mode)
    plain, method = work.of_arm("ar"), work.of_arm("method")
    spent = work.steps[["draft_ms", "verify_ms", "policy_ms"]].to_numpy(dtype=float)
    reference = plain if work.recorded_ar else method  # AR's empty draft is in the profile's rest
    scale = _ratio(
        verify[reference].sum(), (spent[reference, 1] + (spent[reference, 0] if work.recorded_ar else 0)).sum()
    )
    overhead = _recorded_overhead(run, work, spent)
    loop = overhead["loop"] * scale if machine.loop_ms is None else machine.loop_ms
    policy = np.where(method, spent[:, 2], 0.0)
    policy *= _ratio(overhead["policy"], policy.sum()) * scale
    frame = work.steps[[*ANSWER, "step", "emitted"]].copy()
    for name, values in zip(PARTS, (draft, verify, policy, np.full_like(draft, loop))):
        frame[name] = values
    frame.attrs["policy_scale"] = scale
    return frame


def _verify_ms(work: Workload, machine: Machine, mode: str) -> Array:
    """Return the milliseconds of the verification of every step."""
    attn, mlp, remainder = machine.pass_ms(work.nodes, work.context)
    once_attn, once_mlp, _ = machine.pass_ms(np.ones_like(work.nodes), work.context + work.drafted)
    skip_attn, skip_mlp = (exact if mode == "saved" else 0.0 * exact for exact in (work.exact_attn, work.exact_mlp))
    # with saved states only the last node has to pass the sublayers before the first skipped one
    passed = skip_attn * once_attn + skip_mlp * once_mlp
    passed += (work.n_layers - skip_attn) * attn + (work.n_layers - skip_mlp) * mlp + remainder
    if mode == "tapped":
        passed += np.where(work.of_arm("method"), (work.n_layers - 1) * machine.copy_ms, 0.0)
    return passed + np.where(work.tree, machine.tree_node_ms * work.nodes, 0.0)


def _recorded_overhead(run: Run, work: Workload, spent: Array) -> dict[str, float]:
    """Return recorded milliseconds: work of the decode loop per step, and method overhead over all steps."""
    rows = run.prompts.merge(work.steps[list(ANSWER)].drop_duplicates(), on=list(ANSWER))
    outside = {
        arm: float(metrics.arm_rows(rows, arm)["decode_ms"].sum()) - float(spent[work.of_arm(arm), :2].sum())
        for arm in PAIR
    }
    loop = max(0.0, _ratio(outside["ar"], work.of_arm("ar").sum())) if work.recorded_ar else 0.0
    return {"loop": loop, "policy": max(0.0, outside["method"] - loop * float(work.of_arm("method").sum()))}


def _ratio(a: float, b: float) -> float:
    return float(a) / float(b) if b else 0.0


def predict(
    run: Run, machine: str | Machine = "own", model: str | None = None, devices: int | None = None
) -> Prediction:
    """Predict tokens per second and speedup of a recorded run on a machine.

    Args:
        machine: `own` for the machine of the record, `sim_<gpu>`, or a `Machine`.
        model: a model of another size, as in `shape_named`, on simulated machines only. None: the recorded model.
        devices: number of simulated GPUs; None: the fewest that hold the weights.

    Raises:
        ConfigError: the machine or model is unknown, or the record cannot be replayed on it.
    """
    name = model or run.header.model.name
    chosen = _machine(run, machine, model, devices)
    mode = verification_mode(run)
    times = step_times(run, chosen, mode)
    scale = float(times.attrs["policy_scale"])
    by_arm = {arm: metrics.arm_rows(times, arm) for arm in PAIR}
    if by_arm["method"].empty:
        raise ConfigError("run", str(run.path), "a method's outputs of two tokens or more")
    emitted, total = ({arm: f(frame) for arm, frame in by_arm.items()} for f in (_emitted, _total))
    parts = {part.removesuffix("_ms"): float(by_arm["method"][part].sum()) for part in PARTS}

    def speedup(policy_ms: float) -> float:
        return total["ar"] / emitted["ar"] * emitted["method"] / (total["method"] - parts["policy"] + policy_ms)

    return Prediction(
        machine=chosen.name,
        model=name,
        acceptance=_acceptance_text(run, name, chosen),
        tokens_per_s={arm: 1000 * emitted[arm] / total[arm] for arm in PAIR},
        speedup=speedup(parts["policy"]),
        speedup_policy_held=speedup(_ratio(parts["policy"], scale)),
        speedup_policy_free=speedup(0.0),
        speedup_forward=_speedup_forward(by_arm),
        ceiling=emitted["method"] / len(by_arm["method"]),
        shares={part: ms / total["method"] for part, ms in parts.items()},
        policy_scale=scale,
        verification=mode,
    )


def _speedup_forward(times: Mapping[str, pd.DataFrame]) -> float:
    """Return the speedup of drafting and verification alone."""
    per_token = {
        arm: float(frame[["draft_ms", "verify_ms"]].to_numpy().sum()) / _emitted(frame) for arm, frame in times.items()
    }
    return per_token["ar"] / per_token["method"]


def _emitted(times: pd.DataFrame) -> float:
    return float(times["emitted"].sum())


def _total(times: pd.DataFrame) -> float:
    return float(times[list(PARTS)].to_numpy().sum())


def _machine(run: Run, machine: str | Machine, model: str | None, devices: int | None) -> Machine:
    if isinstance(machine, str) and machine != "own":
        gpu_named(machine)  # refuse a misspelt GPU before its model
        return simulated_machine(machine, shape_named(model) if model else recorded_shape(run), devices)
    chosen = own_profile(run) if isinstance(machine, str) else machine
    if isinstance(chosen, Profile) and (model, devices) != (None, None):
        expected = "hardware=sim_<gpu> with this option: the profile of a record belongs to its model and its machine"
        raise ConfigError("model" if model else "devices", model or devices, expected)
    return chosen


def _acceptance_text(run: Run, name: str, machine: Machine) -> str:
    header = run.header
    text = f"drafts and acceptance as recorded: {header.method}, {header.model.name}, {header.task.name}"
    if name == header.model.name:
        return text
    blocks = machine.shape.n_layers if isinstance(machine, SimulatedMachine) else header.model.n_layers
    return f"{text}; the acceptance of {name} may differ; layer sets mapped by relative depth, " + (
        f"{header.model.n_layers} blocks to {blocks}"
    )
