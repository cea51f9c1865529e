"""Small databases to compare queries on, made of a schema and the reference query, the same in every run.

As the test suites of Zhong et al. (2020, arXiv:2010.02840), random rows tell queries apart that differ; those are
distilled from real databases and mutants of a query, these hold what the query's own literals ask for, and values that
just miss it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from tasks.scoring.sql.engine import Rows, image_of, result, same
from tasks.scoring.sql.literals import Asked, Value, asked, near
from tasks.scoring.sql.schema import Column, Table, read_schema
from tasks.scoring.sql.text import is_ordered, statements

CASES, CANDIDATES, ORDERS = 6, 24, 4
SIZES = (20, 12, 30, 24)  # rows of a table
FEW = 3  # words in databases where values occur often
WORDS = ("Amber", "Birch", "Cedar", "Delta", "Ember", "Flint", "Grove", "Heath")
NULL_SHARE = 0.25

_Column = tuple[str, str]  # table and column, in lower case


@dataclass(frozen=True)
class Case:
    """A database, as `sqlite3.Connection.serialize` makes it, and what the reference query gives on it."""

    image: bytes
    expected: Rows


@lru_cache(maxsize=256)
def cases(query: str, schema: str, answer: str = "") -> tuple[Case, ...]:
    """Up to `CASES` databases on which a query has a result, at least one row in one of them; else none.

    Where the result depends on what SQL leaves open (which of equal rows LIMIT keeps, say), it changes if the same rows
    are stored in other orders; such a database is used only where there is no other. Of the rest those are preferred
    whose result is more than zeros and NULL.

    Args:
        query: the reference.
        schema: CREATE TABLE statements.
        answer: another query, whose literals occur in the databases too.
    """
    tables = read_schema(schema)
    written = statements(query)
    if not tables or len(written) != 1:
        return ()
    wanted = _asked(f"{query}\n;{answer}", tables)
    unstable: list[Case] = []
    stable: list[Case] = []
    for number in range(CANDIDATES):
        source = _Rows(tables, wanted, number, f"{schema}\0{query}\0{answer}")
        rows = source.all()
        image = _image(tables, rows)
        expected = result(image, written[0])
        if expected is None:
            return ()
        others = (result(_image(tables, held), written[0]) for held in source.reordered(rows))
        kept = all(same(other, expected, is_ordered(query)) for other in others)
        (stable if kept else unstable).append(Case(image, expected))
        if sum(map(_says_something, stable)) == CASES:
            break
    chosen = sorted(stable or unstable, key=_says_something, reverse=True)[:CASES]
    return tuple(chosen) if any(case.expected for case in chosen) else ()


def has_new_literals(query: str, schema: str, answer: str) -> bool:
    """Whether an answer speaks of values that the reference query does not."""
    tables = read_schema(schema)
    own, other = (_asked(text, tables).values for text in (query, answer))
    return any(value not in own.get(column, []) for column, values in other.items() for value in values)


def _asked(query: str, tables: Mapping[str, Table]) -> Asked:
    columns = {column.name for table in tables.values() for column in table.columns}
    parents = [(child, parent) for table in tables.values() for child, (_, parent) in table.parents.items()]
    return asked(query, columns, parents)


def _says_something(case: Case) -> bool:
    return any(cell not in (None, 0, "") for row in case.expected for cell in row)


def _image(tables: Mapping[str, Table], rows: Mapping[str, Rows]) -> bytes:
    """The database; its columns have the affinity of the declared types, and no constraint."""
    listed = {name: [(column.name, column.affinity) for column in table.columns] for name, table in tables.items()}
    return image_of((table.name, listed[name], rows[name]) for name, table in tables.items())


class _Rows:
    """The rows of one database.

    Keys of one column are unique, unless the column refers to another table: flattened schemas (Spider's) declare the
    first column of a compound key as the key. Columns that refer to others take their values. In every other database
    the columns that the query orders by have no value twice, and numbers are spread wider.
    """

    def __init__(self, tables: Mapping[str, Table], wanted: Asked, number: int, seed: str) -> None:
        self.tables, self.wanted, self.wide = tables, wanted, number % 2 == 1
        self.sizes = {name: SIZES[(number + place) % len(SIZES)] for place, name in enumerate(tables)}
        self.random = random.Random(hashlib.sha256(f"{number}\0{seed}".encode(errors="replace")).hexdigest())
        self.made: dict[_Column, list[Value]] = {}

    def all(self) -> dict[str, Rows]:
        """Rows by table."""
        return {name: self._rows(name, table) for name, table in self.tables.items()}

    def reordered(self, rows: Mapping[str, Rows]) -> Iterator[dict[str, Rows]]:
        """The same rows in `ORDERS` other orders, the first the reverse."""
        yield {name: held[::-1] for name, held in rows.items()}
        for _ in range(ORDERS - 1):
            yield {name: self.random.sample(held, len(held)) for name, held in rows.items()}

    def _rows(self, name: str, table: Table) -> Rows:
        held: list[list[Value | None]] = []
        for column in table.columns:
            values: list[Value | None] = list(self._values(name, column, ()))
            if self.wanted.nulls and column.optional:
                values = [None if self.random.random() < NULL_SHARE else value for value in values]
            held.append(values)
        rows: Rows = list(zip(*held, strict=True))
        if len(table.key) > 1:
            places = [place for place, column in enumerate(table.columns) if column.name in table.key]
            rows = list({tuple(row[place] for place in places): row for row in rows}.values())
        return rows

    def _values(self, name: str, column: Column, path: tuple[_Column, ...]) -> list[Value]:
        """The column's values, made once; `path` are the columns whose values wait for them."""
        place = (name, column.name)
        if place not in self.made:
            table, size = self.tables[name], self.sizes[name]
            parent = table.parents.get(column.name)
            if parent and parent not in (*path, place):
                target = next(other for other in self.tables[parent[0]].columns if other.name == parent[1])
                held = self._values(parent[0], target, (*path, place))
                self.made[place] = self._drawn(column, held, size)
            elif (column.name,) == table.key or (self.wide and column.name in self.wanted.ordered):
                self.made[place] = self._distinct(column, size)
            else:
                self.made[place] = [self._value(column) for _ in range(size)]
        return self.made[place]

    def _drawn(self, column: Column, held: list[Value], size: int) -> list[Value]:
        """Values of the column that this one refers to, oftener those that the query asks for."""
        bound = self.wanted.values.get(column.name, [])
        likely = [value for value in held if value in bound] * 4
        return self.random.choices(held + likely, k=size)

    def _distinct(self, column: Column, size: int) -> list[Value]:
        """Values of which none is there twice, in random order."""
        values: dict[Value, None] = {}
        turn = 0
        while len(values) < size:
            value, turn = self._value(column), turn + 1
            if value in values:
                value = f"{value}{turn}" if isinstance(value, str) else value + self.random.randint(-turn, turn)
            values[value] = None
        found = list(values)
        self.random.shuffle(found)
        return found

    def _value(self, column: Column) -> Value:
        """One that the query asks for, one near it, or any other of the column's kind."""
        draw = self.random.random()
        bound = self.wanted.values.get(column.name, [])
        if bound and draw < 0.75:
            literal = self.random.choice(bound)
            return literal if draw < 0.5 else self.random.choice(near(literal))
        return self._any(column)

    def _any(self, column: Column) -> Value:
        pick = self.random.randint
        if "bool" in column.type:
            return pick(0, 1)
        said = f"{column.name} {column.type}"
        if "year" in said:
            return pick(2012, 2021)
        if column.affinity not in ("INTEGER", "REAL") and ("date" in said or "time" in said):
            day = f"{pick(2015, 2021)}-{pick(1, 12):02}-{pick(1, 28):02}"
            return f"{day} {pick(0, 23):02}:{pick(0, 59):02}:00" if "time" in said else day
        if column.affinity in ("TEXT", "BLOB") and column.name not in self.wanted.numbers:
            return self.random.choice(WORDS if self.wide else WORDS[:FEW])
        number = pick(1, 200 if self.wide else 7)
        return number / 4 if column.affinity == "REAL" else number
