"""The families of drafts on one model: earlier text, windows of the cache, skipped sublayers, and a router over them.

Speedups are over AR of the same run, with the share of repeated 8-grams of the outputs: text that repeats itself is
easy to draft, above all by looking it up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from ssd_bench import metrics
from ssd_bench.metrics import LOOP_SHARE, NGRAM
from ssd_bench.metrics.text import ABSENT, DECODE, END_TO_END, format_interval, format_lossless, format_percent
from ssd_bench.papers.ours.cells import Replication, ShownCell

FAMILIES = "ssd_bench_families"
"""Name of the experiment."""
AR, HF = "AR", "Hugging Face generate"
WITHOUT = "speedup_without_loops"
REPEATED, WITHOUT_LOOPS = f"repeated {NGRAM}-grams", "decode, without loops"

COLUMNS = ("model", "task", "method", DECODE, END_TO_END, "M", "α", REPEATED, WITHOUT_LOOPS, "equal to AR")


def table(replication: Replication) -> pd.DataFrame:
    """Return the table of every task and method, AR first, then Hugging Face where a run has it.

    Returns:
        Texts: the model that ran; with 95 % intervals both speedups (for an excluded run the reason), M, α, the share
        of repeated 8-grams, and the decode speedup over prompts without loops with their number; outputs equal to AR's.
    """
    tasks: dict[tuple[str, str], list[ShownCell]] = {}
    for cell in replication.shown_cells():
        if cell.is_readable:
            tasks.setdefault((cell["model"], cell["task"]), []).append(cell)
    rows = [row for cells in tasks.values() for row in (*_baselines(cells), *map(_method, cells))]
    return pd.DataFrame(rows, columns=COLUMNS if rows else None).fillna(ABSENT)


def note() -> str:
    """Return sentences that explain the columns."""
    return (
        f"Speedups: over AR on the same prompts in the same run. Repeated {NGRAM}-grams: 1 - distinct / all of an "
        "output, mean over prompts; in the row of AR, of AR's outputs. Decode, without loops: decode speedup over the "
        f"n prompts on which no output of either arm has a share above {LOOP_SHARE:g}. Intervals: 95 % over prompts. "
        f"{HF}: plain decoding of the same weights, in one of the runs."
    )


def _baselines(cells: Sequence[ShownCell]) -> Iterator[dict[str, str]]:
    """Yield the rows of AR and of Hugging Face, each from the first run of the task that has it."""
    plain = next((cell for cell in cells if cell.summary["n_pairs"]), None)
    if plain is not None:
        yield _head(plain, AR) | {
            DECODE: "1",
            END_TO_END: "1",
            "M": "1",
            REPEATED: format_interval(plain.summary, "ar_repetition", 3),
            WITHOUT_LOOPS: "1",
        }
    third = next((cell for cell in cells if "ar_over_hf" in cell.summary), None)
    if third is not None:
        summary = third.summary
        without_loops = metrics.speedup_without_loops(third.run.prompts, ("ar", "hf"))
        yield _head(third, HF) | {
            DECODE: _inverse(summary, "ar_over_hf"),
            END_TO_END: _inverse(summary, "ar_over_hf_e2e"),
            REPEATED: format_interval(summary, "hf_repetition", 3),
            WITHOUT_LOOPS: f"{measured_text(without_loops)} (n = {without_loops.n})",
            "equal to AR": format_percent(summary["hf_output_exact"]),
        }


def _method(cell: ShownCell) -> dict[str, str]:
    summary = cell.summary
    without_loops = f"{format_interval(summary, WITHOUT)} (n = {summary[f'{WITHOUT}_n']})"
    return result_columns(cell) | {
        REPEATED: format_interval(summary, "method_repetition", 3),
        WITHOUT_LOOPS: ABSENT if cell.exclusion else without_loops,
        "equal to AR": format_lossless(summary),
    }


def result_columns(cell: ShownCell) -> dict[str, str]:
    """Return the columns that this project's tables share: model, task, method, both speedups, M and α."""
    summary = cell.summary
    return _head(cell, cell["method"]) | {
        DECODE: f"excluded: {cell.exclusion}" if cell.exclusion else format_interval(summary, "speedup"),
        END_TO_END: ABSENT if cell.exclusion else format_interval(summary, "speedup_e2e"),
        "M": format_interval(summary, "M"),
        "α": format_interval(summary, "alpha", 3),
    }


def _head(cell: ShownCell, method: str) -> dict[str, str]:
    return {"model": cell["model"], "task": cell["task"], "method": method}


def _inverse(summary: Mapping[str, Any], name: str) -> str:
    """Return 1 / a ratio as text; the lower end of its interval is 1 / the upper end of the ratio's, and vice versa."""
    ends = {"x": name, "x_lo": f"{name}_hi", "x_hi": f"{name}_lo"}
    return format_interval({new: 1 / summary[old] if summary[old] else None for new, old in ends.items()}, "x")


def measured_text(number: metrics.Measured, digits: int = 2) -> str:
    """Return a number with its interval."""
    return format_interval({"x": number.value, "x_lo": number.low, "x_hi": number.high}, "x", digits)
