"""Rows: written as a user's files, and read as a run that needs all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ssd_bench.contract.task import DataSource, DataSpec
from ssd_bench.data import LocalSource
from ssd_bench.data.rows import usable


def write_rows(path: Path, *rows: object) -> Path:
    """Write a JSONL file; texts are whole lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def local_source(root: Path, files: Mapping[str, Sequence[object]]) -> LocalSource:
    """Write files NAME.jsonl into a folder."""
    for name, rows in files.items():
        write_rows(root / f"{name}.jsonl", *rows)
    return LocalSource(root)


def used(source: DataSource, spec: DataSpec) -> list[dict[str, Any]]:
    """Return all rows, or raise the first unusable one's fault."""
    return [usable(row) for row in source.rows(spec)]
