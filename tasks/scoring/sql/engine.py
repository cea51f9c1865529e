"""Execution of a query that a model wrote on SQLite, in memory, with limits; it can read only the database.

The limits count SQLite's own steps and bytes, so that scores do not depend on the machine's speed. The clock stops only
what these limits miss.
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
# bytes of a value or row, of a query and of a LIKE pattern; attached databases; terms of a compound SELECT
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 20_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
}
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
# functions that reach outside the database or make a score random
_FUNCTIONS = {"load_extension", "random", "randomblob"}
# the value of 'now': a score is the same on any day
_NOW = "2025-01-01 12:00:00"
_TODAY = {"current_date": _NOW[:10], "current_time": _NOW[11:], "current_timestamp": _NOW}
# functions of a moment -> number of arguments before the moment, which is now if it is missing
_CLOCKS = {"date": 0, "time": 0, "datetime": 0, "julianday": 0, "unixepoch": 0, "strftime": 1}
_FORMATS = ("printf", "format")
_WIDTHS = re.compile(r"%%|%[-+ 0#,!]*(\d+|\*)?(?:\.(\d+|\*))?")
_QUERIES = ("select", "with", "values")
_DIGITS = 9


def result(image: bytes, query: str) -> Rows | None:
    """Return the query's result on a database; None if it is no query, fails, or exceeds a limit.

    Args:
        image: database in the form of `sqlite3.Connection.serialize`; it is not changed.
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


def equal_results(rows: Rows | None, expected: Rows, ordered: bool) -> bool:
    """Return whether two results have equal rows, in the same order if `ordered`; nine digits of numbers count."""
    if rows is None or len(rows) != len(expected):
        return False
    first, second = _rounded(rows), _rounded(expected)
    return first == second if ordered else Counter(first) == Counter(second)


def image_of(tables: Iterable[tuple[str, Sequence[tuple[str, str]], Rows]]) -> bytes:
    """Return the image of a database; a table is a name, names and types of columns, and rows in order of insertion."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.execute("PRAGMA page_size = 512")
        for name, columns, rows in tables:
            listed = ", ".join(f"{quote(column)} {kind}" for column, kind in columns)
            database.execute(f"CREATE TABLE {quote(name)} ({listed})")
            database.executemany(f"INSERT INTO {quote(name)} VALUES ({', '.join('?' * len(columns))})", rows)
        return database.serialize()


def quote(name: str) -> str:
    """Return the name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def _plain() -> sqlite3.Connection:
    """Return a connection with SQLite's own functions, without limits."""
    return sqlite3.connect(":memory:", isolation_level=None)


def _replace_functions(database: sqlite3.Connection, plain: sqlite3.Connection) -> None:
    """Replace functions that read the clock, or of which one call may take any time."""

    def original(name: str, arguments: Sequence[Any]) -> Any:
        return plain.execute(f"SELECT {name}({', '.join('?' * len(arguments))})", arguments).fetchone()[0]

    def clock(name: str, before: int) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            complete = (*arguments, _NOW) if len(arguments) == before else arguments
            return original(name, [_NOW if str(value).strip().lower() == "now" else value for value in complete])

        return call

    def formatted(name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            pairs = _WIDTHS.findall(str(arguments[0])) if arguments else []
            widths = [width for pair in pairs for width in pair if width]
            numbers = [int(width) for width in widths if width != "*"]
            if "*" in widths:  # any of the arguments may be the width
                numbers += [abs(int(value)) for value in arguments if isinstance(value, int | float)]
            if max(numbers, default=0) > _LIMITS[sqlite3.SQLITE_LIMIT_LENGTH]:
                raise ValueError("wider than a value may be")
            return original(name, arguments)

        return call

    for name, before in _CLOCKS.items():
        database.create_function(name, -1, clock(name, before), deterministic=True)
    for name in _FORMATS:
        database.create_function(name, -1, formatted(name), deterministic=True)
    for name, moment in _TODAY.items():
        database.create_function(name, 0, lambda moment=moment: moment, deterministic=True)


class _Meter:
    """A progress handler that interrupts a query after its limit of steps or time."""

    def __init__(self) -> None:
        self.calls, self.deadline = 0, time.monotonic() + WALL_SECONDS

    def __call__(self) -> bool:
        self.calls += 1
        return self.calls * STEPS_A_CALL > STEPS or time.monotonic() > self.deadline


def _authorize(action: int, first: str | None, second: str | None, database: str | None, source: str | None) -> int:
    """Allow a query to read and compute, and nothing else."""
    refused = action not in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS)
    return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK


def _rounded(rows: Rows) -> Rows:
    return [tuple(float(f"{cell:.{_DIGITS}g}") if isinstance(cell, float) else cell for cell in row) for row in rows]
