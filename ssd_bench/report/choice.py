"""Advice on the method: the fastest on each task with its cost, and the methods faster on all tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from ssd_bench.papers.claims.claims import PROMPTS
from ssd_bench.report.results import MEASURED, MODELLED, model_text, named_rows, search_text
from ssd_bench.results.repetition import LOOP_SHARE, NGRAM
from ssd_bench.results.text import ABSENT, costs_text, format_interval

TASKS = 3
"""Smallest number of tasks for a recommendation."""
LONG = 200
"""Mean tokens of an answer from which a task is long: methods that search while decoding start after dozens."""
KEY = ["model", "params", "toy", "machine", "times"]
"""Columns equal for comparable results: the same model and the same costs."""


def choice_table(results: pd.DataFrame) -> pd.DataFrame:
    """Return as texts the fastest methods per model, machine and task, with the cost of a search before the run.

    Tasks with too few prompts without loops are left out; `note` counts them.
    """
    rows = []
    for task, methods in _by_task(results):
        usable = methods[methods["without_loops"] >= PROMPTS]
        if usable.empty:
            continue
        best = named_rows(usable.sort_values("speedup", ascending=False))[0]
        faster = best["speedup_lo"] > 1
        row = {
            "task": task,
            "tokens per answer": f"{best['tokens']:.0f}",
            "n": str(best["n"]),
            "without loops": str(best["without_loops"]),
            "fastest method": str(best["method"]) if faster else "plain decoding (AR)",
            "speedup": f"{format_interval(best, 'speedup')}×" + ("" if faster else f" ({best['method']})"),
            "indistinguishable": ", ".join(_ties(usable, best)) or ABSENT,
            "its search before the run": search_text(best),
            "model": model_text(best),
            "times": _times(best),
        }
        rows.append(row)
    return pd.DataFrame(rows)


def _by_task(results: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    for _, group in _groups(results):
        yield from ((str(task), methods) for task, methods in group.groupby("task", sort=False))


def recommendations(results: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence for each model and machine: the methods faster than AR on every task, or why none is."""
    toys = dict.fromkeys(model_text(row) for row in named_rows(results[results["toy"]]))
    yield from (
        f"{model}: no recommendation, because a toy model shows how methods behave, not which to use." for model in toys
    )
    for _, group in _groups(results[~results["toy"]]):
        first = named_rows(group)[0]
        where = f"{model_text(first)}, {_times(first)}"
        usable = group[group["without_loops"] >= PROMPTS]
        tasks = usable.groupby("task")["tokens"].max()
        if len(tasks) < TASKS or tasks.max() < LONG:
            yield (
                f"{where}: it cannot be said. Required are {TASKS} tasks with {PROMPTS} prompts or more on which no "
                "answer loops (an answer that repeats itself is easy to draft); on one of the tasks, answers of "
                f"{LONG} tokens or more, long enough for methods that search while decoding. {_evidence(group)}"
            )
            continue
        faster = list(_faster_everywhere(usable, len(tasks)))
        yield f"{where}, {len(tasks)} tasks: " + (
            f"faster than plain decoding on every task: {', '.join(faster)}."
            if faster
            else "no method is faster than plain decoding on every task."
        )


def note(results: pd.DataFrame) -> str:
    """Return sentences that explain the table."""
    most = [methods["without_loops"].max() for _, methods in _by_task(results)]
    few = sum(count < PROMPTS for count in most)
    left_out = f"Left out: {few} of {len(most)} tasks with fewer than {PROMPTS} prompts without loops. " if few else ""
    return (
        f"{left_out}Speedups are over AR while decoding; brackets: 95 % intervals over prompts. Fastest: chosen by the "
        "same data, which its interval does not correct for. Indistinguishable: methods that are faster than AR and "
        "whose interval reaches the fastest. Without loops: prompts on which neither AR's answer nor the method's has "
        f"a share of repeated {NGRAM}-grams above {LOOP_SHARE}. A search before the run is not part of the speedup; it "
        "is paid back after so many decoded tokens. Searches while decoding are part of it."
    )


def _groups(results: pd.DataFrame) -> Iterator[tuple[object, pd.DataFrame]]:
    ordered = results.sort_values("toy", kind="stable")
    yield from ordered.groupby(KEY, sort=False, dropna=False)


def _evidence(group: pd.DataFrame) -> str:
    """Say how many prompts without loops, and how long answers, each task has."""
    tasks = group.groupby("task", sort=False).agg({"without_loops": "max", "tokens": "max"})
    counted = (f"{task} ({row.without_loops:.0f}, {row.tokens:.0f})" for task, row in tasks.iterrows())
    return f"Such prompts and tokens per answer now: {', '.join(counted)}."


def _ties(methods: pd.DataFrame, best: Mapping[str, Any]) -> list[str]:
    """Return the other methods faster than AR whose interval reaches the best speedup."""
    near = methods[(methods["speedup_hi"] >= best["speedup"]) & (methods["speedup"] >= 1)]
    return [name for name in dict.fromkeys(near["method"]) if name != best["method"]]


def _faster_everywhere(group: pd.DataFrame, n_tasks: int) -> Iterator[str]:
    """Yield the methods with an interval above 1 on every task, by their lowest speedup."""
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
    if row["times"] == MODELLED:
        return f"modelled at {costs_text(row['machine'])}"
    return f"{MEASURED} on {row['machine']}"
