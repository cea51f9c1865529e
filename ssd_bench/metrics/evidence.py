"""What a run's numbers rest on: whether its search ran, whose trace it has, how steady the machine was.

The *noise floor* is what the same trace differs by when it is timed at another moment: the standard deviation of the
logarithm over runs that differ in nothing but when they were made. An interval over prompts knows nothing of it, as
all prompts of a run share its moment; every speed of a folder that has such runs is widened by it (`widened`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from ssd_bench.core.load import QUIET
from ssd_bench.metrics import definitions as d
from ssd_bench.metrics.intervals import LEVEL, Measured, Spread, widen
from ssd_bench.records.reader import Run
from ssd_bench.records.schema import PAIR, hardware

SLOW_FACTOR = 5.0
"""A step that takes so many times what its like do is slow."""
SLOW_SHARE_LIMIT = 0.05
"""Share of the decode time that slow steps may take beyond what their like do."""
STEP_KEY = [*d.UNIT, "step"]
PROMPT_KEY = ["prompt_index", "turn"]
TRACE_COLUMNS = ["prompt_index", "repeat", "step", "draft_len", "tree_nodes", "accepted_len", "emitted"]


def searched_share(run: Run) -> float | None:
    """Share of the method's draft steps whose set a search chose; None where nothing is searched."""
    told = d.arm_rows(run.steps, "method")["searched"].dropna()
    return float(told.astype(float).mean()) if len(told) else None


def trace(run: Run) -> str:
    """Digest of what the method's arm did on which prompts with which model, whatever time it took."""
    steps = d.arm_rows(run.steps, "method").sort_values(STEP_KEY)
    names = ("layer_set_id", "skip_attn", "skip_mlp", "sinks", "recent")
    sets = {
        int(i): (tuple(map(int, attn)), tuple(map(int, mlp)), *(int(n) for n in window if pd.notna(n)))
        for i, attn, mlp, *window in zip(*(run.layer_sets[name].tolist() for name in names), strict=True)
    }
    used = [sets[int(i)] if pd.notna(i) else None for i in steps["layer_set_id"]]
    prompts = run.prompts.drop_duplicates(PROMPT_KEY).sort_values(PROMPT_KEY)["prompt_sha256"]
    model = run.header.get("model") or {}
    told = json.dumps([list(prompts), model.get("name"), model.get("weights")])
    done = np.ascontiguousarray(steps[TRACE_COLUMNS].to_numpy(dtype=np.int64)).tobytes()
    return hashlib.sha256(told.encode() + done + repr(used).encode()).hexdigest()


def slow_steps(run: Run) -> pd.DataFrame:
    """The steps that took more than `MANY` times what their like do: those of the arm that verify as many nodes.

    A method's own work is left out: a step with a search in it is no fault of the machine.

    Returns:
        The rows of `steps`, with `ms` (drafting and verifying) and `expected_ms`, by the medians of their like.
    """
    sets = run.layer_sets.set_index("layer_set_id")
    left = 2 * sets["n_layers"] - sets["skip_attn"].map(len) - sets["skip_mlp"].map(len)
    steps = run.steps.assign(ms=run.steps["draft_ms"] + run.steps["verify_ms"])
    ran = steps["layer_set_id"].map(left).astype("float64").fillna(0.0).clip(lower=1) * steps["draft_len"]
    a_sublayer = (steps["draft_ms"] / ran).where(ran > 0).groupby(steps["arm"]).transform("median")
    verify = steps.groupby(["arm", "tree_nodes"])["verify_ms"].transform("median")
    steps["expected_ms"] = (a_sublayer * ran).fillna(0.0) + verify
    return steps[steps["ms"] > SLOW_FACTOR * steps["expected_ms"]]


def steadiness(run: Run) -> dict[str, Any]:
    """How steady the machine was: of both arms together.

    Returns:
        slow_steps: their number; slow_share: of the decode time, what they took beyond their like; others_share: of
        the machine's cores, what others used meanwhile; beside: how many runs measured meanwhile that could use the
        same cores or GPU (both None in a record that does not say).
    """
    slow, total = slow_steps(run), float(run.prompts["decode_ms"].sum())
    beyond = float((slow["ms"] - slow["expected_ms"]).sum())
    beside = run.header.get("beside")
    return {
        "slow_steps": len(slow),
        "slow_share": beyond / total if total and len(run.steps) else None,
        "others_share": run.header.get("others_share"),
        "beside": None if beside is None else sum(other["shares"] for other in beside),
    }


def contamination(steady: Mapping[str, Any]) -> str:
    """How a busy machine spoiled a run, by its `steadiness`; "" where it did not."""
    found = []
    if (steady["others_share"] or 0.0) > QUIET:
        found.append(f"others used {steady['others_share']:.0%} of the machine's cores")
    if number := steady["beside"]:
        found.append(f"{number} other run{'s' if number > 1 else ''} measured on its cores or GPU meanwhile")
    if (steady["slow_share"] or 0.0) > SLOW_SHARE_LIMIT:
        steps = f"{steady['slow_steps']} step{'s' if steady['slow_steps'] > 1 else ''}"
        found.append(
            f"{steps} took more than {SLOW_FACTOR:g} times what their like do, {steady['slow_share']:.0%} of the decode time "
            "too much"
        )
    return " and ".join(found)


