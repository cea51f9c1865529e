"""What one record says about each metric of the papers (`ssd_bench.papers.reported.METRICS`), in the papers' units."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from ssd_bench import metrics
from ssd_bench.papers.cells import Cell
from ssd_bench.papers.reported import METRICS, Number
from ssd_bench.papers.rooms import room_of
from ssd_bench.records.reader import Run

BASELINES = ("AR", "Vanilla")
"""Plain decoding: the other arm of every run."""

OVER_AR = "over AR in this engine, where the paper divides by Hugging Face generate (baseline=hf)"


@dataclass(frozen=True)
class Value:
    """Our number with its 95 % interval, if it has one.

    Attributes:
        estimate: the method's own, for TPT.
        remark: in what it is not the paper's statistic; "" where it is.
        compared: whether it may be compared at all.
        source: statistic, run and part of the run behind it; equal for values that are one result. Empty for what no
            run measured.
    """

    value: float
    low: float | None = None
    high: float | None = None
    estimate: float | None = None
    remark: str = ""
    compared: bool = True
    source: frozenset[tuple[str, ...]] = frozenset()

    @property
    def result(self) -> str:
        """Digest of the source; "" without one."""
        text = repr(sorted(self.source))
        return hashlib.sha256(text.encode()).hexdigest()[:12] if self.source else ""


def by_definition(number: Number) -> bool:
    """Whether it is 1 because plain decoding is what others are measured against."""
    return number.method in BASELINES and METRICS[number.metric].by_definition


def has_hf(cell: Cell) -> bool:
    """Whether a run has Hugging Face `generate` as an arm."""
    return "speedup_hf" in cell.summary


def value(
    number: Number, cell: Cell, domain: str | None = None, with_hf: bool = False, statistic: str = ""
) -> Value | str:
    """Our value for a reported number from one record, or why it has none.

    Args:
        domain: of a stream, the part that the number is about; None: the whole run.
        with_hf: divide by Hugging Face's arm what the paper divides by it; its run must have that.
        statistic: of the summary, in place of what the paper counts.
    """
    baseline = number.method in BASELINES
    if domain is not None:
        rows: list[Mapping[str, Any]] = [row for row in cell.domains if row["domain"] == domain]
        source: Mapping[str, Any] = rows[0] if rows else {}
        if not rows:
            return f"the run has no prompts of {domain}"
    else:
        source = cell.summary
    if by_definition(number):
        return Value(1.0) if source["ar_tokens_per_s"] is not None else "the run has no baseline"
    if domain is None and number.metric in SPECIAL:
        special = SPECIAL[number.metric](number, cell)
        return special if isinstance(special, str) else replace(special, source=source_of([cell], _variant(number)))
    name, remark = (statistic, "") if statistic else _statistic(number, with_hf)
    name = METRICS[number.metric].of_ar if baseline else name
    if name is None or name not in source:
        where = "" if domain is None else ", or not by task"
        return f"{number.metric} is not in the record{where}"
    if source[name] is None:
        return "the run has no baseline" if baseline else _undefined(number.metric, source)
    estimate = None if baseline or number.metric != "tpt" else source["tpt_estimated"]
    return Value(
        source[name], source.get(f"{name}_lo"), source.get(f"{name}_hi"), estimate, remark,
        source=source_of([cell], name, domain or ""),
    )  # fmt: skip


def source_of(cells: Iterable[Cell], statistic: str, part: str = "") -> frozenset[tuple[str, ...]]:
    """Return what a value rests on, as `Value.source`: one statistic of some runs, or of a part of their streams."""
    return frozenset((statistic, cell.path.name, part) for cell in cells)


def _variant(number: Number) -> str:
    """Name the statistic of a special metric: what decides its value in a given record."""
    arm = "ar" if number.method in BASELINES else "method"
    counted = room_of(number.paper).skip_ratio if number.metric == "skip_ratio" else ""
    settings = [number.settings.get(key, "") for key in ("pass@k", "point")]
    return " ".join([number.metric, arm, counted, *settings])


def _statistic(number: Number, with_hf: bool) -> tuple[str | None, str]:
    """The name in `metrics.summarise` of what the paper counts, and in what it is not the same."""
    own = room_of(number.paper).counts.get(number.metric)
    if own is None:
        return METRICS[number.metric].ours, ""
    if own.baseline != "hf":
        return own.statistic, ""
    return (own.statistic.replace("speedup", "speedup_hf"), "") if with_hf else (own.statistic, OVER_AR)


def _undefined(metric: str, source: Mapping[str, Any]) -> str:
    """Why a number that the record should have is undefined."""
    if metric in ("speedup", "rouge2"):
        return "the run has no baseline"
    if metric == "tpt":
        return "the run has no latency profile"
    if metric == "expected_speedup" and source.get("skip_ratio") is None and source.get("alpha") is not None:
        return "nothing was drafted by skipping layers"
    return "nothing was drafted"


def mean(values: Sequence[Value]) -> Value:
    """The mean of several numbers, which have one remark.

    Its interval adds theirs as those of independent means, half widths in quadrature; there is none unless all have.
    """
    if len(values) == 1:
        return values[0]
    centre, source = (
        sum(v.value for v in values) / len(values),
        frozenset[tuple[str, ...]]().union(*(v.source for v in values)),
    )
    estimates = [v.estimate for v in values if v.estimate is not None]
    estimate = sum(estimates) / len(values) if len(estimates) == len(values) else None
    below = [v.value - v.low for v in values if v.low is not None]
    above = [v.high - v.value for v in values if v.high is not None]
    if len(below) < len(values) or len(above) < len(values):
        compared = all(v.compared for v in values)
        return Value(centre, estimate=estimate, remark=values[0].remark, compared=compared, source=source)
    low, high = centre - math.hypot(*below) / len(values), centre + math.hypot(*above) / len(values)
    return Value(centre, low, high, estimate, values[0].remark, source=source)


def _skip_ratio(number: Number, cell: Cell) -> Value | str:
    """r: of all 2L sublayers, or, as some papers count, of those between the first and the last block only."""
    found = cell.summary["skip_ratio"]
    if found is None:
        return "nothing was drafted by skipping layers"
    n_layers = (cell.header.get("model") or {}).get("n_layers")
    if room_of(number.paper).skip_ratio != "inner":
        return Value(found)
    if not n_layers or n_layers <= 2:
        return "the model has no block between its first and last"
    return Value(found * n_layers / (n_layers - 2))


def _accuracy(number: Number, cell: Cell) -> Value | str:
    """pass@k of generated programs, of the arm that the number is about."""
    arm, k = "ar" if number.method in BASELINES else "method", number.settings.get("pass@k", "1")
    found = cell.summary.get(f"{arm}_pass@{k}")
    if found is None:
        return f"pass@{k} needs {k} outputs a prompt; the run has {cell.summary['n_repeats']}"
    return Value(found)


def _overhead(number: Number, cell: Cell) -> Value | str:
    share = cell.summary["overhead"]
    return "nothing was decoded" if share is None else Value(100 * share)


def _events(run: Run) -> pd.DataFrame:
    """The method's steps after which its online search scored a set, in the order of the prompts."""
    steps = metrics.arm_rows(run.steps, "method")
    return steps[steps["est_alpha"].notna()].sort_values(["repeat", "prompt_index", "step"])


