"""Requirements on a row of any data source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

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


def examine_row(
    row: Mapping[str, Any],
    fields: Iterable[str],
    where: str,
    optional: Iterable[str] = (),
    lists: Iterable[str] = (),
    singles: Iterable[str] = (),
) -> tuple[Row, list[ConfigError]]:
    """Return a row's usable fields, and an error for each other field.

    Args:
        fields: fields that must be non-empty strings; an integer `id` becomes its decimal text.
        where: place of the row, for errors.
        optional: strings; null or missing ones become "".
        lists: members of `fields` that must be non-empty lists of non-empty strings instead, and members of `optional`
            that must be lists.
        singles: members of `lists` in which a single string stands for a list of it.
    """
    checked: Row = {}
    faults = []
    listed, single = frozenset(lists), frozenset(singles)
    for field in fields:
        value = original = row.get(field)
        if field in single and isinstance(value, str):
            value = [value]
        if field == "id" and isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if field not in row:
            missing = shortened(f"the field is missing; the row has: {', '.join(row) or 'no field'}", 2 * SHOWN)
            faults.append(ConfigError(f"{where} {field}", None, reason=missing))
            continue
        if field in listed:
            expected = _list_fault(value, EITHER if field in single else LIST)
        else:
            expected = _text_fault(value, ID if field == "id" else TEXT)
        if expected is None:
            checked[field] = value
        else:
            faults.append(ConfigError(f"{where} {field}", brief(original, SHOWN), expected))
    for field in optional:
        value = row.get(field)
        if field in listed:
            fault = _list_fault(value) if value else None
            if fault is None:
                checked[field] = list(value or ())
            else:
                faults.append(ConfigError(f"{where} {field}", brief(value, SHOWN), f"{fault}, null or nothing"))
        elif value is None or value == "":
            checked[field] = ""
        elif isinstance(value, str) and is_encodable(value):
            checked[field] = value
        else:
            faults.append(ConfigError(f"{where} {field}", brief(value, SHOWN), "a string, null or nothing"))
    return checked, faults


def _text_fault(value: object, expected: str = TEXT) -> str | None:
    if not isinstance(value, str) or not value.strip():
        return expected
    return None if is_encodable(value) else "Unicode text without half of a surrogate pair"


def _list_fault(value: object, expected: str = LIST) -> str | None:
    if not isinstance(value, list) or not value:
        return expected
    faults = [_text_fault(item, expected) for item in value]
    return expected if expected in faults else next(filter(None, faults), None)
