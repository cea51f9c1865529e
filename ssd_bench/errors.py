"""The ways in which a run, or a sweep of runs, fails on purpose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager


class ConfigError(ValueError):
    """An option, file or environment that cannot work: names the field, its value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str):
        super().__init__(f"{field}={value!r} cannot be used: {allowed}")
        self.field, self.value, self.allowed = field, value, allowed

    def within(self, section: str, place: str) -> ConfigError:
        """Return the error with a part's options by their place in the config: `task.shots` as `task.parts.xsum.shots`.

        Args:
            section: how the part itself calls the place of its options.
        """
        pattern = re.compile(rf"(?<![\w.]){re.escape(section)}\.(?=\w)")
        field, allowed = (pattern.sub(f"{place}.", text) for text in (self.field, self.allowed))
        return ConfigError(field, self.value, allowed)

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.allowed)


@contextmanager
def naming(section: str, place: str) -> Iterator[None]:
    """Let the errors of a part name its options by their place in the config; as `ConfigError.within`."""
    try:
        yield
    except ConfigError as error:
        raise error.within(section, place) from error


class LosslessError(RuntimeError):
    """A greedy output differs from AR's where rounding cannot explain it."""


class Lost(RuntimeError):
    """What this process worked on went to another one."""


class JobsFailed(RuntimeError):
    """Jobs of a sweep failed; what came of each has been said.

    Args:
        code: exit code of the program.
    """

    def __init__(self, message: str, code: int):
        super().__init__(message, code)
        self.message, self.code = message, code

    def __str__(self) -> str:
        return self.message


def one_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of its message."""
    first, *_ = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {first}"


def shortened(text: str, most: int = 60) -> str:
    """Return a text for a message: one that is too long loses its middle."""
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 2 :]} ({len(text)} characters)"
