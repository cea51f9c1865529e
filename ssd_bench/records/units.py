"""Units of an unfinished run: a file for each prompt and repeat, checked when read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from ssd_bench.errors import ConfigError
from ssd_bench.records.consistency import faults
from ssd_bench.records.files import read_json, table_frame
from ssd_bench.records.schema import SCHEMAS, Unit, merge

SEAL = "sha256"
"""Key of a unit's SHA-256 over its other keys."""
FAULTS = (ConfigError, ValueError, TypeError, KeyError, AttributeError, pa.ArrowException)
"""Errors of reading a damaged unit."""


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):  # numpy and torch scalars
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be written to a record: {value!r}")


def dump(value: Any, indent: int | None = None) -> bytes:
    return json.dumps(value, indent=indent, default=_plain, ensure_ascii=False).encode()


def sealed(part: Mapping[str, Any]) -> bytes:
    """Return a unit as JSON with its SHA-256: a damaged file may still be JSON."""
    return dump({**part, SEAL: hashlib.sha256(dump(part)).hexdigest()})


def read_sealed(file: Path) -> dict[str, Any]:
    """Read a unit as it was written.

    Raises:
        ConfigError: missing or damaged; names the path.
        ValueError: changed since.
    """
    part = read_json(file)
    seal = part.pop(SEAL, None)
    if seal != hashlib.sha256(dump(part)).hexdigest():
        raise ValueError("its SHA-256 is not that of its content")
    return part


def read_unit(file: Path, header: Mapping[str, Any]) -> dict[str, Any]:
    """Read and check a finished unit of a run with this run.json.

    Raises:
        FAULTS: the unit is damaged, or its rows contradict each other.
    """
    part = read_sealed(file)
    unit, seq, state = (part["prompt_index"], part["repeat"]), part["seq"], part["state"]
    if file.name != unit_name(unit):
        raise ValueError(f"it is of the unit in {unit_name(unit)}")
    if not isinstance(seq, int) or not isinstance(state, str | None):
        raise ValueError("seq or state")
    tables = merge([part])
    rows = tables["prompts"]
    if not len(rows) or {*zip(rows["prompt_index"].to_pylist(), rows["repeat"].to_pylist())} != {unit}:
        raise ValueError("rows of another unit, or none")
    frames = {name: table_frame(table, SCHEMAS[name]) for name, table in tables.items()}
    of_unit = {key: value for key, value in header.items() if key != "domains"}  # the other prompts are not missing
    for name, key, text in faults(of_unit, frames):
        raise ValueError(f"{name}: {text}" if key is None else f"{name}: arm {key[3]}: {text}")
    return part


def unit_name(unit: Unit) -> str:
    return "{:05d}-{:03d}.json".format(*unit)
