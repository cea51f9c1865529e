"""Checks of a run: whether its search ran, whether its trace differs from other runs', how steady the machine was.

*Run-to-run variation*: the standard deviation of the logarithm of a speed over repeated timings of one trace. An
interval over prompts does not contain it, because all prompts of a run are timed under the same machine conditions. Any
two runs of one trace on one machine measure it, and widen the interval of every speed in their folder.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ssd_bench.engine.load import QUIET
from ssd_bench.records.reader import Run
from ssd_bench.records.schema import PAIR
from ssd_bench.results import definitions as d
from ssd_bench.results.effect import widen
from ssd_bench.results.prompt_table import PromptTable
from ssd_bench.results.quantity import QUANTITIES, Measured, Spread, t_quantile
from ssd_bench.results.row import SummaryRow
from ssd_bench.results.rows import UNIT

SLOW_FACTOR = 5.0
"""A step is an outlier if it takes more than this many times the median of comparable steps."""
SLOW_SHARE_LIMIT = 0.05
"""Limit on outlier steps' time beyond these medians, as a share of the decode time."""
LEVEL_DOF = 7
"""Degrees of freedom of a level of run-to-run variation; with fewer, Student's t would dominate its intervals."""
PROMPT_KEY = ["prompt_index", "turn"]
TRACE_COLUMNS = ["prompt_index", "repeat", "step", "draft_len", "tree_nodes", "accepted_len", "emitted"]


def searched_share(run: Run) -> float | None:
    """Return the share of draft steps whose layer set a search chose; None without searching."""
    searched = d.steps_of(run)["searched"].dropna()
    return float(searched.astype(float).mean()) if len(searched) else None


def shares_search(run: Run) -> bool:
    """Return whether a search chose the sets of several prompts at once, before the run or in an earlier prompt.

    The sample is then one search.
    """
    if run.header.searches:
        return True
    steps = d.steps_of(run)
    events = steps[steps["est_alpha"].notna()].groupby(UNIT)["step"].min()
    drafts = d.searched_drafts(steps[steps["searched"].notna()]).groupby(UNIT)["step"].min()
    # a prompt drafts with a searched set before its own first event
    return bool(len(events)) and bool((drafts < events.reindex(drafts.index).fillna(np.inf)).any())


def search_ended(run: Run) -> bool:
    """Return whether a search across prompts (`shares_search`) ended before the run's last prompt."""
    steps = d.steps_of(run)
    events = steps.loc[steps["est_alpha"].notna(), "prompt_index"]
    return bool(run.header.searches) or not len(events) or bool(events.max() < steps["prompt_index"].max())


def trace(run: Run) -> str:
    """Return a digest of the trace: model, and each prompt with every step of the method, without times.

    Order does not count: a method without memory has one trace for all orders of prompts.
    """
    prompts = run.prompts.drop_duplicates(PROMPT_KEY).sort_values(["prompt_sha256", *PROMPT_KEY])
    ranks = {index: rank for rank, index in enumerate(dict.fromkeys(prompts["prompt_index"]))}
    steps = d.steps_of(run)
    steps = steps.assign(prompt_index=steps["prompt_index"].map(ranks)).sort_values([*UNIT, "step"])
    layer_sets = {int(i): run.layer_set(int(i)) for i in run.layer_sets["layer_set_id"]}
    # 4-bit weights come last, and only if they are read: digests of other drafts stay as they were
    sets = {
        i: (sorted(s.skipped), s.sublayers_in(8), s.window, *filter(None, [s.sublayers_in(4)]))
        for i, s in layer_sets.items()
    }
    used = [sets[int(i)] if pd.notna(i) else None for i in steps["layer_set_id"]]
    prompt_text = json.dumps([list(prompts["prompt_sha256"]), run.header.model.name, run.header.model.weights])
    step_bytes = np.ascontiguousarray(steps[TRACE_COLUMNS].to_numpy(dtype=np.int64)).tobytes()
    return hashlib.sha256(prompt_text.encode() + step_bytes + repr(used).encode()).hexdigest()


