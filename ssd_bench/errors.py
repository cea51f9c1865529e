"""Errors that a run or a sweep raises on purpose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager


class ConfigError(ValueError):
    """An option, file or environment that cannot work; names the field, its value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str):
        super().__init__(f"{field}={value!r} cannot be used: {allowed}")
        self.field, self.value, self.allowed = field, value, allowed

    def within(self, section: str, place: str) -> ConfigError:
        """Return the error with options named by their path in the config: `task.parts.xsum.shots`, not `task.shots`.

        Args:
            section: prefix of options in the part's own messages, as `task`.
            place: their prefix in the config, as `task.parts.xsum`.
        """
        pattern = re.compile(rf"(?<![\w.]){re.escape(section)}\.(?=\w)")
        field, allowed = (pattern.sub(f"{place}.", text) for text in (self.field, self.allowed))
        return ConfigError(field, self.value, allowed)

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.allowed)


@contextmanager
def naming(section: str, place: str) -> Iterator[None]:
    """Rename options in the errors of a block by their path in the config, as `ConfigError.within`."""
    try:
        yield
    except ConfigError as error:
        raise error.within(section, place) from error


class LosslessError(RuntimeError):
    """A greedy output differs from AR's where rounding cannot explain it."""


class Lost(RuntimeError):
    """Another process has taken over the work of this one."""


class JobsFailed(RuntimeError):
    """Jobs of a sweep failed; their outcomes have been printed.

    Args:
        message: how many jobs failed.
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
    """Return a text for a message, with the middle cut out if it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 2 :]} ({len(text)} characters)"
