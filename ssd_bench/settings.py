"""Settings as dataclass fields, declared once for the constructor, the checks and `run --help`.

    @settings("method")
    class PromptLookup:
        draft_len: Count = 10
        \"""Most tokens of a draft.\"""

A field's type says what is allowed: int, float, bool, str, None for null, `Literal`, sequences and mappings of these, a
`Range` or `Fits` in `Annotated`, or a class. Its doc is the string under it or, for a setting of several classes, in
its type; `ssd_bench.compose.help` shows both.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from ssd_bench.errors import NOT_GIVEN, ConfigError

T = TypeVar("T")
GIVEN = "it must be given"
LARGEST = 2**63 - 1
"""Largest integer of a `Range`: records, deques, arrays and kernels take no larger one."""
WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "a text", NoneType: "null"}


@dataclass(frozen=True)
class Range:
    """Interval of allowed numbers, with `least` or `above` as its lower end.

    Attributes:
        least, most: included ends.
        above, below: excluded ends.
        what: such a number in words; "" for its type's name.
        note: addition to messages.
    """

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    what: str = ""
    note: str = ""

    def holds(self, value: float) -> bool:
        """Return whether a number is in the interval."""
        low = self.least is None or value >= self.least, self.above is None or value > self.above
        high = self.most is None or value <= self.most, self.below is None or value < self.below
        return all(low + high) and (not isinstance(value, int) or value <= LARGEST)

    def describe(self, kind: str) -> str:
        """Return what is allowed, in words; `kind` is the type in words."""
        noun, lower = self.what or kind, self.least if self.above is None else self.above
        if self.most is None and self.below is None:
            return f"{noun} {'>=' if self.above is None else '>'} {lower}{self.note}"
        begin, end = "[" if self.above is None else "(", f"{self.below})" if self.most is None else f"{self.most}]"
        return f"{noun} in {begin}{lower}, {end}{self.note}"


@dataclass(frozen=True)
class Fits:
    """Any other condition on one setting.

    Attributes:
        description: what is allowed, in words.
        holds: returns whether a value of the right type is allowed.
    """

    description: str
    holds: Callable[[Any], object]

    def describe(self, kind: str) -> str:
        """Return `description`."""
        return self.description


Count = Annotated[int, Range(1)]
Whole = Annotated[int, Range(0)]
Share = Annotated[float, Range(0, 1, what="a share")]
Rate = Annotated[float, Range(0, 1, what="a rate")]
Probability = Annotated[float, Range(0, 1, what="a probability")]
Cosine = Annotated[float, Range(-1, 1, what="a cosine")]


@dataclass_transform(eq_default=False)
def settings(section: str, *, frozen: bool = False, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """Make a class a dataclass that refuses values its fields' types do not allow, before its own `__post_init__`.

    Args:
        section: config section, for messages.
        frozen: make objects immutable, and equal if their settings are.
        kw_only: take settings only by name, so that a base class's do not come before its subclasses'.
    """

    def declared(cls: type[T]) -> type[T]:
        own_post_init: Callable[[T], None] = getattr(cls, "__post_init__", lambda self: None)

        def __post_init__(self: T) -> None:
            for name, kind in kinds(type(self)).items():  # type: ignore[arg-type]
                check_value(f"{section}.{name}", kind, getattr(self, name))
            own_post_init(self)

        cls.__post_init__ = __post_init__  # type: ignore[attr-defined]
        return dataclass(frozen=frozen, eq=frozen, kw_only=kw_only)(cls)

    return declared


@cache
def kinds(cls: type[Any]) -> dict[str, Any]:
    """Return a class's settings with their types."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


def arguments(section: str, cls: type[Any], values: Any) -> dict[str, Any]:
    """Return a class's config table, checked: only parameters, and none without default missing.

    Raises:
        ConfigError: not a table, an unknown setting, or a missing one.
    """
    parameters = inspect.signature(cls).parameters
    names = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    if not isinstance(values, Mapping):
        raise ConfigError(section, values, f"a table of {', '.join(names) or 'nothing'}")
    present = f"its settings are {', '.join(names)}" if names else "it has none"
    for name, value in values.items():
        if name not in names and all(parameter.kind != parameter.VAR_KEYWORD for parameter in parameters.values()):
            raise ConfigError(f"{section}.{name}", value, reason=f"{section} has no such setting; {present}")
    for name, parameter in names.items():
        if name not in values and parameter.default is parameter.empty:
            raise ConfigError(f"{section}.{name}", NOT_GIVEN, reason=GIVEN)
    return dict(values)


def check_value(field: str, kind: Any, value: T) -> T:
    """Return a value of the option `field` that its type `kind` allows.

    Raises:
        ConfigError: the type does not allow the value.
    """
    if not fits(kind, value):
        expected = describe_type(kind)
        if isinstance(value, int) and abs(value) > LARGEST:
            expected += f", of fewer than {len(str(abs(value)))} digits"
        if isinstance(value, int | float) and fits(kind, str(value)):  # and YAML may change digits: it reads 0123 as 83
            expected += f"; a text that looks like a number needs quotes: '{field}=\"...\"'"
        raise ConfigError(field, value, expected)
    return value


def fits(kind: Any, value: object) -> bool:
    """Return whether a setting's type allows a value; true is no number, 1.0 no integer, NaN never allowed."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        conditions = (condition for condition in args[1:] if isinstance(condition, Range | Fits))
        return fits(args[0], value) and all(condition.holds(value) for condition in conditions)  # type: ignore[arg-type]
    if origin in (Union, UnionType):
        return any(fits(member, value) for member in args)
    if origin is Literal:
        return any(value == member and type(value) is type(member) for member in args)
    if kind in (int, float):
        numbers = int if kind is int else int | float
        return isinstance(value, numbers) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if origin is Sequence:
        return (
            isinstance(value, Sequence)
            and not isinstance(value, str)
            and all(fits(args[0], member) for member in value)
        )
    if origin in (Mapping, dict):
        return isinstance(value, Mapping) and all(fits(args[0], k) and fits(args[1], v) for k, v in value.items())
    return kind is Any or isinstance(value, origin or kind)


def describe_type(kind: Any) -> str:
    """Return what a setting's type allows, in words."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        conditions = [condition for condition in args[1:] if isinstance(condition, Range | Fits)]
        return conditions[-1].describe(describe_type(args[0])) if conditions else describe_type(args[0])
    if origin in (Union, UnionType):
        return ", or ".join(map(describe_type, args))
    if origin is Literal:
        return f"one of {', '.join(map(str, args))}"
    if origin in (Sequence, Mapping, dict):
        elements = "" if args[-1] is Any else f", each {describe_type(args[-1])}"
        return f"a {'list' if origin is Sequence else 'table'}{elements}"
    return WORDS.get(kind) or f"a {kind.__name__}"


def doc_of(kind: Any) -> str:
    """Return the doc in a type's annotation, shared by its settings, or ""."""
    return "".join(part for part in getattr(kind, "__metadata__", ()) if isinstance(part, str))
