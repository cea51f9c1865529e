"""Requirements on a row of any data source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from ssd_bench.contract.task import DataSpec
from ssd_bench.errors import ConfigError, brief, is_encodable, shortened

T = TypeVar("T")
Row = dict[str, Any]
SHOWN = 80  # characters of a faulty value that an error repeats
TEXT, ID = "a non-empty string", "an integer or a non-empty string"
LIST = "a non-empty list of non-empty strings"
EITHER = f"{TEXT}, or {LIST}"


class UnusableRow(Row):
    """The usable fields of a row with faults (at least one), so that only a run that uses the row stops.

    Access to any other field raises the first fault.
    """

    def __init__(self, fields: Mapping[str, Any], faults: Sequence[ConfigError]) -> None:
        super().__init__(fields)
        self.faults = tuple(faults)

    def __missing__(self, field: str) -> NoReturn:
        raise self.faults[0]


def usable(row: T) -> T:
    """Return the row itself; raise its first fault, a ConfigError, if it has any."""
    if isinstance(row, UnusableRow):
        raise row.faults[0]
    return row


def faults_of(row: Row) -> Sequence[ConfigError]:
    return row.faults if isinstance(row, UnusableRow) else ()


def examine_row(row: Mapping[str, Any], spec: DataSpec, where: str) -> tuple[Row, list[ConfigError]]:
    """Return a row's `id` and fields of `spec` if usable, and an error for each other field."""
    checked: Row = {}
    faults = []
    for field in ("id", *spec.fields):
        if field not in row:
            missing = shortened(f"the field is missing; the row has: {', '.join(row) or 'no field'}", 2 * SHOWN)
            faults.append(ConfigError(f"{where} {field}", None, reason=missing))
            continue
        value = row[field]
        if field in spec.lists:
            value = [value] if field in spec.singles and isinstance(value, str) else value
            fault = _list_fault(value, EITHER if field in spec.singles else LIST)
        elif field == "id":
            value = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
            fault = _text_fault(value, ID)
        else:
            fault = _text_fault(value, TEXT)
        if fault is None:
            checked[field] = value
        else:
            faults.append(ConfigError(f"{where} {field}", brief(row[field], SHOWN), fault))
    for field in spec.optional:
        value = row.get(field)
        if field in spec.lists:
            value = value or []
            fault = _list_fault(value, LIST) if value else None
        else:
            value = "" if value is None else value
            fault = None if isinstance(value, str) and is_encodable(value) else "a string"
        if fault is None:
            checked[field] = value
        else:
            faults.append(ConfigError(f"{where} {field}", brief(value, SHOWN), f"{fault}, null or nothing"))
    return checked, faults


def _text_fault(value: object, expected: str) -> str | None:
    if not isinstance(value, str) or not value.strip():
        return expected
    return None if is_encodable(value) else "Unicode text without half of a surrogate pair"


def _list_fault(value: object, expected: str) -> str | None:
    if not isinstance(value, list) or not value:
        return expected
    faults = [_text_fault(item, expected) for item in value]
    return expected if expected in faults else next(filter(None, faults), None)
