"""Errors of runs and sweeps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

NOT_GIVEN = ...
"""Value of a missing option for `ConfigError`; errors with it can be pickled and compared."""


class ConfigError(ValueError):
    """Invalid option, file or environment; the message names the field, its value and what is expected.

    Args:
        field: path of the option, or place in a file.
        value: `NOT_GIVEN` if missing.
        expected: noun phrase for valid values, such as "an integer >= 1".
        reason: clause for what is wrong, unless `expected` says it, and what to do.
    """

    def __init__(self, field: str, value: object, expected: str = "", reason: str = ""):
        clauses = (reason, expected and f"expected {expected}")
        fault = f"{field} is missing" if value is NOT_GIVEN else f"{field}={value!r} is invalid"
        super().__init__(f"{fault}: {'; '.join(filter(None, clauses))}")
        self.field, self.value, self.expected, self.reason = field, value, expected, reason

    def with_note(self, note: str) -> ConfigError:
        """Return the error with a note such as ", in config.json" after its last clause."""
        if self.expected:
            return ConfigError(self.field, self.value, self.expected + note, self.reason)
        return ConfigError(self.field, self.value, "", self.reason + note)

    def within(self, section: str, place: str) -> ConfigError:
        """Return the error with options named by their path in the config: `task.parts.xsum.shots` for `task.shots`."""
        pattern = re.compile(rf"(?<![\w.]){re.escape(section)}\.(?=\w)")
        field, expected, reason = (pattern.sub(f"{place}.", text) for text in (self.field, self.expected, self.reason))
        return ConfigError(field, self.value, expected, reason)

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, object, str, str]]:
        return type(self), (self.field, self.value, self.expected, self.reason)


@contextmanager
def naming(section: str, place: str) -> Iterator[None]:
    """Rename options in a block's errors by their path in the config, as `ConfigError.within`."""
    try:
        yield
    except ConfigError as error:
        raise error.within(section, place) from error


class LosslessError(RuntimeError):
    """A greedy output differs from AR's where rounding cannot explain it."""


class Lost(RuntimeError):
    """Another process has taken over this one's work."""


class JobsFailed(RuntimeError):
    """Jobs of a sweep failed with exit code `code`; their outcomes have been printed."""

    def __init__(self, message: str, code: int = 1):
        super().__init__(message)
        self.code = code


def one_line(error: BaseException) -> str:
    """Return an error's kind and first line."""
    first, *_ = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {first}"


def shortened(text: str, most: int = 60) -> str:
    """Return a text for a message, its middle cut out beyond `most` characters."""
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 2 :]} ({len(text)} characters)"


def brief(value: object, most: int = 60) -> object:
    """Return a value for a message, or its representation shortened to `most` characters."""
    text = repr(value)
    return value if len(text) <= most else shortened(text, most)


def is_encodable(text: str) -> bool:
    """Return whether a file can have a text: JSON may contain half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
