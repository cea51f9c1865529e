"""All runs of a folder as one pandas frame, for `ssd_bench.load_runs`."""

from __future__ import annotations

import warnings
from pathlib import Path

import pandas as pd

from ssd_bench.paths import reference_hint
from ssd_bench.records.pack import records_folder
from ssd_bench.results.folder import load_records, prepare_records, records

CALLER = 3  # stack frames from the warning up to the caller of `load_runs`


def runs_frame(path: Path | str) -> pd.DataFrame:
    """Return a folder's runs as a frame, one row per run; see `ssd_bench.load_runs`."""
    folder = records_folder("path", path)
    if (folder / "run.json").is_file():
        run_records = load_records([folder])
    else:
        run_records = records(folder)
        if not run_records and (hint := reference_hint(folder)):
            warnings.warn(f"no complete run in {folder}{hint.replace('runs_dir=', '')}", stacklevel=CALLER)
        prepare_records(run_records)
    rows = []
    for record in run_records:
        if record.error is None:
            texts = {"warnings": "; ".join(record.summary.warnings), "settings": record.header.settings}
            rows.append(record.summary.row | texts)
        else:
            warnings.warn(f"left out {record.path}: {record.error}", stacklevel=CALLER)
    return pd.DataFrame(rows)
