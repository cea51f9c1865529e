"""Results of all methods as one table: method x task x model x machine, with measured and modelled speedups.

Rows come from this folder's records and from others' files: `results.csv` of a report, in a folder `results` under the
folder of runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ssd_bench.papers.ours.cells import Replication
from ssd_bench.papers.ours.match import order_scales
from ssd_bench.papers.ssd_bench.drafts import DRAFTS
from ssd_bench.papers.ssd_bench.figures import COMPARISON
from ssd_bench.papers.ssd_bench.real import REAL, REAL_MEASURED
from ssd_bench.report.verdicts import read_files
from ssd_bench.results.folder import Record
from ssd_bench.results.models import ModelRan
from ssd_bench.results.summary import Summary
from ssd_bench.results.text import ABSENT, TOY, costs_text, format_interval, format_number, format_percent

FOLDER = "results"
MEASURED, MODELLED = "measured", "modelled"
ENDS = ("", "_lo", "_hi")
"""Ends of the columns of a number: value, and bounds of its interval."""
SHORTEST_SEARCH_MS = 10.0
"""Shorter preparations before a run are no search."""
COLUMNS = (
    *("method", "task", "model", "params", "toy", "machine", "times", "n", "without_loops", "tokens", "M", "alpha"),
    *(f"{name}{end}" for name in ("speedup", "end_to_end") for end in ENDS),
    *("overhead", "search_s", "break_even", "equal"),
)
"""Columns of `result_table`, which docs/glossary.md explains."""


def result_table(replications: Sequence[Replication], records: Sequence[Record] = ()) -> pd.DataFrame:
    """Return one row per run and kind of times, with `COLUMNS`; excluded runs are left out.

    Args:
        records: all records of the folder. Records outside every experiment, as of a user's method, are added; under a
            comparison's task if they have its conditions (prompts, model, hardware, choice of tokens).
    """
    rows: list[dict[str, Any]] = []
    task_names: dict[str, set[str]] = {}
    for replication in comparisons(replications):
        for cell in replication.shown_cells():
            if cell.record is not None and cell.is_readable and not cell.exclusion:
                task_names.setdefault(cell.record.digest.conditions, set()).add(cell["task"])
                rows += _rows(cell.record, cell["method"], cell["task"])
    of_seeds = (made for replication in replications for made in replication.of_all_seeds)
    shown = {cell.path for made in of_seeds for cell in made.recorded_cells()}
    for record in records:
        # searched_share 0: no search ran, so the method itself was not timed
        if record.path not in shown and not record.error and record.summary.searched_share != 0:
            for task in sorted(task_names.get(record.digest.conditions, {record.summary.task})):
                rows += _rows(record, record.summary.method, task)
    return _typed(pd.DataFrame(rows, columns=list(COLUMNS)).drop_duplicates(ignore_index=True))


def comparisons(replications: Sequence[Replication]) -> list[Replication]:
    """Return the runs of every experiment that compares methods, at the scale nearest to the papers'."""
    compared = (comparison(replications, name) for name in (REAL, REAL_MEASURED, COMPARISON, DRAFTS))
    return [replication for replication in compared if replication is not None]


def comparison(replications: Sequence[Replication], name: str = COMPARISON) -> Replication | None:
    """Return an experiment's runs at the available scale nearest to the papers'; None without readable runs."""
    by_scale = {
        replication.scale: replication
        for replication in replications
        if replication.experiment.name == name and any(cell.is_readable for cell in replication.cells)
    }
    return by_scale[order_scales(by_scale)[0]] if by_scale else None


