"""Rows of a run that needs all of them."""

from __future__ import annotations

from typing import Any

from ssd_bench.contract.task import DataSource, DataSpec
from ssd_bench.data.rows import usable


def used(source: DataSource, spec: DataSpec) -> list[dict[str, Any]]:
    """Return all rows, or raise the first unusable one's fault."""
    return [usable(row) for row in source.rows(spec)]
