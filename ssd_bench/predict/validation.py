"""Validation of replay: recorded runs, predicted from their own latency profiles and compared with the measurement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from ssd_bench import metrics, tables
from ssd_bench.metrics.text import format_percent
from ssd_bench.predict.replay import predict
from ssd_bench.records.reader import Run

BOUND = 0.10  # limit on the median of the absolute error of a method's speedup


def is_replayable(run: Run) -> bool:
    """Return whether a run can be compared: both arms recorded, with steps, and passes over several nodes profiled."""
    has_both_arms = len(metrics.paired_rows(run.prompts)) > 0 and {"ar", "method"} <= set(run.steps["arm"])
    return run.header.profiled and has_both_arms


def validate(runs: Sequence[Run]) -> pd.DataFrame:
    """Compare predicted with measured speeds, one row per run.

    Returns:
        Columns run, method, model, task; and NAME_measured, NAME_predicted, NAME_error (predicted / measured - 1) for
        tokens/s of `ar` and of `method`, for `speedup`, and for `forward` (the speedup of drafting and verification
        alone: no part of its prediction is a recorded time). Runs that are not `is_replayable` are left out.
    """
    rows = []
    for run in filter(is_replayable, runs):
        prompts, prediction = metrics.paired_rows(run.prompts), predict(run)
        # the values of `metrics.tokens_per_s` and `metrics.speedup`, without the time that their intervals take
        sums = {arm: metrics.token_times(metrics.arm_rows(prompts, arm)).sum() for arm in ("ar", "method")}
        measured = {arm: 1000 * float(total["tokens"]) / float(total["ms"]) for arm, total in sums.items()}
        measured["speedup"] = measured["method"] / measured["ar"]
        passes = {arm: _forward_ms(prompts, arm) / float(total["tokens"]) for arm, total in sums.items()}
        measured["forward"] = passes["ar"] / passes["method"]
        forward = prediction.speedup_forward
        predicted = {**prediction.tokens_per_s, "speedup": prediction.speedup, "forward": forward}
        header = run.header
        row: dict[str, Any] = {"run": run.path.name, "method": header.method}
        row |= {"model": header.model.name, "task": header.task.name}
        for name, value in measured.items():
            row |= {f"{name}_measured": value, f"{name}_predicted": predicted[name]}
            row[f"{name}_error"] = predicted[name] / value - 1
        rows.append(row)
    return pd.DataFrame(rows)


def _forward_ms(prompts: pd.DataFrame, arm: str) -> float:
    """Return the recorded milliseconds of drafting and verification of an arm."""
    return float(metrics.arm_rows(prompts, arm)[["draft_ms", "verify_ms"]].to_numpy().sum())


def errors_by_method(frame: pd.DataFrame) -> pd.DataFrame:
    """Return per method and over all runs: size, absolute error of the speedup (median, max), median for forward."""
    errors = frame.assign(error=frame["speedup_error"].abs(), forward=frame["forward_error"].abs())
    grouped = pd.concat([errors, errors.assign(method="all runs")]).groupby("method", sort=False)
    table = grouped.agg(
        size=("error", "size"), median=("error", "median"), max=("error", "max"), forward=("forward", "median")
    )
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
        )
        for row in frame.sort_values(["method", "model", "task"]).itertuples()
    ]
    heads = ["method", "model", "task"]
    heads += ["AR tok/s", "predicted", "method tok/s", "predicted", "speedup", "predicted", "error"]
    medians = [
        (
            name,
            int(row["size"]),
            format_percent(row["median"]),
            format_percent(row["max"]),
            "yes" if row["median"] <= BOUND else "NO",
            format_percent(row["forward"]),
        )
        for name, row in errors_by_method(frame).iterrows()
    ]
    columns = ["method", "runs", "speedup: median |error|", "largest", f"within {BOUND:.0%}", "forward only: median"]
    return "\n".join(
        [
            tables.terminal(pd.DataFrame(runs, columns=heads)),
            "",
            tables.terminal(pd.DataFrame(medians, columns=columns)),
            "",
            "forward only: speedup of drafting and verification alone, without method overhead and the decode loop,",
            "whose times are not predicted but recorded.",
        ]
    )
