"""Results of `ssd-bench shapes`: passes of models of known sizes, and speedups at the papers' acceptance, on a GPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def read_gpu_results(folder: Path) -> list[dict[str, Any]]:
    """Return the results in a folder, one per model; an empty list if it has none."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.json"))]


def speedup_over_hf(result: dict[str, Any]) -> float | None:
    """Return how many times as fast AR is as Hugging Face `generate`; None if both did not fit in the memory."""
    return None if result["hf"] is None else float(result["hf"]["ms"] / result["ar"]["ms"])


def imposed_speedups(results: Sequence[dict[str, Any]], paper: str, table: str) -> list[dict[str, Any]]:
    """Return the rows on a table of a paper: its speedup (`theirs`) and that measured at its acceptance (`speedup`)."""
    return [
        row for result in results for row in result["rows"] if (row["of_paper"], row["of_exhibit"]) == (paper, table)
    ]