def slow_steps(run: Run) -> pd.DataFrame:
    """Return the outlier steps: drafting and verification took more than `SLOW_FACTOR` times the expected time.

    Method overhead is left out: a search makes a step long on any machine. Rows are of `steps`, with `ms` (drafting and
    verifying) and `expected_ms`.
    """
    # expected = (arm's median draft time per sublayer pass) x (passes of this step)
    #          + median verification time of the arm's steps with as many nodes
    sets = run.layer_sets.drop_duplicates("layer_set_id").set_index("layer_set_id")  # a damaged record has an id twice
    n_sublayers = 2 * sets["n_layers"] - sets["skip_attn"].map(len) - sets["skip_mlp"].map(len)
    steps = run.steps.assign(ms=run.steps["draft_ms"] + run.steps["verify_ms"])
    passes = steps["layer_set_id"].map(n_sublayers).astype("float64").fillna(0.0).clip(lower=1) * steps["draft_len"]
    ms_per_pass = (steps["draft_ms"] / passes).where(passes > 0).groupby(steps["arm"]).transform("median")
    verify = steps.groupby(["arm", "tree_nodes"])["verify_ms"].transform("median")
    steps["expected_ms"] = (ms_per_pass * passes).fillna(0.0) + verify
    return steps[steps["ms"] > SLOW_FACTOR * steps["expected_ms"]]


@dataclass(frozen=True)
class Steadiness(SummaryRow):
    """Steadiness of the machine during a run, over both arms.

    Attributes:
        slow_steps, slow_share: number of outliers, and their time beyond the expected time, as a share of the decode
            time.
        others_share: share of the cores used by other processes; None if not recorded.
        concurrent_runs: number of simultaneous runs that could use the same cores or GPU.
    """

    slow_steps: int
    slow_share: float | None
    others_share: float | None
    concurrent_runs: int

    @classmethod
    def of(cls, run: Run) -> Steadiness:
        outliers, decode_ms = slow_steps(run), float(run.prompts["decode_ms"].sum())
        excess_ms = float((outliers["ms"] - outliers["expected_ms"]).sum())
        slow_share = excess_ms / decode_ms if decode_ms and len(run.steps) else None
        shared = sum(bool(other.get("shares")) for other in run.header.concurrent_runs)
        return cls(len(outliers), slow_share, run.header.others_share, shared)

    @property
    def contamination(self) -> str:
        """Ways in which other work contaminated the times; else ""."""
        reasons = []
        if self.others_share is not None and self.others_share > QUIET:
            reasons.append(f"other processes used {100 * self.others_share:.0f} % of the CPU cores")
        if self.concurrent_runs:
            runs = "1 other run was" if self.concurrent_runs == 1 else f"{self.concurrent_runs} other runs were"
            reasons.append(f"{runs} measured on the same cores or GPU at the same time")
        if self.slow_share is not None and self.slow_share > SLOW_SHARE_LIMIT:
            steps = f"{self.slow_steps} step{'s' if self.slow_steps > 1 else ''}"
            reasons.append(
                f"{steps} took more than {SLOW_FACTOR:g} times the median of comparable steps "
                f"(+{100 * self.slow_share:.0f} % decode time)"
            )
        return "; ".join(reasons)

    @property
    def warning(self) -> str:
        """Warning on contaminated times; "" if they are reliable."""
        reasons = self.contamination
        return f"timings unreliable: {reasons}; rerun on an idle machine with force=true" if reasons else ""


@dataclass(frozen=True)
class RunTiming:
    """Facts of a run for run-to-run variation, kept so that its tables need not be read.

    `seconds` are the decode time of both arms; speedup and rate (tokens per second) are of decoding.
    """

    machine: str
    trace: str
    seconds: float
    speedup: float | None
    rate: float | None
    contaminated: bool

    @classmethod
    def of(cls, run: Run) -> RunTiming:
        table = PromptTable.of(run)
        speedup, rate = table.value("speedup"), table.value("method_tokens_per_s")
        return cls.with_numbers(run, speedup, rate, Steadiness.of(run))

    @classmethod
    def with_numbers(cls, run: Run, speedup: float | None, rate: float | None, steadiness: Steadiness) -> RunTiming:
        """Return the facts of a run whose speeds and steadiness are known."""
        decode_ms = float(run.prompts.loc[run.prompts["arm"].isin(PAIR), "decode_ms"].sum())
        return cls(machine(run), trace(run), decode_ms / 1000, speedup, rate, bool(steadiness.contamination))


@dataclass(frozen=True)
class VariationLevel:
    """Run-to-run variation of speeds in runs of similar length; `seconds` is that of the shortest trace."""

    seconds: float
    speedup: Spread
    rate: Spread


