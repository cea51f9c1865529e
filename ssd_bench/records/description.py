"""Description of the record format for other programs: JSON Schema of run.json, columns of the tables.

Both are made from the code: types and docstrings of `ssd_bench.records.header`, Arrow schemas of
`ssd_bench.records.schema`. `docs/schema` has the results, written by the command `schema`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pandas as pd
import pyarrow as pa

from ssd_bench import tables
from ssd_bench.contract.generation import PARTS, Work
from ssd_bench.records.header import RecordedDecoding, RecordedModel, RecordedTask, RunHeader
from ssd_bench.records.schema import BASELINES, SCHEMA_VERSION, SCHEMAS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
EXTENSION = "x_"
"""Beginning of the keys of run.json and of the columns that other programs may add."""

TYPES = {int: "integer", float: "number", bool: "boolean", str: "string", NoneType: "null"}
REQUIRED: Mapping[type, Sequence[str]] = {
    RunHeader: ("schema_version", "run_id", "status", "model", "method", "task", "domains", "decode", "finished_at"),
    RecordedModel: ("name", "n_layers", "dtype", "device"),
    RecordedTask: ("name",),
    RecordedDecoding: ("mode",),
}
"""Keys that a record of another program needs although the reader has a default."""

MEASURES = ("load_ms", "profile_ms", "prepare_ms", "warmup_ms", "wall_s", "tie_tolerance", "others_share")
RULES: Mapping[tuple[type, str], Mapping[str, Any]] = {
    (RunHeader, "schema_version"): {"minimum": 1, "maximum": SCHEMA_VERSION},
    (RunHeader, "status"): {"const": "complete"},
    (RunHeader, "run_id"): {"minLength": 1},
    (RunHeader, "method"): {"minLength": 1},
    (RunHeader, "finished_at"): {"pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d"},
    (RunHeader, "config"): {
        "properties": {
            "baseline": {"enum": [*BASELINES], "description": "arms of every answer"},
            "repeats": {"type": "integer", "minimum": 1, "maximum": 10_000, "description": "repeats of every prompt"},
        }
    },
    (RunHeader, "digests"): {
        "propertyNames": {"enum": [*SCHEMAS]},
        "additionalProperties": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    },
    **{(RunHeader, name): {"minimum": 0} for name in MEASURES},
    (RunHeader, "sample"): {"minimum": 1},
    (RecordedModel, "n_layers"): {"minimum": 1},
    (RecordedDecoding, "max_new_tokens"): {"minimum": 1},
    (Work, "part"): {"enum": ["prepare", *PARTS]},
}
"""Conditions on keys that their types do not express."""


def header_schema() -> dict[str, Any]:
    """Return the JSON Schema of the header of a finished record (run.json)."""
    definitions: dict[str, Any] = {}
    header = _object_schema(RunHeader, definitions)
    return {
        "$schema": DIALECT,
        "$id": f"urn:ssd-bench:record-header:{SCHEMA_VERSION}",
        "title": f"run.json of a finished ssd-bench record, schema version {SCHEMA_VERSION}",
        **header,
        "patternProperties": {f"^{EXTENSION}": {"description": "key of another program"}},
        "$defs": dict(sorted(definitions.items())),
    }


def _object_schema(kind: type[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a dataclass; add the schemas of the dataclasses in it to `definitions`."""
    hints, docs = get_type_hints(kind), attribute_docs(kind)
    without_default = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    properties = {}
    for part in fields(kind):
        rule = RULES.get((kind, part.name), {})
        schema = {**_type_schema(hints[part.name], definitions), **rule}
        properties[part.metadata.get("key", part.name)] = {"description": docs[part.name], **schema}
    return {
        "description": (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " "),
        "type": "object",
        "required": [*REQUIRED.get(kind, without_default)],
        "properties": properties,
        "additionalProperties": False,
    }


def _type_schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, args = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = _object_schema(kind, definitions)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    if kind in TYPES:
        return {"type": TYPES[kind]}
    if origin in (Union, UnionType):
        members = [_type_schema(member, definitions) for member in args]
        if all(member.keys() == {"type"} for member in members):
            return {"type": [member["type"] for member in members]}
        return {"anyOf": members}
    if origin is Literal:
        return {"enum": [*args]}
    if origin is tuple and Ellipsis not in args:
        parts = [_type_schema(part, definitions) for part in args]
        return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
    if origin in (tuple, Sequence):
        return {"type": "array", "items": _type_schema(args[0], definitions)}
    if origin is Mapping:
        values = {} if args[1] is Any else {"additionalProperties": _type_schema(args[1], definitions)}
        return {"type": "object", **values}
    raise TypeError(f"{kind} has no JSON Schema here")


def attribute_docs(kind: type[Any]) -> dict[str, str]:
    """Return the descriptions in the sections `Attributes` of a class and its bases, by attribute."""
    section = "".join((inspect.getdoc(base) or "").partition("Attributes:\n")[2] + "\n" for base in kind.__mro__)
    entries = re.findall(r"^    (\S[^:\n]*): (.*(?:\n {5,}.*)*)", section, re.MULTILINE)
    texts = {names: re.sub(r"\bNone\b", "null", " ".join(text.split())) for names, text in entries}
    return {name: text for names, text in texts.items() for name in names.split(", ")}


def tables_description() -> str:
    """Return the description of every table's columns as Markdown."""
    parts = [HEAD.format(version=SCHEMA_VERSION, extension=EXTENSION)]
    for name, schema in SCHEMAS.items():
        frame = pd.DataFrame(
            {
                "column": [f"`{column.name}`" for column in schema],
                "type": [f"`{type_name(column.type)}`" for column in schema],
                "without a value": ["null" if column.nullable else "required" for column in schema],
                "meaning": [description(column) for column in schema],
            }
        )
        parts.append(f"## Columns of `{name}.parquet`\n\n{tables.markdown(frame)}\n")
    return "\n".join(parts)


HEAD = """\
# Tables of a record

Written by `python -m ssd_bench schema of=tables`; schema version {version}. [run.schema.json](run.schema.json) is the
JSON Schema of the record's header, run.json. [exchange.md](../exchange.md) says how to check a record that another
program wrote.

Tables are Parquet files. Their columns may be in any order. Columns of other programs begin with `{extension}`; any
other unknown column is a fault. The column "without a value" says what a null means to a reader: *required* columns
have no nulls; *null* columns may have nulls, or may be left out.
"""


def description(column: pa.Field) -> str:
    """Return the one-line description of a column."""
    return str(column.metadata[b"description"].decode())


def type_name(kind: pa.DataType) -> str:
    """Return the name of an Arrow type, such as int32 or list<int32>."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{type_name(kind.value_type)}>"
    return str(kind)
