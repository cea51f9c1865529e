"""Validation of replay: recorded runs, predicted from their own latency profiles and compared with the measurement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ssd_bench import metrics, tables
from ssd_bench.metrics.text import ABSENT, format_percent
from ssd_bench.predict.replay import model_calls, predict
from ssd_bench.records.reader import Run
from ssd_bench.records.schema import ANSWER

SPEEDUP_LIMIT, OVERHEAD_LIMIT = 0.03, 0.10
"""Thresholds of the median absolute errors of a method's speedup, and of its overhead alone."""


def is_replayable(run: Run) -> bool:
    """Return whether a run can be compared: both arms recorded, with steps, and passes over several nodes profiled."""
    has_both_arms = len(metrics.paired_rows(run.prompts)) > 0 and {"ar", "method"} <= set(run.steps["arm"])
    return run.header.profiled and has_both_arms


def validate(runs: Sequence[Run]) -> pd.DataFrame:
    """Compare predicted with measured speeds, one row per run.

    Returns:
        Columns run, method, model, task; and NAME_measured, NAME_predicted, NAME_error (predicted / measured - 1) for
        tokens/s of `ar` and of `method`, for `speedup`, for `forward` (the speedup of drafting and verification
        alone: no part of its prediction is a recorded time), for `overhead` (milliseconds of the method overhead) and
        for `calls` (those of its calls of the model; the rest is recorded). The last two are NaN for records that do
        not count or time these calls. Runs that are not `is_replayable` are left out.
    """
    rows = []
    for run in filter(is_replayable, runs):
        prompts, prediction = metrics.paired_rows(run.prompts), predict(run)
        # the values of `metrics.tokens_per_s` and `metrics.Pairs.speedup`, without the time that their intervals take
        sums = {arm: metrics.token_times(metrics.arm_rows(prompts, arm)).sum() for arm in ("ar", "method")}
        measured = {arm: 1000 * float(total["tokens"]) / float(total["ms"]) for arm, total in sums.items()}
        measured["speedup"] = measured["method"] / measured["ar"]
        passes = {arm: _forward_ms(prompts, arm) / float(total["tokens"]) for arm, total in sums.items()}
        measured["forward"] = passes["ar"] / passes["method"]
        measured |= _overhead_ms(run, prompts, counted=prediction.overhead == "own")
        forward = prediction.speedup_forward
        predicted = {**prediction.tokens_per_s, "speedup": prediction.speedup, "forward": forward}
        predicted |= {"overhead": prediction.overhead_ms, "calls": prediction.calls_ms}
        header = run.header
        row: dict[str, Any] = {"run": run.path.name, "method": header.method}
        row |= {"model": header.model.name, "task": header.task.name}
        for name, value in measured.items():
            row |= {f"{name}_measured": value, f"{name}_predicted": predicted[name]}
            row[f"{name}_error"] = predicted[name] / value - 1 if value else math.nan
        rows.append(row)
    return pd.DataFrame(rows)


def _overhead_ms(run: Run, prompts: pd.DataFrame, counted: bool) -> dict[str, float]:
    """Return the recorded milliseconds of the method overhead, and of its calls; NaN if they are not counted."""
    if not counted:
        return {"overhead": math.nan, "calls": math.nan}
    calls = model_calls(run.work).merge(metrics.arm_rows(prompts, "method")[list(ANSWER)], on=list(ANSWER))
    overhead = metrics.arm_rows(prompts, "method")["policy_ms"]
    return {"overhead": float(overhead.sum()), "calls": float(calls["ms"].sum())}


def _forward_ms(prompts: pd.DataFrame, arm: str) -> float:
    """Return the recorded milliseconds of drafting and verification of an arm."""
    return float(metrics.arm_rows(prompts, arm)[["draft_ms", "verify_ms"]].to_numpy().sum())


def errors_by_method(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the absolute errors per method and over all runs.

    Returns:
        Columns size, median and max (of the speedup), forward, overhead and calls (medians).
    """
    names = {"forward": "forward_error", "overhead": "overhead_error", "calls": "calls_error"}
    errors = frame.assign(
        error=frame["speedup_error"].abs(), **{name: frame[error].abs() for name, error in names.items()}
    )
    grouped = pd.concat([errors, errors.assign(method="all runs")]).groupby("method", sort=False)
    medians = {name: (name, "median") for name in names}
    table = grouped.agg(size=("error", "size"), median=("error", "median"), max=("error", "max"), **medians)
    return pd.concat([table.drop("all runs").sort_index(), table.loc[["all runs"]]])


def validation_text(frame: pd.DataFrame) -> str:
    """Return the comparison as text for a terminal: every run, then the medians."""
    runs = [
        (
            row.method,
            row.model,
            row.task,
            *(f"{getattr(row, f'{arm}_{kind}'):.1f}" for arm in ("ar", "method") for kind in ("measured", "predicted")),
            f"{row.speedup_measured:.3f}",
            f"{row.speedup_predicted:.3f}",
            f"{row.speedup_error:+.1%}",
            _signed(float(row.overhead_error)),  # type: ignore[arg-type]  # itertuples has no types
        )
        for row in frame.sort_values(["method", "model", "task"]).itertuples()
    ]
    heads = ["method", "model", "task", "AR tok/s", "predicted", "method tok/s", "predicted"]
    heads += ["speedup", "predicted", "error", "overhead: error"]
    medians = [
        (
            name,
            int(row["size"]),
            format_percent(row["median"]),
            format_percent(row["max"]),
            format_percent(row["forward"]),
            *(ABSENT if pd.isna(row[part]) else format_percent(row[part]) for part in ("overhead", "calls")),
            _within(row),
        )
        for name, row in errors_by_method(frame).iterrows()
    ]
    columns = ["method", "runs", "speedup: median |error|", "largest", "forward only: median", "overhead: median"]
    columns += ["its calls: median", "within"]
    return "\n".join(
        [
            tables.terminal(pd.DataFrame(runs, columns=heads)),
            "",
            tables.terminal(pd.DataFrame(medians, columns=columns)),
            "",
            f"within: median error of the speedup at most {SPEEDUP_LIMIT:.0%}, of the overhead at most "
            f"{OVERHEAD_LIMIT:.0%}.",
            "forward only: speedup of drafting and verification alone, without method overhead and the decode loop.",
            "overhead: its calls of the model are predicted, the time of the method's own code is recorded;",
            f"its calls: these alone. {ABSENT}: the record does not count them, so the overhead is the recorded time.",
        ]
    )


def _signed(error: float) -> str:
    return ABSENT if math.isnan(error) else f"{error:+.1%}"


def _within(row: pd.Series[float]) -> str:
    """Return whether the medians are within their thresholds, in words."""
    missed = [name for name, limit in (("median", SPEEDUP_LIMIT), ("overhead", OVERHEAD_LIMIT)) if row[name] > limit]
    return "yes" if not missed else " and ".join("speedup" if name == "median" else name for name in missed) + ": NO"