@dataclass(frozen=True)
class RunVariation:
    """Run-to-run variation of a model on a machine; levels by the length of the run, the shortest first."""

    machine: str
    levels: tuple[VariationLevel, ...]

    def at(self, seconds: float) -> VariationLevel:
        """Return the longest level not longer than this, else the shortest."""
        shorter = [level for level in self.levels if level.seconds <= seconds]
        return shorter[-1] if shorter else self.levels[0]

    def speed_ratio(self, a: RunTiming, b: RunTiming) -> float | None:
        """Return the ratio (>= 1) of the speedups of two runs of one trace, if it exceeds run-to-run variation.

        None within the 95 % range of two timings of the same trace.
        """
        if a.speedup is None or b.speedup is None:
            return None
        spread = self.at(min(a.seconds, b.seconds)).speedup
        difference = abs(math.log(a.speedup / b.speedup))
        # the difference of two logarithms has variance 2 sigma^2; two-sided t-test
        bound = t_quantile(spread.dof) * math.sqrt(2) * spread.sigma
        return math.exp(difference) if difference > bound else None


def machine(run: Run) -> str:
    """Return model, dtype and hardware as JSON; equal where timings are comparable."""
    model = run.header.model
    return json.dumps([model.name, model.dtype, run.header.hardware], sort_keys=True, default=str)


def run_to_run_variation(timings: Iterable[RunTiming]) -> list[RunVariation]:
    """Estimate run-to-run variation from runs of equal traces, for each model and machine with at least two.

    Contaminated runs are left out: other processes cause their variation.
    """
    by_machine: dict[str, dict[str, list[RunTiming]]] = {}
    for timing in timings:
        if not timing.contaminated:
            by_machine.setdefault(timing.machine, {}).setdefault(timing.trace, []).append(timing)
    variations = []
    for machine_id, traces in by_machine.items():
        if levels := _levels([group for group in traces.values() if len(group) > 1]):
            variations.append(RunVariation(machine_id, tuple(levels)))
    return variations


def _levels(traces: Sequence[Sequence[RunTiming]]) -> list[VariationLevel]:
    """Return levels of traces of similar length, the shortest first, each with `LEVEL_DOF` given enough runs."""
    groups: list[list[Sequence[RunTiming]]] = []
    for trace_runs in sorted(traces, key=_median_seconds):
        if groups and _dof(groups[-1]) < LEVEL_DOF:
            groups[-1].append(trace_runs)
        else:
            groups.append([trace_runs])
    if len(groups) > 1 and _dof(groups[-1]) < LEVEL_DOF:
        groups[-2:] = [groups[-2] + groups[-1]]
    return [_level(group) for group in groups]


def _dof(traces: Sequence[Sequence[RunTiming]]) -> int:
    return sum(len(runs) - 1 for runs in traces)


def _median_seconds(runs: Sequence[RunTiming]) -> float:
    return float(np.median([run.seconds for run in runs]))


def _level(traces: Sequence[Sequence[RunTiming]]) -> VariationLevel:
    speedups = [[run.speedup for run in runs] for runs in traces]
    rates = [[run.rate for run in runs] for runs in traces]
    return VariationLevel(_median_seconds(traces[0]), _spread(speedups), _spread(rates))


def _spread(traces: Sequence[Sequence[float | None]]) -> Spread:
    """Return the standard deviation of the logarithms within traces; 0 if no trace has two values."""
    logs = [np.log([value for value in values if value]) for values in traces]
    # pooled within traces: sigma² = Σ (log v - mean of its trace)² / Σ (n - 1)
    dof = sum(len(values) - 1 for values in logs if len(values))
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in logs if len(values))
    return Spread(math.sqrt(squares / dof), dof) if dof else Spread(0.0, 1)


def widen_speed_intervals(
    numbers: Mapping[str, Measured], level: VariationLevel, n_prompts: int
) -> dict[str, Measured]:
    """Widen the intervals of measured speeds by run-to-run variation."""
    widened = dict(numbers)
    for key, number in widened.items():
        quantity = QUANTITIES[key]
        if quantity.variation and number.low is not None:
            n = number.n if quantity.counted else n_prompts
            widened[key] = replace(widen(replace(number, n=n), getattr(level, quantity.variation)), n=number.n)
    return widened
