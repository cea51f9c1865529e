"""All runs of a folder as one pandas frame: what `ssd_bench.load_runs` gives."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pandas as pd

from ssd_bench.errors import ConfigError
from ssd_bench.papers.cells import Record, prepare, records, these
from ssd_bench.paths import local_path
from ssd_bench.records.pack import unpacked_folder

CALLER = 3  # frames up to whoever called `load_runs`


def frame(path: Path | str) -> pd.DataFrame:
    """As `ssd_bench.load_runs`."""
    asked = local_path("path", path)
    if not unpacked_folder(asked).is_dir():
        raise ConfigError("path", str(path), "a folder of runs, or the folder of one")
    if (asked / "run.json").is_file():
        found = these([asked])
    else:
        found = records(asked)
        prepare(found)
    rows = []
    for record in found:
        if record.error is None:
            rows.append(_row(record))
        else:
            warnings.warn(f"left out {record.path}: {record.error}", stacklevel=CALLER)
    return pd.DataFrame(rows)


def _row(record: Record) -> dict[str, Any]:
    """The summary, as the report's CSV has it, and the settings."""
    told = (record.header.get("config") or {}).get("method") or {}
    settings = {name: value for name, value in told.items() if name not in ("_target_", "name")}
    return {**record.summary, "warnings": "; ".join(record.summary["warnings"]), "settings": settings}
