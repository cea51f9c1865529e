"""Numbers as a typed object, and as a table row with one column per number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, get_args, get_origin

from ssd_bench.records.typed import field_types
from ssd_bench.results.quantity import QUANTITIES, Measured

COLUMNS = {"columns": True}
"""Metadata of a field with several columns: part of the row, or a mapping from columns to values."""


@dataclass(frozen=True)
class SummaryRow:
    """Numbers that form a table row or part of it; fields are named as columns.

    A number with an interval has the columns NAME, NAME_lo, NAME_hi, and NAME_n if its quantity is `counted`. Undefined
    numbers are None. The quantities of a field `numbers` are also attributes: numbers with an interval as `Measured`.
    """

    def __getattr__(self, name: str) -> Any:
        numbers = self.__dict__.get("numbers", {})
        if name not in numbers:
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return numbers[name] if QUANTITIES[name].interval else numbers[name].value

    @cached_property
    def row(self) -> dict[str, Any]:
        """Column -> value, in the order of the fields; the source of every table, CSV and frame."""
        columns: dict[str, Any] = {}
        for part in fields(self):
            value = getattr(self, part.name)
            entries = {part.name: value}
            if part.metadata.get("columns"):
                entries = value.row if isinstance(value, SummaryRow) else value or {}
            for name, number in entries.items():
                columns[name] = number.value if isinstance(number, Measured) else number
                quantity = QUANTITIES.get(name)
                if isinstance(number, Measured) and (quantity is None or quantity.interval):
                    columns |= {f"{name}_lo": number.low, f"{name}_hi": number.high}
                if quantity is not None and quantity.counted:
                    columns[f"{name}_n"] = number.n
        return columns

    def number(self, name: str) -> Measured:
        return Measured(self.row[name], self.row.get(f"{name}_lo"), self.row.get(f"{name}_hi"))


def read_json(kind: Any, value: Any) -> Any:
    """Build a dataclass, or a mapping or list of dataclasses, from JSON of `dataclasses.asdict`.

    Raises:
        TypeError, KeyError, AttributeError: a field is missing, unknown or of another type.
    """
    if isinstance(kind, type) and is_dataclass(kind):
        hints = field_types(kind)
        parts = {
            name: read_json(hints[name], part) if isinstance(part, dict | list) else part
            for name, part in value.items()
        }
        return kind(**parts)
    if get_origin(kind) is Mapping and is_dataclass(get_args(kind)[1]):
        return {key: read_json(get_args(kind)[1], part) for key, part in value.items()}
    if get_origin(kind) is Sequence and is_dataclass(get_args(kind)[0]):
        return [read_json(get_args(kind)[0], part) for part in value]
    return value
