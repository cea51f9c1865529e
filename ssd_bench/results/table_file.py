"""`results.parquet` of a run: its quantities per prompt, per domain and for the run, for any reader of Parquet.

It is made from the record's tables when the run ends. Intervals are over prompts: run-to-run variation is a property of
a folder of runs.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ssd_bench.paths import write_atomic
from ssd_bench.records.files import RESULTS
from ssd_bench.records.reader import Run, load_run
from ssd_bench.results.modelled import reference_of
from ssd_bench.results.numbers import numbers, prompt_numbers
from ssd_bench.results.prompt_table import PromptTable
from ssd_bench.results.quality import lossless_counts
from ssd_bench.results.quantity import QUANTITIES
from ssd_bench.results.rows import arm_rows

OF_RUN = ("prepare_ms", "modelled_prepare_ms", "break_even_tokens", "modelled_break_even_tokens")
"""Quantities of a run only."""
VERDICTS = ("identical", "tie", "bug", "unchecked")
_TEXTS = ("level", "run_id", "model", "method", "task", "device", "modelled_on", "domain", "prompt_id")
_COUNTS = ("prompt_index", "n_prompts", *(f"lossless_{verdict}" for verdict in VERDICTS))
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in _TEXTS),
        *((name, pa.int64()) for name in _COUNTS),
        *(
            (f"{key}{end}", pa.float64())
            for key, quantity in QUANTITIES.items()
            for end in (("", "_low", "_high") if quantity.interval else ("",))
        ),
    ]
)
"""Columns, equal in every file. `level` is run, domain or prompt."""


def complete_results(run_dir: Path) -> None:
    """Write a missing `results.parquet` of a complete run: a job may have ended between the record and this file."""
    if not (run_dir / RESULTS).is_file():
        content = io.BytesIO()
        pq.write_table(results_table(load_run(run_dir)), content, compression="zstd")
        write_atomic(run_dir / RESULTS, content.getvalue())


def results_table(run: Run) -> pa.Table:
    """Return the rows of a run, its domains and its prompts, in this order; columns as `SCHEMA`."""
    header, table = run.header, PromptTable.of(run)
    facts = {"run_id": header.run_id, "method": header.method}
    facts |= {"model": header.model.name, "task": header.task.name}
    facts |= {"device": header.device_name, "modelled_on": reference_of(header)}
    rows = [_summed(run, table), *_domain_rows(run, table), *_prompt_rows(run, table)]
    return pa.Table.from_pylist([facts | row for row in rows], SCHEMA)


def _summed(run: Run, table: PromptTable) -> dict[str, Any]:
    row: dict[str, Any] = {"level": "run", "n_prompts": run.prompts["prompt_index"].nunique()} | _lossless(run.prompts)
    for key, number in numbers(run, table).items():
        row |= {key: number.value, f"{key}_low": number.low, f"{key}_high": number.high}
    return row


def _domain_rows(run: Run, table: PromptTable) -> Iterator[dict[str, Any]]:
    for domain, prompts in run.prompts.groupby("domain", sort=False):
        kept = run.steps["prompt_index"].isin(prompts["prompt_index"])
        part = replace(run, prompts=prompts, steps=run.steps[kept])
        row = _summed(part, table.restrict(prompts["prompt_index"]))
        yield row | {"level": "domain", "domain": domain} | dict.fromkeys(OF_RUN)


def _prompt_rows(run: Run, table: PromptTable) -> Iterator[dict[str, Any]]:
    frame = prompt_numbers(run, table, table.defined)
    for index, prompts in run.prompts.groupby("prompt_index"):
        first = prompts.iloc[0]
        names = {"prompt_index": index, "prompt_id": first["prompt_id"], "domain": first["domain"]}
        row: dict[str, Any] = {"level": "prompt", "n_prompts": 1} | names | _lossless(prompts)
        if index in frame.index:
            row |= {str(key): value for key, value in frame.loc[index].dropna().items()}
        yield row


def _lossless(prompts: pd.DataFrame) -> dict[str, int]:
    counts = lossless_counts(arm_rows(prompts, "method"))
    return {f"lossless_{verdict}": counts[verdict] for verdict in VERDICTS}
