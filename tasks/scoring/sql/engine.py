"""Running a query that a model wrote on SQLite, in memory, with limits; it reads the database and nothing else.

The limits are counted in SQLite's own steps and bytes, so that a slow machine scores as a fast one does; the clock
stops only what they miss.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any

Rows = list[tuple[Any, ...]]

STEPS = 2_000_000
STEPS_A_CALL = 1000
WALL_SECONDS = 2.0
ROWS = 10_000
# Bytes: of one value or row, of a query; columns, and the terms of one compound SELECT.
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 20_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
}
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
# Reaching outside, and what makes a score random.
_FUNCTIONS = {"load_extension", "random", "randomblob"}
# Answers of 'now' are of this moment: a score is the same on any day.
_NOW = "2025-01-01 12:00:00"
_TODAY = {"current_date": _NOW[:10], "current_time": _NOW[11:], "current_timestamp": _NOW}
# Functions of a moment, and how many arguments come before it, without which it is now.
_CLOCKS = {"date": 0, "time": 0, "datetime": 0, "julianday": 0, "unixepoch": 0, "strftime": 1}
_FORMATS = ("printf", "format")
_WIDTHS = re.compile(r"%%|%[-+ 0#,!]*(\d+|\*)?(?:\.(\d+|\*))?")
_QUERIES = ("select", "with", "values")
_DIGITS = 9


def result(image: bytes, query: str) -> Rows | None:
    """What the query gives on a database; None where it is no query, fails, or exceeds a limit.

    Args:
        image: a database as `sqlite3.Connection.serialize` makes it; it stays as it is.
        query: one statement.
    """
    if not query.lower().startswith(_QUERIES):
        return None
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database, closing(_plain()) as plain:
        database.deserialize(image)
        for limit, value in _LIMITS.items():
            database.setlimit(limit, value)
        _replace_functions(database, plain)
        database.set_authorizer(_authorize)
        database.set_progress_handler(_Meter(), STEPS_A_CALL)
        try:
            rows = database.execute(query).fetchmany(ROWS + 1)
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError):
            return None
    return rows if len(rows) <= ROWS else None


def same(rows: Rows | None, expected: Rows, ordered: bool) -> bool:
    """Whether two results have equal rows, in the same order if `ordered`; numbers by their first nine digits."""
    if rows is None or len(rows) != len(expected):
        return False
    found, wanted = _rounded(rows), _rounded(expected)
    return found == wanted if ordered else Counter(found) == Counter(wanted)


def image_of(tables: Iterable[tuple[str, Sequence[tuple[str, str]], Rows]]) -> bytes:
    """A database of tables: a name, names and types of columns, and rows in the order they are inserted in."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.execute("PRAGMA page_size = 512")
        for name, columns, rows in tables:
            listed = ", ".join(f"{quoted(column)} {kind}" for column, kind in columns)
            database.execute(f"CREATE TABLE {quoted(name)} ({listed})")
            database.executemany(f"INSERT INTO {quoted(name)} VALUES ({', '.join('?' * len(columns))})", rows)
        return database.serialize()


def quoted(name: str) -> str:
    """The name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def _plain() -> sqlite3.Connection:
    """SQLite's own functions, without limits."""
    return sqlite3.connect(":memory:", isolation_level=None)


def _replace_functions(database: sqlite3.Connection, plain: sqlite3.Connection) -> None:
    """In place of functions that read the clock, or whose one call may take any time, ones that do not."""

    def own(name: str, arguments: Sequence[Any]) -> Any:
        return plain.execute(f"SELECT {name}({', '.join('?' * len(arguments))})", arguments).fetchone()[0]

    def clock(name: str, before: int) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            given = (*arguments, _NOW) if len(arguments) == before else arguments
            return own(name, [_NOW if str(one).strip().lower() == "now" else one for one in given])

        return call

    def formatted(name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            found = _WIDTHS.findall(str(arguments[0])) if arguments else []
            widths = [width for pair in found for width in pair if width]
            numbers = [int(width) for width in widths if width != "*"]
            if "*" in widths:  # which of the arguments it takes does not matter
                numbers += [abs(int(one)) for one in arguments if isinstance(one, int | float)]
            if max(numbers, default=0) > _LIMITS[sqlite3.SQLITE_LIMIT_LENGTH]:
                raise ValueError("wider than a value may be")
            return own(name, arguments)

        return call

    for name, before in _CLOCKS.items():
        database.create_function(name, -1, clock(name, before), deterministic=True)
    for name in _FORMATS:
        database.create_function(name, -1, formatted(name), deterministic=True)
    for name, moment in _TODAY.items():
        database.create_function(name, 0, lambda moment=moment: moment, deterministic=True)


class _Meter:
    """Says when a query has had its steps or its time."""

    def __init__(self) -> None:
        self.calls, self.deadline = 0, time.monotonic() + WALL_SECONDS

    def __call__(self) -> bool:
        self.calls += 1
        return self.calls * STEPS_A_CALL > STEPS or time.monotonic() > self.deadline


def _authorize(action: int, first: str | None, second: str | None, database: str | None, source: str | None) -> int:
    """Let a query read and compute."""
    refused = action not in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS)
    return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK


def _rounded(rows: Rows) -> Rows:
    return [tuple(float(f"{cell:.{_DIGITS}g}") if isinstance(cell, float) else cell for cell in row) for row in rows]
