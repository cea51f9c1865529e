"""Settings, each spelled once: a dataclass whose fields the constructor, the checks and `run --help` read.

    @settings("method")
    class PromptLookup:
        draft_len: Count = 10
        \"""Most tokens of a draft.\"""

A field's type says what is allowed: int, float, bool, str, None for null, `Literal`, sequences and mappings of these, a
`Range` or `Fits` in `Annotated`, or a class. Its doc is the string under it or, where several classes have the same
setting, a string in its type; `ssd_bench.manual` shows both.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from ssd_bench.errors import ConfigError

T = TypeVar("T")
GIVEN = "it must be given"
WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "a text", NoneType: "null"}


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may be; one of `least` and `above` at least.

    Attributes:
        least, most, above, below: limits, the last two of which are themselves outside.
        what: such a number in words; "": by its type.
        note: what a message adds.
    """

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    what: str = ""
    note: str = ""

    def holds(self, value: float) -> bool:
        """Whether a number is within the limits."""
        low = self.least is None or value >= self.least, self.above is None or value > self.above
        high = self.most is None or value <= self.most, self.below is None or value < self.below
        return all(low + high)

    def words(self, kind: str) -> str:
        """What is allowed; `kind` is the type."""
        what, low = self.what or kind, self.least if self.above is None else self.above
        if self.most is None and self.below is None:
            return f"{what} {'of at least' if self.above is None else 'above'} {low}{self.note}"
        begin, end = "[" if self.above is None else "(", f"{self.below})" if self.most is None else f"{self.most}]"
        return f"{what} in {begin}{low}, {end}{self.note}"


@dataclass(frozen=True)
class Fits:
    """Any other condition on one setting.

    Attributes:
        said: what is allowed.
        holds: whether a value of the type is.
    """

    said: str
    holds: Callable[[Any], object]

    def words(self, kind: str) -> str:
        """What is allowed."""
        return self.said


Count = Annotated[int, Range(1)]
Whole = Annotated[int, Range(0)]
Share = Annotated[float, Range(0, 1, what="a share")]
Rate = Annotated[float, Range(0, 1, what="a rate")]
Probability = Annotated[float, Range(0, 1, what="a probability")]
Cosine = Annotated[float, Range(-1, 1, what="a cosine")]


@dataclass_transform(eq_default=False)
def settings(section: str, *, frozen: bool = False, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """Make a class a dataclass that refuses what its fields' types do not allow, ahead of its own `__post_init__`.

    Args:
        section: where the settings stand in the config.
        frozen: settings do not change, and two objects with the same are equal.
        kw_only: the constructor takes them by name alone; in a base, so that they do not come first.
    """

    def declared(cls: type[T]) -> type[T]:
        own: Callable[[T], None] = getattr(cls, "__post_init__", lambda self: None)

        def __post_init__(self: T) -> None:
            for name, kind in kinds(type(self)).items():  # type: ignore[arg-type]
                checked(f"{section}.{name}", kind, getattr(self, name))
            own(self)

        cls.__post_init__ = __post_init__  # type: ignore[attr-defined]
        return dataclass(frozen=frozen, eq=frozen, kw_only=kw_only)(cls)

    return declared


@cache
def kinds(cls: type[Any]) -> dict[str, Any]:
    """The settings of a class, with their types."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


def arguments(section: str, cls: type[Any], given: Any) -> dict[str, Any]:
    """What the config says of a class, every name of it one that the constructor takes, and none missing.

    Raises:
        ConfigError: no table, a setting that there is not, or one left out that has no default.
    """
    taken = inspect.signature(cls).parameters
    named = {name: one for name, one in taken.items() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
    listed = ", ".join(named) or "nothing"
    if not isinstance(given, Mapping):
        raise ConfigError(section, given, f"a table of {listed}")
    for name, value in given.items():
        if name not in named and all(one.kind != one.VAR_KEYWORD for one in taken.values()):
            raise ConfigError(f"{section}.{name}", value, f"no setting of {section}, which has {listed}")
    for name, one in named.items():
        if name not in given and one.default is one.empty:
            raise ConfigError(f"{section}.{name}", None, GIVEN)
    return dict(given)


def checked(field: str, kind: Any, value: T) -> T:
    """The value itself.

    Raises:
        ConfigError: for this field of the config, if its type does not allow the value.
    """
    if not fits(kind, value):
        allowed = words(kind)
        if isinstance(value, int | float) and fits(kind, str(value)):  # digits may be lost: YAML reads 0123 as 83
            allowed += f"; what looks like a number needs quotes: '{field}=\"...\"'"
        raise ConfigError(field, value, allowed)
    return value


def fits(kind: Any, value: object) -> bool:
    """Whether a value is what a setting's type allows; true is no number, 1.0 no whole one, NaN none at all."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        limits = (limit for limit in args[1:] if isinstance(limit, Range | Fits))
        return fits(args[0], value) and all(limit.holds(value) for limit in limits)  # type: ignore[arg-type]
    if origin in (Union, UnionType):
        return any(fits(one, value) for one in args)
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in args)
    if kind in (int, float):
        numbers = int if kind is int else int | float
        return isinstance(value, numbers) and not isinstance(value, bool) and math.isfinite(value)
    if origin is Sequence:
        return isinstance(value, Sequence) and not isinstance(value, str) and all(fits(args[0], one) for one in value)
    if origin in (Mapping, dict):
        return isinstance(value, Mapping) and all(fits(args[0], k) and fits(args[1], v) for k, v in value.items())
    return kind is Any or isinstance(value, origin or kind)


def words(kind: Any) -> str:
    """What a setting's type allows, as messages and the help say it."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        limits = [limit for limit in args[1:] if isinstance(limit, Range | Fits)]
        return limits[-1].words(words(args[0])) if limits else words(args[0])
    if origin in (Union, UnionType):
        return ", or ".join(map(words, args))
    if origin is Literal:
        return f"one of {', '.join(map(str, args))}"
    if origin in (Sequence, Mapping, dict):
        each = "" if args[-1] is Any else f", each {words(args[-1])}"
        return f"a {'list' if origin is Sequence else 'table'}{each}"
    return WORDS.get(kind) or f"a {kind.__name__}"


def doc_of(kind: Any) -> str:
    """The doc that a type has for all settings of it; "": none."""
    return "".join(part for part in getattr(kind, "__metadata__", ()) if isinstance(part, str))
