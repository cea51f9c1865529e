"""Types of JSON values: a value of the wrong type is refused by the name of its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from sys import float_info
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ssd_bench.errors import ConfigError, brief, is_encodable
from ssd_bench.settings import WORDS

LARGEST = 2**63
"""Bound of integers, as in tables of numbers."""


def check_type(place: str, value: Any, kind: Any) -> None:
    """Refuse a JSON value of another type; a missing or null entry has its key's default.

    Args:
        place: dotted name of the value; "" for the whole content.
        kind: a dataclass, or the type of a dataclass's field.

    Raises:
        ConfigError: another type; names the place.
    """
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any or (value is None and NoneType in args):
        return
    if isinstance(kind, type) and is_dataclass(kind):
        _expect(place, value, isinstance(value, Mapping), "an object")
        for name, hint in field_types(kind).items():
            if value.get(name) is not None:
                check_type(f"{place}.{name}".lstrip("."), value[name], hint)
    elif origin is Literal:
        _expect(place, value, value in args, f"one of {', '.join(map(str, args))}")
    elif origin is Mapping:
        _expect(place, value, isinstance(value, Mapping), "an object")
        for name, entry in value.items():
            check_type(f"{place}.{name}", entry, args[1])
    elif origin in (Sequence, tuple):
        _expect(place, value, isinstance(value, list), "a list")
        kinds = args if origin is tuple and Ellipsis not in args else [args[0]] * len(value)
        _expect(place, value, len(value) == len(kinds), f"a list of {len(kinds)}")
        for at, (entry, inner) in enumerate(zip(value, kinds)):
            check_type(f"{place}[{at}]", entry, inner)
    elif args:
        check_type(place, value, next(inner for inner in args if inner is not NoneType))
    else:
        _expect(place, value, _is_scalar(value, kind), WORDS[kind])


def _is_scalar(value: Any, kind: type) -> bool:
    if kind is str:
        return isinstance(value, str) and is_encodable(value)
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind is float:
        return isinstance(value, int | float) and abs(value) <= float_info.max  # also not NaN
    return isinstance(value, int) and abs(value) < LARGEST


def _expect(place: str, value: Any, is_valid: bool, expected: str) -> None:
    if not is_valid:
        raise ConfigError(place or "run.json", brief(value), expected)


@cache
def field_types(kind: type) -> dict[str, Any]:
    """Return the types of a dataclass's keys in JSON."""
    hints = get_type_hints(kind)
    return {part.metadata.get("key", part.name): hints[part.name] for part in fields(kind)}