def search_time(run: Run) -> float | None:
    """Seconds of the search: of the steps at which an online one scored, else before the run.

    A search that was read from the store counts with what it took whoever made it; without one `prepare_ms` counts.
    """
    online = _events(run)["policy_ms"].sum()
    offline = 1000 * sum(each["seconds"] for each in run.header.get("searches") or ())
    spent = online or offline or run.header.get("prepare_ms")
    return float(spent) / 1000 if spent else None


def search_made(run: Run) -> str:
    """How a run came to its search: "run" by it, "continued" by it from the store, or "read" from there; "": none."""
    if len(_events(run)):
        return "run"
    searches = run.header.get("searches") or ()
    if not searches:
        return "run" if run.header.get("prepare_ms") else ""
    new, all_ = (sum(each[key] for each in searches) for key in ("new", "evaluations"))
    return "run" if new == all_ else "continued" if new else "read"


def _search_time(number: Number, cell: Cell) -> Value | str:
    spent, made = search_time(cell.run), search_made(cell.run)
    if spent is None:
        return "the method did not search"
    if made == "run":
        return Value(spent)
    return Value(spent, remark=f"its search was {made} from the store: the time is of when it was made", compared=False)


def _step_latency(number: Number, cell: Cell) -> Value | str:
    """Milliseconds of policy at a step at which the search scored a set, mean."""
    events = _events(cell.run)
    return Value(float(events["policy_ms"].mean())) if len(events) else "the method did not search"


def _matchness(number: Number, cell: Cell) -> Value | str:
    """The best score of the search: at its first event, at the last one of its first prompt, or at its last."""
    events = _events(cell.run)
    if events.empty:
        return "the method did not search"
    first = events[events["prompt_index"] == events["prompt_index"].iloc[0]]
    scores = {
        "start of first instance": first["est_alpha"].iloc[0],
        "during first instance": first["est_alpha"].iloc[-1],
        "termination": events["est_alpha"].iloc[-1],
    }
    found = scores.get(number.settings.get("point", ""))
    return "at no point that a record has" if found is None else Value(float(found))


def pearson(number: Number, cells: Sequence[Cell]) -> Value | str:
    """Correlation of TPT or α with tokens/s over points, one a prompt and method; TPT of a prompt by Eq. 4."""
    x_name = "tpt_predicted" if number.settings["pair"].startswith("TPT") else "alpha"
    found = pd.concat([by_prompt(cell.run) for cell in cells])[[x_name, "tokens_per_s"]].dropna()
    x, y = found.to_numpy().T
    if len(x) < 3 or not x.std() or not y.std():
        return "too few points, or all the same"
    return Value(float(np.corrcoef(x, y)[0, 1]), source=source_of(cells, f"pearson {x_name}"))


def by_prompt(run: Run) -> pd.DataFrame:
    """Numbers of each prompt (index: prompt_index), NaN where one has none: what predicts speed, and speed.

    Returns:
        tokens_per_s; alpha; tpt_predicted, by Eq. 4; tpt_estimated, the method's own.
    """
    found = {}
    for index, steps in metrics.arm_rows(run.steps, "method").groupby("prompt_index"):
        prompts = metrics.arm_rows(run.prompts[run.prompts["prompt_index"] == index], "method")
        found[index] = {
            "tokens_per_s": metrics.tokens_per_s(prompts).value,
            "alpha": metrics.alpha_micro(steps),
            "tpt_predicted": metrics.predicted_tpt(replace(run, steps=steps)),
            "tpt_estimated": metrics.estimated_tpt(steps)[0],
        }
    return pd.DataFrame.from_dict(found, orient="index", dtype=float)


SPECIAL = {
    "skip_ratio": _skip_ratio,
    "accuracy": _accuracy,
    "overhead_pct": _overhead,
    "optimization_latency_s": _search_time,
    "step_latency_ms": _step_latency,
    "matchness": _matchness,
}
