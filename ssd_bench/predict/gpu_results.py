"""Results of `ssd-bench shapes`: passes of known model sizes, and speedups at imposed acceptance, on a GPU."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from ssd_bench.cost.roofline import PREFIX, gpu_named, simulated_names
from ssd_bench.errors import ConfigError
from ssd_bench.predict.acceptance import ReportedSpeedup, Share, reported_speedups

HF_TOKENS = 32
"""Tokens that Hugging Face `generate` decodes in `shapes`."""
NEEDED = {"machine", "model", "context", "tokens", "pass_ms", "search", "rows"}
"""Keys of every result."""


def read_gpu_results(folder: Path) -> dict[Path, dict[str, Any]]:
    """Read the results in a folder, one file per model.

    Raises:
        ConfigError: a damaged file.
    """
    results: dict[Path, dict[str, Any]] = {}
    for path in sorted(folder.rglob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError("shapes", str(path), f"a result of `shapes` ({error})") from error
        if not isinstance(content, dict) or not content.keys() >= NEEDED:
            raise ConfigError("shapes", str(path), f"a result of `shapes`, with {', '.join(sorted(NEEDED))}")
        results[path] = content
    return results


def sheet_of(gpu: str) -> str:
    """Return the simulated GPU with a measured one's vendor name, such as NVIDIA H200.

    Raises:
        ConfigError: there is none.
    """
    for name in simulated_names():
        if gpu_named(name).name.startswith(gpu):
            return name
    raise ConfigError("shapes", gpu, f"measurements of a GPU with a data sheet: {PREFIX}<gpu> in conf/hardware")


def speedup_over_hf(result: dict[str, Any]) -> float | None:
    """Return AR's speed over Hugging Face `generate`'s; None if both did not fit in memory."""
    return None if result["hf"] is None else float(result["hf"]["ms"] / result["ar"]["ms"])


def stated_for(row: dict[str, Any], n_layers: int) -> Share | None:
    """Return the stated share of the paper's drafts that a row measured; None if no source states its α, M and share.

    A row at another α, M or share only tests costs.
    """
    stated = _stated_speedups().get(row["number"])
    if stated is None or stated.share is None:
        return None
    same_share = round(2 * n_layers * row["skipped"]) == round(2 * n_layers * stated.share.value)
    return stated.share if same_share and (row["alpha"], row["M"]) == (stated.alpha, stated.tokens) else None


@cache
def _stated_speedups() -> dict[str, ReportedSpeedup]:
    return {row.number.id: row for row in reported_speedups() if not row.missing}
