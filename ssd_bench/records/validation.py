"""All faults of a record: header against its JSON Schema, tables against their schemas, rows against each other.

`load_run` refuses a record at its first fault; this lists all, for records of other programs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from ssd_bench.errors import shortened
from ssd_bench.records.consistency import CHANGED, faults
from ssd_bench.records.description import EXTENSION, TYPES, description, header_schema, type_name
from ssd_bench.records.fault import answer_name
from ssd_bench.records.files import open_regular, table_frame
from ssd_bench.records.schema import ANSWER, DIGESTS, SCHEMAS
from ssd_bench.settings import WORDS

HEADER = "run.json"
UNKNOWN = "it is unknown"
HARMLESS = (CHANGED, UNKNOWN)
"""Faults that still allow checks of the rows."""
NOUNS = {TYPES[kind]: noun for kind, noun in WORDS.items()} | {"object": "an object", "array": "a list"}
LARGE = {pa.large_string(): pa.string(), pa.string_view(): pa.string()}
"""Arrow type -> type in the schemas that a Parquet file stores in the same way."""


@dataclass(frozen=True)
class RecordFault:
    """A fault of a record.

    Attributes:
        file: name in the record's folder.
        place: key of run.json, column, or prompt and arm; empty: the whole file.
        text: what is wrong.
        expected: valid values; empty where `text` has both sides.
    """

    file: str
    place: str
    text: str
    expected: str = ""

    def __str__(self) -> str:
        expected = f"; expected {self.expected}" if self.expected else ""
        return f"{': '.join(filter(None, (self.file, self.place, self.text)))}{expected}"


def record_faults(path: Path) -> list[RecordFault]:
    """Return every fault of the record in a folder.

    Rows are checked against each other and valid keys of run.json if every table has the right form.
    """
    header, listed = _read_header(path / HEADER)
    if header is None:
        return listed
    listed += dict.fromkeys(header_schema_faults(header))
    faulty = {re.split(r"[.\[]", fault.place)[0] for fault in listed if fault.text not in HARMLESS}
    sound = {key: value for key, value in header.items() if key not in faulty}
    digests = sound.get(DIGESTS) or {}
    tables: dict[str, pa.Table] = {}
    table_faults: list[RecordFault] = []
    for name in SCHEMAS:
        table_faults += _table_faults(path / f"{name}.parquet", digests.get(name), tables)
    listed += table_faults
    if all(fault.text in HARMLESS for fault in table_faults):
        frames = {name: table_frame(table, SCHEMAS[name]) for name, table in tables.items()}
        for name, key, text in faults(sound, frames):
            listed.append(RecordFault(f"{name}.parquet", "" if key is None else answer_name(key), text))
    return listed


def _read_header(file: Path) -> tuple[dict[str, Any] | None, list[RecordFault]]:
    """Return the content of run.json, or None, and the file's own faults."""
    numbers: list[str] = []  # NaN and infinities, which Python writes and JSON does not have

    def zero(name: str) -> float:
        numbers.append(name)
        return 0.0

    try:
        with open_regular(file) as source:
            content = json.loads(source.read(), parse_constant=zero)
    except FileNotFoundError:
        return None, [RecordFault(HEADER, "", "the file is missing", "the header of the record")]
    except (OSError, ValueError, RecursionError) as error:
        return None, [RecordFault(HEADER, "", f"it cannot be read ({error})", "a JSON file in UTF-8")]
    if not isinstance(content, dict):
        return None, [RecordFault(HEADER, "", f"it is {_shown(content)}", "an object")]
    return content, [RecordFault(HEADER, "", f"it contains {name}", "numbers that JSON has") for name in numbers]


def header_schema_faults(header: Mapping[str, Any]) -> Iterator[RecordFault]:
    """Yield faults of run.json against its JSON Schema."""
    for error in sorted(_validator().iter_errors(header), key=lambda error: [*map(str, error.absolute_path)]):
        for place, text, expected in _explained(error):
            yield RecordFault(HEADER, place, text, expected)


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(header_schema())


