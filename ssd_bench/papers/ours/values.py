"""Value of each metric (`papers.printed.reported.METRICS`) in one record, in the papers' units."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from ssd_bench.papers.ours.cells import Cell
from ssd_bench.papers.printed.catalogue import folder_of
from ssd_bench.papers.printed.reported import METRICS, Number
from ssd_bench.records.reader import Run
from ssd_bench.results.numbers import prompt_numbers
from ssd_bench.results.prompt_table import PromptTable
from ssd_bench.results.rows import arm_rows

BASELINES = ("AR", "Vanilla")
"""Names of plain decoding, every run's second arm."""

NOT_BY_LAYERS = "the run drafted no tokens by skipping layers"
OVER_AR = "relative to AR in this engine, whereas the paper divides by Hugging Face generate (run with baseline=hf)"


@dataclass(frozen=True)
class Value:
    """Our number, with its 95 % interval, if any.

    Attributes:
        estimate: the method's own estimate, for TPT.
        remark: difference from the paper's statistic; "" for none.
        compared: whether it may be compared with the paper's number.
        source: statistic, run and part of the run; empty for a value not measured.
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
        """Digest of the source; "" without a source."""
        text = repr(sorted(self.source))
        return hashlib.sha256(text.encode()).hexdigest()[:12] if self.source else ""


def is_by_definition(number: Number) -> bool:
    """Return whether a number is 1 because plain decoding is the baseline."""
    return number.method in BASELINES and METRICS[number.metric].by_definition


def our_value(
    number: Number, cell: Cell, domain: str | None = None, with_hf: bool = False, statistic: str = ""
) -> Value | str:
    """Return our value for a reported number from one record, or why the record lacks it.

    Args:
        domain: part of a stream; None: the whole run.
        with_hf: divide by the Hugging Face arm, if the paper does.
        statistic: summary name that replaces the paper's statistic.
    """
    baseline, source = number.method in BASELINES, cell.summary.row
    if domain is not None:
        source = next((summary.row for summary in cell.domains if summary.domain == domain), {})
        if not source:
            return f"the run has no prompts of {domain}"
    if is_by_definition(number):
        return Value(1.0) if source["ar_tokens_per_s"] is not None else "the run has no baseline"
    if domain is None and number.metric in SPECIAL:
        special = SPECIAL[number.metric](number, cell)
        return special if isinstance(special, str) else replace(special, source=source_of([cell], _variant(number)))
    name, remark = (statistic, "") if statistic else _statistic(number, with_hf)
    name = METRICS[number.metric].of_ar if baseline else name
    if name is None or name not in source:
        where = "" if domain is None else " by task"
        return f"the record does not have {number.metric}{where}"
    if source[name] is None:
        return "the run has no baseline" if baseline else _undefined(number.metric, source)
    estimate = None if baseline or number.metric != "tpt" else source["tpt_estimated"]
    return Value(
        source[name],
        source.get(f"{name}_lo"),
        source.get(f"{name}_hi"),
        estimate,
        remark,
        source=source_of([cell], name, domain or ""),
    )


def source_of(cells: Iterable[Cell], statistic: str, part: str = "") -> frozenset[tuple[str, ...]]:
    """Return a value's source, as `Value.source`: one statistic of some runs, or of a part of their streams."""
    return frozenset((statistic, cell.path.name, part) for cell in cells)


def _variant(number: Number) -> str:
    """Return a special metric's statistic with everything that determines its value in a record."""
    arm = "ar" if number.method in BASELINES else "method"
    sublayers = folder_of(number.paper).skip_ratio if number.metric == "skip_ratio" else ""
    settings = [number.settings.get(key, "") for key in ("pass@k", "point")]
    return " ".join([number.metric, arm, sublayers, *settings])


def _statistic(number: Number, with_hf: bool) -> tuple[str | None, str]:
    """Return the name of the paper's statistic in `summarise`, and a remark if ours differs."""
    definition = folder_of(number.paper).counts.get(number.metric)
    if definition is None:
        return METRICS[number.metric].ours, ""
    if definition.baseline != "hf":
        return definition.statistic, ""
    return (definition.statistic.replace("speedup", "speedup_hf"), "") if with_hf else (definition.statistic, OVER_AR)


def _undefined(metric: str, source: Mapping[str, Any]) -> str:
    """Return why a number that the record should have is undefined."""
    if metric in ("speedup", "rouge2"):
        return "the run has no baseline"
    if metric == "tpt":
        return "the run has no latency profile"
    if metric == "expected_speedup" and source.get("skip_ratio") is None and source.get("alpha") is not None:
        return NOT_BY_LAYERS
    return "the run drafted no tokens"


def mean_value(values: Sequence[Value]) -> Value:
    """Return the arithmetic mean of values with a common remark.

    If all have an interval, the mean's treats them as independent: at each end the half width is sqrt(sum h²) / n.
    """
    if len(values) == 1:
        return values[0]
    average = sum(value.value for value in values) / len(values)
    source = frozenset[tuple[str, ...]]().union(*(value.source for value in values))
    estimates = [value.estimate for value in values if value.estimate is not None]
    estimate = sum(estimates) / len(values) if len(estimates) == len(values) else None
    lower_widths = [value.value - value.low for value in values if value.low is not None]
    upper_widths = [value.high - value.value for value in values if value.high is not None]
    low = high = None
    if len(lower_widths) == len(upper_widths) == len(values):
        low, high = average - math.hypot(*lower_widths) / len(values), average + math.hypot(*upper_widths) / len(values)
    return Value(average, low, high, estimate, values[0].remark, all(value.compared for value in values), source)


