"""Tables, keys and types of a database, as SQLite reads its CREATE TABLE statements."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from tasks.scoring.sql.engine import quote
from tasks.scoring.sql.text import statements

_CREATE = re.compile(r"create\s+table\b", re.IGNORECASE)
# SQLite creates these tables itself, but some schemas list them too
_OWN = re.compile(r"create\s+table\s+(?:if\s+not\s+exists\s+)?[\"'`\[]?sqlite_", re.IGNORECASE)
# a column at the beginning of a line, whose name may need quotes (`index`, `ratings_(millions)`)
_UNQUOTED = re.compile(r"^(\s+)(?!(?:primary|foreign|unique|constraint|check)\b)([^\s\"'`\[()]\S*)(?=\s)", re.I | re.M)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name, type: declared name and type, in lower case.
        affinity: INTEGER, TEXT, BLOB, REAL or NUMERIC.
        optional: whether it may be NULL.
    """

    name: str
    type: str
    affinity: str
    optional: bool


@dataclass(frozen=True)
class Table:
    """A table of a schema.

    Attributes:
        name: name as declared.
        columns: columns in their order.
        key: names of the columns of the primary key.
        parents: name of a column -> table and column that it refers to, all in lower case.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    parents: Mapping[str, tuple[str, str]]


def read_schema(text: str) -> dict[str, Table]:
    """Return the tables by name in lower case; empty if SQLite cannot read a CREATE TABLE statement.

    Other statements, such as views and indices, are left out. Names of columns that begin a line may lack the quotes
    that they need: the schemas of Spider and Spider 2.0 are generated from lists of names.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        try:
            for statement in statements(text):
                if _CREATE.match(statement) and not _OWN.match(statement):
                    _create(database, statement)
            names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            tables = {name.lower(): _table(database, name) for name in names if not name.startswith("sqlite_")}
        except (sqlite3.Error, sqlite3.Warning, ValueError):
            return {}
    return {name: _with_parents(table, tables) for name, table in tables.items()}


def affinity(declared: str) -> str:
    """Return the affinity of a declared type, by the rules of https://www.sqlite.org/datatype3.html."""
    rules = {"INTEGER": ("int",), "TEXT": ("char", "clob", "text"), "BLOB": ("blob",), "REAL": ("real", "floa", "doub")}
    if not declared:
        return "BLOB"
    return next((name for name, parts in rules.items() if any(part in declared.lower() for part in parts)), "NUMERIC")


def _create(database: sqlite3.Connection, statement: str) -> None:
    """Create a table; quote its columns if SQLite cannot read the statement otherwise."""
    try:
        database.execute(statement)
    except sqlite3.Error:
        database.execute(_UNQUOTED.sub(lambda match: match[1] + quote(match[2]), statement))


def _table(database: sqlite3.Connection, name: str) -> Table:
    columns, key, parents = [], [], {}
    for _, column, kind, required, _, place in database.execute(f"PRAGMA table_info({quote(name)})"):
        columns.append(Column(column.lower(), kind.lower(), affinity(kind), not required and not place))
        if place:
            key.append(column.lower())
    for _, _, parent, child, target, *_ in database.execute(f"PRAGMA foreign_key_list({quote(name)})"):
        parents[child.lower()] = (parent.lower(), (target or "").lower())
    return Table(name, tuple(columns), tuple(key), parents)


def _with_parents(table: Table, tables: Mapping[str, Table]) -> Table:
    """Return the table without references that lead to no column; a reference to a table means its key."""
    parents = {}
    for child, (name, target) in table.parents.items():
        if name in tables:
            column = target or next(iter(tables[name].key), "")
            if column in {candidate.name for candidate in tables[name].columns}:
                parents[child] = (name, column)
    return Table(table.name, table.columns, table.key, parents)
