"""Advice on the method to use: the fastest on each task with its cost, and the methods that are faster on all tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from ssd_bench.metrics.text import ABSENT, costs_text
from ssd_bench.report.results import MEASURED, MODELLED, interval_text, model_text, named_rows, search_text

TASKS = 3
"""Smallest number of tasks for a recommendation."""
LONG = 200
"""Mean tokens of an answer from which a task is long: methods that search while decoding start after dozens."""
KEY = ["model", "params", "rehearsal", "machine", "times"]
"""Columns with which results can be compared: the same model and the same costs."""


def choice_table(results: pd.DataFrame) -> pd.DataFrame:
    """Return as texts the fastest methods of each model, machine and task, with the cost of a search before the run.

    Args:
        results: result of `result_table`.
    """
    rows = []
    for _, group in _groups(results):
        for task, methods in group.groupby("task", sort=False):
            best = named_rows(methods.sort_values("speedup", ascending=False))[0]
            ties = _ties(methods, best)
            rows.append(
                {
                    "task": str(task),
                    "tokens per answer": f"{best['tokens']:.0f}",
                    "n": str(best["n"]),
                    "fastest method": str(best["method"]) if best["speedup_lo"] > 1 else "plain decoding (AR)",
                    "speedup": f"{interval_text(best, 'speedup')}×"
                    + ("" if best["speedup_lo"] > 1 else f" ({best['method']})"),
                    "indistinguishable": ", ".join(ties) or ABSENT,
                    "its search before the run": search_text(best),
                    "model": model_text(best),
                    "times": _times(best),
                }
            )
    return pd.DataFrame(rows)


def recommendations(results: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence for each model and machine: the methods that are faster than AR on every task, or why none is.

    Args:
        results: result of `result_table`.
    """
    toys = dict.fromkeys(model_text(row) for row in named_rows(results[results["rehearsal"]]))
    yield from (
        f"{model}: no recommendation, because a toy model shows how methods behave, not which to use." for model in toys
    )
    for _, group in _groups(results[~results["rehearsal"]]):
        first = named_rows(group)[0]
        where = f"{model_text(first)}, {_times(first)}"
        tasks = group.groupby("task")["tokens"].max()
        if len(tasks) < TASKS or tasks.max() < LONG:
            counted = f"{len(tasks)} task{'s' if len(tasks) > 1 else ''}"
            shortest, longest = f"{tasks.min():.0f}", f"{tasks.max():.0f}"
            lengths = shortest if shortest == longest else f"{shortest} to {longest}"
            yield (
                f"{where}: it cannot be said. The results are of {counted} with answers of {lengths} tokens; {TASKS} "
                f"tasks are required, one of them with {LONG} tokens or more, on which methods that search while "
                "decoding can search."
            )
            continue
        faster = list(_faster_everywhere(group, len(tasks)))
        yield f"{where}, {len(tasks)} tasks: " + (
            f"faster than plain decoding on every task: {', '.join(faster)}."
            if faster
            else "no method is faster than plain decoding on every task."
        )


def note() -> str:
    """Return sentences that explain the table."""
    return (
        "Speedups are over AR while decoding; brackets: 95 % intervals over prompts. Fastest: chosen by the same data, "
        "which its interval does not correct for. Indistinguishable: methods that are faster than AR and whose "
        "interval reaches the fastest. A search before the run is not part of the speedup; it is paid back after so "
        "many decoded tokens. Searches while decoding are part of it."
    )


def _groups(results: pd.DataFrame) -> Iterator[tuple[object, pd.DataFrame]]:
    """Yield the results that can be compared, real models first, then in the order of the table."""
    ordered = results.sort_values("rehearsal", kind="stable")
    yield from ordered.groupby(KEY, sort=False, dropna=False)


def _ties(methods: pd.DataFrame, best: Mapping[str, Any]) -> list[str]:
    """Return the other methods that are faster than AR and whose interval reaches the best speedup."""
    near = methods[(methods["speedup_hi"] >= best["speedup"]) & (methods["speedup"] >= 1)]
    return [name for name in dict.fromkeys(near["method"]) if name != best["method"]]


def _faster_everywhere(group: pd.DataFrame, n_tasks: int) -> Iterator[str]:
    """Yield the methods whose interval is above 1 on every task, the best by its lowest speedup first."""
    ranges = {
        str(method): (rows["speedup"].min(), rows["speedup"].max(), rows)
        for method, rows in group.groupby("method", sort=False)
        if rows["task"].nunique() == n_tasks and (rows.groupby("task")["speedup_lo"].max() > 1).all()
    }
    for method, (low, high, rows) in sorted(ranges.items(), key=lambda entry: -entry[1][0]):
        searched = rows.loc[rows["search_s"].notna()]
        cost = f", after a search of {searched['search_s'].max():,.3g} s" if len(searched) else ""
        yield f"{method} ({low:.2f} to {high:.2f}×{cost})"


def _times(row: Mapping[str, Any]) -> str:
    """Return the machine of a row's times."""
    if row["times"] == MODELLED:
        return f"modelled at {costs_text(row['machine'])}"
    return f"{MEASURED} on {row['machine']}"
