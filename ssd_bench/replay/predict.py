"""The time of every step of a record on some machine, and so tokens per second of both arms and the speedup.

A step is drafting (k forward passes of the layer set's sublayers, with what a token takes beside them), one
verification over all nodes, the method's own work and the loop's. Drafts, acceptance and layer sets are the record's.

* Verification on saved states: the record says whether it was asked for (`reuse_prefix`). In older records a method's
  taps may have ruled it out: the recorded verification times decide which of the two the run did, and a method whose
  taps did is taken to tap the stream between all blocks. With saved states what taps cost is left out.
* Policy: the record holds its time, not the forward passes in it. It is scaled by how a plain AR step's time changes,
  as if it were forward work of the same mix. On a GPU that is usually too much: searches are wide passes, which cost
  a GPU hardly more than narrow ones, and their bookkeeping does not grow with the model. Hence two bounds as well: the
  milliseconds as recorded (all of it host work), and none.
* The loop: what AR spends outside its verification is the loop's own work in every step, of the method too. On its
  own machine it is the record's, scaled like the policy; of a simulated one, a constant of its description.
* A draft takes time beside its tokens, and a tree more than a chain of as many nodes, in drafting (the choice of
  siblings) and in verification (mask, depths, paths). Which drafted tokens had siblings the record does not say: all of
  a tree's count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ssd_bench import metrics
from ssd_bench.cost.machine import Array, Machine, Profile, own_profile
from ssd_bench.cost.roofline import Simulated, gpu_named, simulated
from ssd_bench.cost.shapes import known_shape, shape_named
from ssd_bench.errors import ConfigError
from ssd_bench.model.shape import Shape
from ssd_bench.records.reader import Run
from ssd_bench.records.schema import ANSWER, PAIR
from ssd_bench.replay.workload import Workload, workload

MODES = ("whole", "saved", "tapped")
"""How a run verifies: every sublayer over all nodes; on saved states where it can; or whole, keeping tapped states."""

PARTS = ("draft_ms", "verify_ms", "policy_ms", "loop_ms")


def recorded_shape(run: Run) -> Shape:
    """The sizes of the model that a record was made with.

    Raises:
        ConfigError: its sizes are not known, or not those of the record.
    """
    model = run.header["model"]
    name = str(model["name"])
    shape = known_shape(name)
    if shape is None:
        raise ConfigError("model", name, "give model=: conf/model does not have the sizes of the recorded model")
    if (shape.n_layers, shape.n_params) != (model["n_layers"], model.get("n_params")):
        raise ConfigError("model", name, "give model=: the record was made with another version of this model")
    return shape


def step_times(run: Run, machine: Machine, mode: str | None = None) -> pd.DataFrame:
    """Predicted milliseconds of every step.

    Args:
        machine: what times them; a `Simulated` one with its model.
        mode: one of MODES; None: `verification`.

    Returns:
        Columns prompt_index, repeat, arm, step, emitted, and draft_ms, verify_ms, policy_ms and loop_ms, predicted.
    """
    work = workload(run, machine.shape.n_layers if isinstance(machine, Simulated) else None)
    return _times(run, work, machine, mode or verification(run))


def verification(run: Run) -> str:
    """How the run verified, one of MODES.

    `whole` unless saved states were asked for; then what the recorded times are nearer to, if there is a profile with
    passes to compare with, else `saved`.
    """
    config = run.header.get("config") or {}
    asked = (config.get("decode") or {}).get("reuse_prefix")
    if asked is None:
        asked = (config.get("method") or {}).get("reuse_prefix", False)
    if not asked:
        return "whole"
    work = workload(run)
    could = work.exact_attn > 0
    if not could.any() or not (run.header.get("latency") or {}).get("passes"):
        return "saved"
    recorded, machine = work.steps["verify_ms"].to_numpy(dtype=float), own_profile(run)
    times = {mode: _verify(work, machine, mode) for mode in ("saved", "tapped")}
    plain = work.of_arm("ar")
    speed = _ratio(recorded[plain].sum(), times["saved"][plain].sum()) or 1.0
    real = np.maximum(recorded[could], 1e-9)
    errors = {mode: np.abs(np.log(found[could] * speed / real)).mean() for mode, found in times.items()}
    return min(errors, key=lambda mode: errors[mode])


def _times(run: Run, work: Workload, machine: Machine, mode: str) -> pd.DataFrame:
    ones = np.ones_like(work.context)
    # the time of an attention is linear in what it reads: that of the mean is the mean over the tokens
    attn, mlp, _ = machine.pass_ms(ones, work.read)
    beside = machine.draft_rest_ms + np.where(work.tree, machine.tree_token_ms, 0.0)
    draft = work.drafted * (work.n_attn * attn + work.n_mlp * mlp + beside)
    draft += np.where(work.drafted > 0, machine.draft_start_ms, 0.0)
    if mode == "saved":
        draft += np.where(work.exact_attn > 0, work.drafted * machine.copy_ms, 0.0)
    verify = _verify(work, machine, mode)
    plain, method = work.of_arm("ar"), work.of_arm("method")
    spent = work.steps[["draft_ms", "verify_ms", "policy_ms"]].to_numpy(dtype=float)
    yard = plain if work.recorded_ar else method  # in AR, drafting nothing is part of what a profile calls the rest
    scale = _ratio(verify[yard].sum(), (spent[yard, 1] + (spent[yard, 0] if work.recorded_ar else 0)).sum())
    overhead = _overhead(run, work, spent)
    loop = overhead["loop"] * scale if machine.loop_ms is None else machine.loop_ms
    policy = np.where(method, spent[:, 2], 0.0)
    policy *= _ratio(overhead["policy"], policy.sum()) * scale
    frame = work.steps[[*ANSWER, "step", "emitted"]].copy()
    for name, values in zip(PARTS, (draft, verify, policy, np.full_like(draft, loop))):
        frame[name] = values
    frame.attrs["policy_scale"] = scale
    return frame


def _verify(work: Workload, machine: Machine, mode: str) -> Array:
    """Verification of every step."""
    attn, mlp, rest = machine.pass_ms(work.nodes, work.context)
    once_attn, once_mlp, _ = machine.pass_ms(np.ones_like(work.nodes), work.context + work.drafted)
    skip_attn, skip_mlp = (exact if mode == "saved" else 0.0 * exact for exact in (work.exact_attn, work.exact_mlp))
    # before the first skipped sublayer only the last node is left to compute
    passed = skip_attn * once_attn + skip_mlp * once_mlp
    passed += (work.n_layers - skip_attn) * attn + (work.n_layers - skip_mlp) * mlp + rest
    if mode == "tapped":
        passed += np.where(work.of_arm("method"), (work.n_layers - 1) * machine.copy_ms, 0.0)
    return passed + np.where(work.tree, machine.tree_node_ms * work.nodes, 0.0)


def _overhead(run: Run, work: Workload, spent: Array) -> dict[str, float]:
    """Recorded milliseconds: the loop's own work in a step, and the method's own work in all its steps."""
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
) -> dict[str, Any]:
    """Tokens per second and speedup of a recorded run on a machine; predicted, never measured.

    Args:
        machine: `own` for the machine of the record, `sim_<gpu>`, or a `Machine`.
        model: of another size, as `shape_named` takes it; simulated machines only. None: the recorded model.
        devices: number of simulated GPUs; None: the fewest that hold the weights.

    Returns:
        machine, model, recorded_model, acceptance (a sentence that says where it comes from); tokens_per_s of `ar` and
        `method`; speedup, with policy time scaled; speedup_policy_held and speedup_policy_free, where it is as recorded
        or none; speedup_forward, of drafting and verification alone; ceiling (M); shares of the method's time, by part;
        ar_step_ms; policy_scale; verification (one of MODES).

    Raises:
        ConfigError: a machine or model that is not known, or that the record cannot be replayed on.
    """  # fmt: skip
    recorded = str(run.header["model"]["name"])
    name = model or recorded
    chosen = _machine(run, machine, model, devices)
    mode = verification(run)
    times = step_times(run, chosen, mode)
    scale = float(times.attrs["policy_scale"])
    ours = {arm: metrics.arm_rows(times, arm) for arm in PAIR}
    if ours["method"].empty:
        raise ConfigError("run", str(run.path), "a method's outputs of two tokens or more")
    emitted, total, steps = ({arm: f(frame) for arm, frame in ours.items()} for f in (_emitted, _total, len))
    parts = {part.removesuffix("_ms"): float(ours["method"][part].sum()) for part in PARTS}

    def speedup(of_policy: float) -> float:
        return total["ar"] / emitted["ar"] * emitted["method"] / (total["method"] - parts["policy"] + of_policy)

    return {
        "predicted": True, "machine": chosen.name, "model": name, "recorded_model": recorded,
        "acceptance": _acceptance(run, name, chosen),
        "tokens_per_s": {arm: 1000 * emitted[arm] / total[arm] for arm in PAIR},
        "speedup": speedup(parts["policy"]), "speedup_policy_held": speedup(_ratio(parts["policy"], scale)),
        "speedup_policy_free": speedup(0.0), "speedup_forward": _speedup_forward(ours),
        "ceiling": emitted["method"] / steps["method"],
        "shares": {part: ms / total["method"] for part, ms in parts.items()},
        "ar_step_ms": total["ar"] / steps["ar"], "policy_scale": scale, "verification": mode,
    }  # fmt: skip


def _speedup_forward(times: Mapping[str, pd.DataFrame]) -> float:
    """The speedup if drafting and verification were all that takes time."""
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
        gpu_named(machine)  # a misspelt one is refused before its model
        return simulated(machine, shape_named(model) if model else recorded_shape(run), devices)
    chosen = own_profile(run) if isinstance(machine, str) else machine
    if isinstance(chosen, Profile) and (model, devices) != (None, None):
        allowed = "only with hardware=sim_<gpu>: the profile of a record is that of its model on its machine"
        raise ConfigError("model" if model else "devices", model or devices, allowed)
    return chosen


def _acceptance(run: Run, name: str, machine: Machine) -> str:
    header = run.header
    task, recorded = (header.get("task") or {}).get("name"), header["model"]["name"]
    said = f"drafts and acceptance as recorded: {header.get('method')}, {recorded}, {task}"
    if name == recorded:
        return said
    blocks = machine.shape.n_layers if isinstance(machine, Simulated) else header["model"]["n_layers"]
    return f"{said}; {name} itself may accept more or less; layer sets by relative depth, " + (
        f"{header['model']['n_layers']} blocks to {blocks}"
    )