def _skip_ratio(number: Number, cell: Cell) -> Value | str:
    """Return r, the skipped share of all 2L sublayers, or for some papers of the 2(L - 2) inner blocks' sublayers."""
    share = cell.summary.skip_ratio
    if share is None:
        return NOT_BY_LAYERS
    if folder_of(number.paper).skip_ratio != "inner":
        return Value(share)
    inner = inner_skip_ratio(cell)
    return "the model has no block between its first and last" if inner is None else Value(inner)


def inner_skip_ratio(cell: Cell) -> float | None:
    """Return the skipped share of sublayers between the first and the last block; None if undefined."""
    share, n_layers = cell.summary.skip_ratio, cell.header.model.n_layers
    return None if share is None or n_layers <= 2 else float(share * n_layers / (n_layers - 2))


def _accuracy(number: Number, cell: Cell) -> Value | str:
    """Return pass@k of generated programs, for the number's arm."""
    arm, k = "ar" if number.method in BASELINES else "method", number.settings.get("pass@k", "1")
    accuracy = cell.summary.task_scores.get(f"{arm}_pass@{k}")
    if accuracy is None:
        return f"pass@{k} needs {k} outputs per prompt; the run has {cell.summary.n_repeats}"
    return Value(accuracy)


def _overhead(number: Number, cell: Cell) -> Value | str:
    share = cell.summary.overhead
    return "the run decoded no tokens" if share is None else Value(100 * share)


def method_steps(run: Run) -> pd.DataFrame:
    """Return the method's steps in the order made."""
    return arm_rows(run.steps, "method").sort_values(["repeat", "prompt_index", "step"])


def _search_events(run: Run) -> pd.DataFrame:
    steps = method_steps(run)
    return steps[steps["est_alpha"].notna()]


def search_time(run: Run) -> float | None:
    """Return the seconds of the search: its online steps, else the search before the run; None without one.

    A search from the store counts with its original time, a run without any search with `prepare_ms`.
    """
    online = _search_events(run)["policy_ms"].sum()
    offline = 1000 * sum(search.seconds for search in run.header.searches)
    milliseconds = online or offline or run.header.prepare_ms
    return float(milliseconds) / 1000 if milliseconds else None


def search_origin(run: Run) -> str:
    """Return the origin of a run's search: "run", "continued" from the store, "read" from it, or "" without one."""
    if len(_search_events(run)):
        return "run"
    searches = run.header.searches
    if not searches:
        return "run" if run.header.prepare_ms else ""
    new, total = sum(search.new for search in searches), sum(search.evaluations for search in searches)
    return "run" if new == total else "continued" if new else "read"


def scored_sets(run: Run) -> int:
    """Return the number of layer sets scored by a run's search: online, else in the shortest offline search."""
    online = len(_search_events(run))
    return online or min((search.evaluations for search in run.header.searches), default=0)


def _search_time(number: Number, cell: Cell) -> Value | str:
    """Return the seconds of the search; a stored search's time is not compared with the paper's."""
    seconds, origin = search_time(cell.run), search_origin(cell.run)
    if seconds is None:
        return "the method did not search"
    if origin == "run":
        return Value(seconds)
    remark = f"the search was {origin} from the store, so its time was measured in an earlier run"
    return Value(seconds, remark=remark, compared=False)


def _step_latency(number: Number, cell: Cell) -> Value | str:
    """Return the mean milliseconds of method overhead at steps with a scored set."""
    events = _search_events(cell.run)
    return Value(float(events["policy_ms"].mean())) if len(events) else "the method did not search"


def _matchness(number: Number, cell: Cell) -> Value | str:
    """Return the search's best score: at its first event, at the first prompt's last, or at its last."""
    events = _search_events(cell.run)
    if events.empty:
        return "the method did not search"
    first = events[events["prompt_index"] == events["prompt_index"].iloc[0]]
    scores = {
        "start of first instance": first["est_alpha"].iloc[0],
        "during first instance": first["est_alpha"].iloc[-1],
        "termination": events["est_alpha"].iloc[-1],
    }
    score = scores.get(number.settings.get("point", ""))
    return "a record does not have this point" if score is None else Value(float(score))


def pearson(number: Number, cells: Sequence[Cell]) -> Value | str:
    """Return Pearson's r of TPT or α with tokens/s.

    A point is a prompt and method; KnapSpec Eq. 4 predicts its TPT.
    """
    x_name = "tpt_predicted" if number.settings["pair"].startswith("TPT") else "alpha"
    points = pd.concat([speed_points(cell.run) for cell in cells])[[x_name, "method_tokens_per_s"]].dropna()
    x, y = points.to_numpy().T
    if len(x) < 3 or not x.std() or not y.std():
        return "fewer than three points, or all points are equal"
    return Value(float(np.corrcoef(x, y)[0, 1]), source=source_of(cells, f"pearson {x_name}"))


def speed_points(run: Run) -> pd.DataFrame:
    """Return each prompt's speed (`method_tokens_per_s`) and predictors of it, as `prompt_numbers`."""
    return prompt_numbers(run, PromptTable.of(run), ("method_tokens_per_s", "alpha"))


SPECIAL = {
    "skip_ratio": _skip_ratio,
    "accuracy": _accuracy,
    "overhead_pct": _overhead,
    "optimization_latency_s": _search_time,
    "step_latency_ms": _step_latency,
    "matchness": _matchness,
}
"""Metrics without a single column in a run's summary -> their functions."""
