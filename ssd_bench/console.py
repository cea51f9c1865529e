"""Console of a command: options, exit code, and errors in one line."""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps

from ssd_bench.errors import NOT_GIVEN, ConfigError, JobsFailed, LosslessError, Lost, shortened
from ssd_bench.stopping import CODE, Stopped

LONGEST_MESSAGE = 5000
FULL = (errno.ENOSPC, errno.EDQUOT)
RESUME_HINT = "finished work is on record; the same command resumes the run"
EXTRAS = {"joblib": "cluster", "submitit": "cluster", "ray": "ray"}
"""Prefix of a Hydra launcher's name -> extra that installs it."""


def tool(usage: str | None) -> Callable[[Callable[[Sequence[str]], int | None]], Callable[[Sequence[str]], int]]:
    """Make a function a command without Hydra, which prints `usage` for -h and --help.

    The exit code is the function's, None for 0, or an error's, as in `ssd_bench.compose.application.command`.
    """

    def declared(work: Callable[[Sequence[str]], int | None]) -> Callable[[Sequence[str]], int]:
        @wraps(work)
        def main(arguments: Sequence[str]) -> int:
            print_anything()
            if {"-h", "--help"} & set(arguments):
                print(usage)
                return 0
            try:
                with reported_ends() as end:
                    end.code = work(arguments) or 0
                    sys.stdout.flush()
            except ConfigError as error:
                return report(error)
            return end.code

        return main

    return declared


class ReaderGone(BaseException):
    """The reader of this program's output closed the pipe; a BaseException, because no job failed."""


class PipedText(io.TextIOWrapper):
    """Standard stream that raises `ReaderGone` for its closed pipe; other pipes keep their `BrokenPipeError`."""

    def write(self, text: str) -> int:
        """Write text."""
        with self._reading():
            return super().write(text)

    def flush(self) -> None:
        """Write the buffer."""
        with self._reading():
            super().flush()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # for the flush at the end of the process
            raise ReaderGone from None


def closed_pipes_end(program: Callable[[], int]) -> int:
    """Run a program, and end it quietly when its output's reader goes, as head and less do.

    Return the program's exit code; 141, as after SIGPIPE, if the reader has gone.
    """
    for name in ("stdout", "stderr"):
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            piped = PipedText(
                stream.buffer,
                stream.encoding,
                stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, piped)
    try:
        code = program()
        sys.stdout.flush()
        return code
    except ReaderGone:
        return 128 + signal.SIGPIPE


def options(arguments: Sequence[str], names: Sequence[str], **required: str) -> dict[str, str]:
    """Parse arguments NAME=VALUE of a `tool`; `required` says what is expected of options that must be given.

    Raises:
        ConfigError: an argument of another form, with another name, or given twice; or a missing one.
    """
    values: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name not in names or not equals or not value or name in values:
            raise ConfigError("option", argument, f"each of {', '.join(f'{o}=' for o in names)} at most once")
        values[name] = value
    for name, expected in required.items():
        if name not in values:
            raise ConfigError(name, NOT_GIVEN, expected)
    return values


def count(name: str, text: str) -> int:
    """Parse a count of a `run_tool`.

    Raises:
        ConfigError: not a whole number above 0.
    """
    if not text.isdecimal() or len(text) > 18 or not int(text):
        raise ConfigError(name, shortened(text), "an integer >= 1")
    return int(text)


@dataclass
class End:
    """Exit code of a program, set when it ends early."""

    code: int = 0


@contextmanager
def reported_ends() -> Iterator[End]:
    """Report an interrupt, a signal, a full disk or an unusable file in one line."""
    end = End()
    try:
        yield end
    except KeyboardInterrupt:
        end.code = _say(f"interrupted: {RESUME_HINT}", 130)
    except Stopped:
        end.code = _say(f"stopped by a signal, after the prompt in flight: {RESUME_HINT}", CODE)
    except OSError as error:
        if (fault := disk_fault(error)) is None:
            raise
        end.code = _say(f"error: {fault}", 1)


def disk_fault(error: BaseException) -> str | None:
    """Return one line about a full disk, or a file that cannot be read or written; else None."""
    if not isinstance(error, OSError) or (error.errno not in FULL and error.filename is None):
        return None
    resume = f": {RESUME_HINT}" if error.errno in FULL else ""
    return f"{error.strerror or 'no space left'}{f', {error.filename}' if error.filename else ''}{resume}"


def _say(line: str, code: int) -> int:
    print(line, file=sys.stderr, flush=True)
    return code


def report(error: Exception) -> int:
    """Print an error that a user can remedy; return the exit code."""
    message = str(error).strip()
    first, *_ = message.splitlines() or [""]
    # Hydra names a launcher of this project first, and last the launcher on which it builds
    for launcher in re.findall(r"hydra/launcher/(\w+)", first)[-1:]:
        for name, extra in EXTRAS.items():
            message = f"{first.rstrip('.')}: {installed_by(extra)}" if launcher.startswith(name) else message
    print(f"error: {shortened(message, LONGEST_MESSAGE)}", file=sys.stderr)
    if isinstance(error, JobsFailed):
        return error.code
    return 1 if isinstance(error, LosslessError | Lost) else 2


def installed_by(extra: str) -> str:
    """Return the command that installs a missing package."""
    return f"pip install 'ssd-bench[{extra}]' has it"


def print_anything() -> None:
    """Print escape codes for characters that the locale lacks, without an exception."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