@dataclass(frozen=True)
class RunTiming:
    """What the noise floor asks of a run; a folder of runs is told by these, without its tables.

    Attributes:
        machine, trace: as the functions of these names.
        seconds: that AR and the method decode.
        speedup: over AR, decoding alone.
        rate: tokens per second of the method.
        spoiled: whether a busy machine spoiled it.
    """

    machine: str
    trace: str
    seconds: float
    speedup: float | None
    rate: float | None
    spoiled: bool

    @classmethod
    def of(cls, run: Run) -> RunTiming:
        """Of a run."""
        rate = d.tokens_per_s(d.arm_rows(run.prompts[d.TIMES], "method")).value
        speedup, busy = d.speedup(run.prompts[d.TIMES]).value, bool(contamination(steadiness(run)))
        return cls(machine(run), trace(run), decode_seconds(run), speedup, rate, busy)


@dataclass(frozen=True)
class VariationLevel:
    """The noise of runs of one length.

    Attributes:
        seconds: that they decode, both arms.
        speedup: of a speedup over AR in the same run, which shares the run's moment.
        rate: of tokens per second.
        runs: it was measured on.
    """

    seconds: float
    speedup: Spread
    rate: Spread
    runs: int


@dataclass(frozen=True)
class RunVariation:
    """The noise floor of a model on a machine: the shorter a run, the more its moment decides.

    Attributes:
        machine: model, dtype and hardware that it holds for.
        levels: the shortest runs first.
    """

    machine: str
    levels: tuple[VariationLevel, ...]

    def holds_for(self, one: Run | RunTiming) -> bool:
        """Whether a run is of the same model on the same machine."""
        return self.machine == (one.machine if isinstance(one, RunTiming) else machine(one))

    def at(self, seconds: float) -> VariationLevel:
        """Of runs of a length: those of the longest level that is no longer, else of the shortest."""
        shorter = [level for level in self.levels if level.seconds <= seconds]
        return shorter[-1] if shorter else self.levels[0]

    def speed_ratio(self, a: Run | RunTiming, b: Run | RunTiming) -> float | None:
        """How many times faster one run of a trace is than another, at least 1, if that is beyond the floor; else None.

        Two moments differ by more than that in one of twenty cases.
        """
        one, other = _moment(a), _moment(b)
        if one.speedup is None or other.speedup is None:
            return None
        spread = self.at(min(one.seconds, other.seconds)).speedup
        difference = abs(math.log(one.speedup / other.speedup))
        reach = float(stats.t.ppf((1 + LEVEL) / 2, spread.dof)) * math.sqrt(2) * spread.sigma
        return math.exp(difference) if difference > reach else None


def decode_seconds(run: Run) -> float:
    """That AR and the method decode."""
    return float(run.prompts.loc[run.prompts["arm"].isin(PAIR), "decode_ms"].sum()) / 1000


def machine(run: Run) -> str:
    """Model, dtype and hardware, of which timings can be compared."""
    model = run.header.get("model") or {}
    return json.dumps([model.get("name"), model.get("dtype"), hardware(run.header)], sort_keys=True, default=str)


def run_to_run_variation(runs: Sequence[Run | RunTiming]) -> list[RunVariation]:
    """The noise floors that runs of equal traces show, one for each model and machine that has two of them at least.

    Runs that a busy machine spoiled are left out: they say so themselves, and theirs is another noise.
    """
    places: dict[str, dict[str, list[RunTiming]]] = {}
    for one in map(_moment, runs):
        if not one.spoiled:
            places.setdefault(one.machine, {}).setdefault(one.trace, []).append(one)
    floors = []
    for place, traces in places.items():
        levels = [_level(group) for group in traces.values() if len(group) > 1]
        if levels:
            floors.append(RunVariation(place, tuple(sorted(levels, key=lambda level: level.seconds))))
    return floors


def _moment(one: Run | RunTiming) -> RunTiming:
    return one if isinstance(one, RunTiming) else RunTiming.of(one)


def _level(runs: Sequence[RunTiming]) -> VariationLevel:
    seconds = float(np.median([run.seconds for run in runs]))
    return VariationLevel(
        seconds, _spread([run.speedup for run in runs]), _spread([run.rate for run in runs]), len(runs)
    )


def _spread(values: Sequence[float | None]) -> Spread:
    """Of the logarithm; of one run without a baseline there is none."""
    logs = np.log([value for value in values if value])
    return Spread(float(logs.std(ddof=1)), len(logs) - 1) if len(logs) > 1 else Spread(0.0, 1)


def widen_speed_intervals(summary: Mapping[str, Any], noise: VariationLevel) -> dict[str, Any]:
    """A summary, or a domain's part of one, with every interval of a speed widened by the noise of its run's length."""
    found = dict(summary)
    for key in [key for key in summary if key.endswith("_lo") and summary[key] is not None]:
        name = key.removesuffix("_lo")
        spread = noise.speedup if name.startswith(("speedup", "ar_over_hf")) else noise.rate
        if spread is noise.speedup or "tokens_per_s" in name:
            n = int(summary.get(f"{name}_n") or summary["n_prompts"])
            wide = widen(Measured(summary[name], summary[key], summary[f"{name}_hi"], n), spread)
            found |= {key: wide.low, f"{name}_hi": wide.high}
    return found
