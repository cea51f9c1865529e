"""Tables, columns and keys of a database, read from its CREATE TABLE statements by SQLite itself."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from tasks.scoring.sql.engine import quote
from tasks.scoring.sql.text import statements

_CREATE = re.compile(r"create\s+table\b", re.IGNORECASE)
# SQLite creates its tables sqlite_... itself and refuses these statements, but some schemas list them
_CREATE_INTERNAL = re.compile(r"create\s+table\s+(?:if\s+not\s+exists\s+)?[\"'`\[]?sqlite_", re.IGNORECASE)
# an unquoted column name at the beginning of a line: it may need quotes (`index`, `ratings_(millions)`). A line that
# begins with a keyword of a table constraint defines no column
_UNQUOTED = re.compile(r"^(\s+)(?!(?:primary|foreign|unique|constraint|check)\b)([^\s\"'`\[()]\S*)(?=\s)", re.I | re.M)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name, type: declared name and type, in lower case.
        affinity: SQLite's type affinity: INTEGER, TEXT, BLOB, REAL or NUMERIC.
        nullable: whether it may be NULL.
    """

    name: str
    type: str
    affinity: str
    nullable: bool


@dataclass(frozen=True)
class Table:
    """A table of a schema.

    Attributes:
        name: name as declared.
        columns: columns in their order.
        key: names of the primary key's columns, in lower case.
        parents: foreign keys: name of a column -> (table, column) that it refers to, all in lower case.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    parents: Mapping[str, tuple[str, str]]


def read_schema(text: str) -> dict[str, Table]:
    """Return lower-case table name -> table; empty if SQLite cannot read one of the CREATE TABLE statements.

    Statements that create views or indices are left out. A column name at the beginning of a line may lack quotes that
    it needs, because the schemas of Spider and Spider 2.0 are generated from lists of names.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)  # the schema is foreign text: it must open no file
        try:
            for statement in statements(text):
                if _CREATE.match(statement) and not _CREATE_INTERNAL.match(statement):
                    _create(database, statement)
            names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            tables = {name.lower(): _read_table(database, name) for name in names if not name.startswith("sqlite_")}
        except (sqlite3.Error, sqlite3.Warning, ValueError):  # ValueError: lone surrogates
            return {}
    # only now, because a table may refer to one that is created later
    return {name: _resolve_parents(table, tables) for name, table in tables.items()}


def affinity(declared: str) -> str:
    """Return the affinity of a declared type, by the rules of https://www.sqlite.org/datatype3.html (section 3.1)."""
    # affinity -> substrings of the type; the first rule that matches applies, so `charint` is INTEGER
    rules = {"INTEGER": ("int",), "TEXT": ("char", "clob", "text"), "BLOB": ("blob",), "REAL": ("real", "floa", "doub")}
    if not declared:
        return "BLOB"
    return next((name for name, parts in rules.items() if any(part in declared.lower() for part in parts)), "NUMERIC")


def _create(database: sqlite3.Connection, statement: str) -> None:
    """Create a table; if SQLite cannot read the statement, try again with quotes around unquoted column names."""
    try:
        database.execute(statement)
    except sqlite3.Error:
        database.execute(_UNQUOTED.sub(lambda match: match[1] + quote(match[2]), statement))


def _read_table(database: sqlite3.Connection, name: str) -> Table:
    """Read a table from the database; a reference without a column has the column "" in `parents`."""
    columns, key, parents = [], [], {}
    # rows: index, name, type, NOT NULL, default value, position in the primary key (0: not in the key)
    for _, column, declared, not_null, _, key_position in database.execute(f"PRAGMA table_info({quote(name)})"):
        nullable = not not_null and not key_position
        columns.append(Column(column.lower(), declared.lower(), affinity(declared), nullable))
        if key_position:
            key.append(column.lower())
    # rows: id, sequence number, parent table, column of this table, column of the parent table or None, actions
    for _, _, parent, column, parent_column, *_ in database.execute(f"PRAGMA foreign_key_list({quote(name)})"):
        parents[column.lower()] = (parent.lower(), (parent_column or "").lower())
    return Table(name, tuple(columns), tuple(key), parents)


def _resolve_parents(table: Table, tables: Mapping[str, Table]) -> Table:
    """Return the table with references to existing columns only.

    A reference without a column means the parent's primary key, of which the first column is taken. References to a
    missing table or column are dropped.
    """
    parents = {}
    for column, (parent, parent_column) in table.parents.items():
        if parent in tables:
            target = parent_column or next(iter(tables[parent].key), "")
            if target in {candidate.name for candidate in tables[parent].columns}:
                parents[column] = (parent, target)
    return Table(table.name, table.columns, table.key, parents)