def _rows(record: Record, method: str, task: str) -> Iterator[dict[str, Any]]:
    """Yield a run's measured row, if its timings are reliable, and modelled row, if its work is counted."""
    summary, digest = record.summary, record.digest
    if summary.speedup.value is None:
        return
    model = ModelRan.of(record.header)
    row: dict[str, Any] = {
        "method": method,
        "task": task,
        "model": model.name,
        "params": model.params,
        "toy": model.toy,
        "n": summary.n_prompts,
        "without_loops": summary.speedup_without_loops.n,
        "tokens": digest.ar_emitted / summary.n_pairs + 1,  # the prefill emits the first token
        "M": summary.M.value,
        "alpha": summary.alpha.value,
        "equal": _share_equal(summary),
    }
    machine = f"{record.header.machine_name}, {summary.dtype}"
    measured = {"machine": machine, "times": MEASURED, "overhead": summary.overhead}
    if not digest.timing.contaminated:
        yield row | measured | _numbers(summary.row, "speedup", "speedup_e2e", "prepare_ms", "break_even_tokens")
    names = ("speedup_modelled", "", "modelled_prepare_ms", "modelled_break_even_tokens")
    times = {"machine": summary.modelled_on, "times": MODELLED, "overhead": summary.modelled_overhead}
    yield row | times | _numbers(summary.row, *names)


def _numbers(row: Mapping[str, Any], speedup: str, end_to_end: str, prepare_ms: str, even: str) -> dict[str, Any]:
    ms = row[prepare_ms] if (row[prepare_ms] or 0) >= SHORTEST_SEARCH_MS else None
    columns = {"search_s": ms / 1000 if ms else None, "break_even": row[even] if ms else None}
    for name, column in (("speedup", speedup), ("end_to_end", end_to_end)):
        for end in ENDS:
            columns[f"{name}{end}"] = row.get(f"{column}{end}")
    return columns


def _share_equal(summary: Summary) -> float | None:
    checked = summary.lossless_identical + summary.lossless_tie + summary.lossless_bug
    return summary.lossless_identical / checked if checked else None


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    texts = ("method", "task", "model", "machine", "times", "n", "without_loops")
    return frame.astype({name: "float64" for name in COLUMNS if name not in texts} | {"toy": "bool"})


def read_results(runs_dir: Path) -> pd.DataFrame:
    """Read the results in files under a folder of runs, as `result_table`.

    Raises:
        ConfigError: as `read_files`.
    """
    frames = [_typed(frame) for _, frame in read_files(runs_dir, FOLDER, COLUMNS)]
    return pd.concat(frames, ignore_index=True) if frames else _typed(pd.DataFrame(columns=list(COLUMNS)))


def readable_results(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the results as texts, real models first."""
    ordered = frame.sort_values(["toy", "model", "task", "times"], kind="stable")
    rows = [
        {
            "method": row["method"],
            "task": row["task"],
            "model": model_text(row),
            "speedup, decode": format_interval(row, "speedup"),
            "times": f"modelled at {costs_text(row['machine'])}" if row["times"] == MODELLED else MEASURED,
            "machine": row["machine"] if row["times"] == MEASURED else ABSENT,
            "end to end": format_interval(row, "end_to_end"),
            "M": format_number(row["M"]),
            "α": format_number(row["alpha"], 3),
            "overhead": format_percent(row["overhead"]),
            "search before": search_text(row),
            "tokens per answer": format_number(row["tokens"], 0),
            "n": str(row["n"]),
            "without loops": str(row["without_loops"]),
            "equal to AR": format_percent(row["equal"], 0),
        }
        for row in named_rows(ordered)
    ]
    return pd.DataFrame(rows)


def named_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [dict(zip(frame.columns, values)) for values in frame.itertuples(index=False)]


def model_text(row: Mapping[str, Any]) -> str:
    """Return a row's model with its size, marked if this project trained it."""
    params = row["params"]
    text = ModelRan(str(row["model"]), None if pd.isna(params) else int(params)).text
    return f"{text} ({TOY})" if row["toy"] else text


def search_text(row: Mapping[str, Any]) -> str:
    """Return the duration of a search before a run, and after how many tokens it is paid back; a dash without one."""
    seconds, even = row["search_s"], row["break_even"]
    if pd.isna(seconds):
        return ABSENT
    paid = "never paid back" if pd.isna(even) else f"paid back after {even:,.0f} tokens"
    return f"{seconds:,.3g} s, {paid}"
