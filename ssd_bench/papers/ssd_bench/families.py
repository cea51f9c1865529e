"""Families of drafts on one model: earlier text, windows of the cache, skipped sublayers, and their router.

Speedups are over AR of the same run, with the outputs' share of repeated 8-grams, which are easy to draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from ssd_bench.papers.ours.cells import Replication, ShownCell
from ssd_bench.results.prompt_table import PromptTable
from ssd_bench.results.quantity import Measured
from ssd_bench.results.repetition import LOOP_SHARE, NGRAM
from ssd_bench.results.text import ABSENT, DECODE, END_TO_END, format_lossless, format_measured, format_percent

FAMILIES = "ssd_bench_families"
"""Name of the experiment."""
AR, HF = "AR", "Hugging Face generate"
REPEATED, WITHOUT_LOOPS = f"repeated {NGRAM}-grams", "decode, without loops"

COLUMNS = ("model", "task", "method", DECODE, END_TO_END, "M", "α", REPEATED, WITHOUT_LOOPS, "equal to AR")


def table(replication: Replication) -> pd.DataFrame:
    """Return the table of every task and method, AR first, then Hugging Face if run.

    Returns:
        Texts: the model that ran; with 95 % intervals both speedups (for an excluded run the reason), M, α, share of
        repeated 8-grams, and the decode speedup over prompts without loops, with their number; outputs equal to AR's.
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
    plain = next((cell for cell in cells if cell.summary.n_pairs), None)
    if plain is not None:
        yield _head(plain, AR) | {
            DECODE: "1",
            END_TO_END: "1",
            "M": "1",
            REPEATED: format_measured(plain.summary.repetition["ar_repetition"], 3),
            WITHOUT_LOOPS: "1",
        }
    third = next((cell for cell in cells if cell.summary.has_hf), None)
    if third is not None:
        over_hf = third.summary
        without_loops = PromptTable(third.run.prompts).number("speedup_without_loops", ("hf", "ar"))
        yield _head(third, HF) | {
            DECODE: _inverse(over_hf.ar_over_hf),
            END_TO_END: _inverse(over_hf.ar_over_hf_e2e),
            REPEATED: format_measured(third.summary.repetition["hf_repetition"], 3),
            WITHOUT_LOOPS: f"{format_measured(without_loops)} (n = {without_loops.n})",
            "equal to AR": format_percent(over_hf.hf_output_exact),
        }


def _method(cell: ShownCell) -> dict[str, str]:
    summary, without_loops = cell.summary, cell.summary.speedup_without_loops
    return result_columns(cell) | {
        REPEATED: format_measured(summary.repetition["method_repetition"], 3),
        WITHOUT_LOOPS: ABSENT if cell.exclusion else f"{format_measured(without_loops)} (n = {without_loops.n})",
        "equal to AR": format_lossless(summary.row),
    }


def result_columns(cell: ShownCell) -> dict[str, str]:
    """Return the columns shared by our tables: model, task, method, both speedups, M and α."""
    summary = cell.summary
    return _head(cell, cell["method"]) | {
        DECODE: f"excluded: {cell.exclusion}" if cell.exclusion else format_measured(summary.speedup),
        END_TO_END: ABSENT if cell.exclusion else format_measured(summary.speedup_e2e),
        "M": format_measured(summary.M),
        "α": format_measured(summary.alpha, 3),
    }


def _head(cell: ShownCell, method: str) -> dict[str, str]:
    return {"model": cell["model"], "task": cell["task"], "method": method}


def _inverse(ratio: Measured) -> str:
    """Return 1 / a ratio as text; the interval's ends swap."""
    value, high, low = (1 / end if end else None for end in (ratio.value, ratio.low, ratio.high))
    return format_measured(Measured(value, low, high))