def _explained(error: ValidationError) -> Iterator[tuple[str, str, str]]:
    place = ".".join(f"[{part}]" if isinstance(part, int) else str(part) for part in error.absolute_path)
    place, value = place.replace(".[", "["), error.instance
    dot = "." if place else ""
    match error.validator:
        case "anyOf":  # an object or null: the faults of the object are what its writer needs to know
            for inner in error.context or ():
                if inner.schema_path[0] == 0:
                    yield from _explained(inner)
        case "required":
            for key in error.validator_value:
                if key not in value:
                    doc = str(error.schema["properties"][key].get("description", "a value")).rstrip(".")
                    yield f"{place}{dot}{key}", "it is missing", doc
        case "additionalProperties" if isinstance(error.validator_value, bool):
            keys = [*error.schema["properties"]]
            expected = f"one of {', '.join(keys)}" + ("" if place else f", or a key that begins with {EXTENSION}")
            for key in [key for key in value if key not in keys and not (key.startswith(EXTENSION) and not place)]:
                yield f"{place}{dot}{key}", UNKNOWN, expected
        case "type":
            kinds = [error.validator_value] if isinstance(error.validator_value, str) else error.validator_value
            yield place, f"it is {_shown(value)}", " or ".join(NOUNS[kind] for kind in kinds)
        case "enum":
            yield place, f"it is {_shown(value)}", f"one of {', '.join(map(str, error.validator_value))}"
        case "const":
            yield place, f"it is {_shown(value)}", str(error.validator_value)
        case "minimum" | "maximum":
            sign = ">=" if error.validator == "minimum" else "<="
            yield place, f"it is {_shown(value)}", f"a number {sign} {error.validator_value}"
        case "pattern":
            yield place, f"it is {_shown(value)}", f"a text that matches {error.validator_value}"
        case _:
            yield place, shortened(error.message, 200), f"{error.validator} {error.validator_value}"


def _shown(value: object) -> str:
    return shortened(json.dumps(value, ensure_ascii=False, default=str))


def _table_faults(file: Path, digest: object, tables: dict[str, pa.Table]) -> Iterator[RecordFault]:
    """Yield faults of one table's file, without rows against other tables; add the table to `tables` by name."""
    schema = SCHEMAS[file.stem]
    try:
        with open_regular(file) as source:
            actual = hashlib.file_digest(source, "sha256").hexdigest()  # type: ignore[arg-type]  # as in consistency
            table = tables[file.stem] = pq.read_table(source, partitioning=None)
    except FileNotFoundError:
        yield RecordFault(file.name, "", "the file is missing", f"a table with {', '.join(schema.names)}")
        return
    except (OSError, ValueError, pa.ArrowException) as error:
        yield RecordFault(file.name, "", f"it cannot be read ({shortened(str(error), 200)})", "a Parquet file")
        return
    if digest is not None and digest != actual:
        yield RecordFault(file.name, "", CHANGED, f"the file with {_shown(digest)} under {DIGESTS}")
    names = table.column_names
    for name in sorted(set(names) - set(schema.names)):
        if not name.startswith(EXTENSION):
            expected = f"one of {', '.join(schema.names)}, or a name that begins with {EXTENSION}"
            yield RecordFault(file.name, f"column {name}", UNKNOWN, expected)
    for column in schema:
        place = f"column {column.name}"
        if column.name not in names:
            if not column.nullable:
                yield RecordFault(file.name, place, "the column is missing", _expected(column))
        elif names.count(column.name) > 1:
            yield RecordFault(file.name, place, f"{names.count(column.name)} columns have this name", "one")
        else:
            yield from _column_faults(file.name, column, table)


def _column_faults(file: str, column: pa.Field, table: pa.Table) -> Iterator[RecordFault]:
    values, place = table[column.name], f"column {column.name}"
    if _stored_type(values.type) != column.type:
        yield RecordFault(file, place, f"its type is {type_name(values.type)}", _expected(column))
        return
    if not column.nullable and values.null_count:
        row = values.is_null().to_pylist().index(True)
        text = f"it is null{_more(values.null_count)}"
        yield RecordFault(file, f"{place}, {_row_name(table, row)}", text, _expected(column))
    if pa.types.is_list(column.type) and (nulls := values.combine_chunks().flatten().null_count):
        row = next(i for i, items in enumerate(values.to_pylist()) if items is not None and None in items)
        text = f"its list contains null{_more(nulls)}"
        yield RecordFault(file, f"{place}, {_row_name(table, row)}", text, _expected(column))


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the schemas' type that a Parquet file stores in the same way, such as string for large_string."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_stored_type(kind.value_type))
    return LARGE.get(kind, kind)


def _expected(column: pa.Field) -> str:
    nulls = "null or " if column.nullable else ""
    return f"{nulls}{type_name(column.type)}: {description(column)}"


def _more(count: int) -> str:
    return "" if count == 1 else f" ({count} times)"


def _row_name(table: pa.Table, row: int) -> str:
    """Name a row by prompt, arm and step where the table has them, else by number."""
    if not {*ANSWER} - {"turn"} <= {*table.column_names}:
        return f"row {row}"
    values: Any = tuple(table[name][row].as_py() if name in table.column_names else 0 for name in ANSWER)
    step = f", step {table['step'][row].as_py()}" if "step" in table.column_names else ""
    return f"{answer_name(values)}{step}"
