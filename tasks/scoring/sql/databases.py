"""Small databases on which queries are compared, generated from a schema and the reference query, equal in every run.

As in the test suites of Zhong et al. (2020, arXiv:2010.02840), random rows distinguish queries that differ. Their
suites are distilled from real databases and mutants of a query; these databases hold the values of the query's own
literals, and values that just miss them.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from tasks.scoring.sql.engine import Rows, equal_results, image_of, result
from tasks.scoring.sql.literals import QueryLiterals, Value, near_values, read_literals
from tasks.scoring.sql.schema import Column, Table, read_schema
from tasks.scoring.sql.text import is_ordered, statements

CASES, CANDIDATES, ORDERS = 6, 24, 4
SIZES = (20, 12, 30, 24)  # numbers of rows of the tables
FEW = 3  # number of words in databases whose values occur often
WORDS = ("Amber", "Birch", "Cedar", "Delta", "Ember", "Flint", "Grove", "Heath")
NULL_SHARE = 0.25

_Column = tuple[str, str]  # table and column, in lower case


@dataclass(frozen=True)
class Case:
    """A database in the form of `sqlite3.Connection.serialize`, and the reference query's result on it."""

    image: bytes
    expected: Rows


@lru_cache(maxsize=256)
def cases(query: str, schema: str, answer: str = "") -> tuple[Case, ...]:
    """Return up to `CASES` databases on which the query has a result; empty unless one of the results has a row.

    If a result depends on what SQL leaves open (which of equal rows LIMIT keeps, say), it changes when the same rows
    are stored in another order. Such a database is used only if there is no other. Among the others, databases are
    preferred whose result has more than zeros and NULL.

    Args:
        query: the reference query.
        schema: CREATE TABLE statements.
        answer: another query, whose literals occur in the databases too.
    """
    tables = read_schema(schema)
    parsed = statements(query)
    if not tables or len(parsed) != 1:
        return ()
    wanted = _literals(f"{query}\n;{answer}", tables)
    unstable: list[Case] = []
    stable: list[Case] = []
    for number in range(CANDIDATES):
        source = _RowGenerator(tables, wanted, number, f"{schema}\0{query}\0{answer}")
        rows = source.by_table()
        image = _image(tables, rows)
        expected = result(image, parsed[0])
        if expected is None:
            return ()
        results = (result(_image(tables, held), parsed[0]) for held in source.reordered(rows))
        is_stable = all(equal_results(reordered, expected, is_ordered(query)) for reordered in results)
        (stable if is_stable else unstable).append(Case(image, expected))
        if sum(map(_is_informative, stable)) == CASES:
            break
    chosen = sorted(stable or unstable, key=_is_informative, reverse=True)[:CASES]
    return tuple(chosen) if any(case.expected for case in chosen) else ()


def has_new_literals(query: str, schema: str, answer: str) -> bool:
    """Return whether an answer has literals that the reference query lacks."""
    tables = read_schema(schema)
    known_values, answer_values = (_literals(text, tables).values for text in (query, answer))
    return any(
        value not in known_values.get(column, []) for column, values in answer_values.items() for value in values
    )


def _literals(query: str, tables: Mapping[str, Table]) -> QueryLiterals:
    columns = {column.name for table in tables.values() for column in table.columns}
    parents = [(child, parent) for table in tables.values() for child, (_, parent) in table.parents.items()]
    return read_literals(query, columns, parents)


def _is_informative(case: Case) -> bool:
    return any(cell not in (None, 0, "") for row in case.expected for cell in row)


def _image(tables: Mapping[str, Table], rows: Mapping[str, Rows]) -> bytes:
    """Return the image of the database; its columns have the affinity of the declared types, and no constraints."""
    listed = {name: [(column.name, column.affinity) for column in table.columns] for name, table in tables.items()}
    return image_of((table.name, listed[name], rows[name]) for name, table in tables.items())


class _RowGenerator:
    """Generator of the rows of one database.

    Keys of one column are unique unless the column refers to another table: flattened schemas (Spider's) declare only
    the first column of a compound key as the key. Columns that refer to other columns take their values. In every
    second database, columns by which the query orders have distinct values, and numbers have a wider range.
    """

    def __init__(self, tables: Mapping[str, Table], wanted: QueryLiterals, number: int, seed: str) -> None:
        self.tables, self.wanted, self.wide = tables, wanted, number % 2 == 1
        self.sizes = {name: SIZES[(number + place) % len(SIZES)] for place, name in enumerate(tables)}
        self.random = random.Random(hashlib.sha256(f"{number}\0{seed}".encode(errors="replace")).hexdigest())
        self.values_of: dict[_Column, list[Value]] = {}

    def by_table(self) -> dict[str, Rows]:
        """Return the rows by table."""
        return {name: self._rows(name, table) for name, table in self.tables.items()}

    def reordered(self, rows: Mapping[str, Rows]) -> Iterator[dict[str, Rows]]:
        """Yield the same rows in `ORDERS` other orders, the reverse first."""
        yield {name: held[::-1] for name, held in rows.items()}
        for _ in range(ORDERS - 1):
            yield {name: self.random.sample(held, len(held)) for name, held in rows.items()}

    def _rows(self, name: str, table: Table) -> Rows:
        held: list[list[Value | None]] = []
        for column in table.columns:
            values: list[Value | None] = list(self._values(name, column, ()))
            if self.wanted.nulls and column.nullable:
                values = [None if self.random.random() < NULL_SHARE else value for value in values]
            held.append(values)
        rows: Rows = list(zip(*held, strict=True))
        if len(table.key) > 1:
            places = [place for place, column in enumerate(table.columns) if column.name in table.key]
            rows = list({tuple(row[place] for place in places): row for row in rows}.values())
        return rows

    def _values(self, name: str, column: Column, path: tuple[_Column, ...]) -> list[Value]:
        """Return the column's values, generated once; `path` holds the columns that wait for them, to detect cycles."""
        place = (name, column.name)
        if place not in self.values_of:
            table, size = self.tables[name], self.sizes[name]
            parent = table.parents.get(column.name)
            if parent and parent not in (*path, place):
                target = next(candidate for candidate in self.tables[parent[0]].columns if candidate.name == parent[1])
                held = self._values(parent[0], target, (*path, place))
                self.values_of[place] = self._draw_referenced(column, held, size)
            elif (column.name,) == table.key or (self.wide and column.name in self.wanted.ordered):
                self.values_of[place] = self._distinct(column, size)
            else:
                self.values_of[place] = [self._value(column) for _ in range(size)]
        return self.values_of[place]

    def _draw_referenced(self, column: Column, held: list[Value], size: int) -> list[Value]:
        """Return values of the column that this one refers to; values of the query's literals are more frequent."""
        bound = self.wanted.values.get(column.name, [])
        likely = [value for value in held if value in bound] * 4
        return self.random.choices(held + likely, k=size)

    def _distinct(self, column: Column, size: int) -> list[Value]:
        """Return distinct values in random order."""
        values: dict[Value, None] = {}
        turn = 0
        while len(values) < size:
            value, turn = self._value(column), turn + 1
            if value in values:
                value = f"{value}{turn}" if isinstance(value, str) else value + self.random.randint(-turn, turn)
            values[value] = None
        shuffled_values = list(values)
        self.random.shuffle(shuffled_values)
        return shuffled_values

    def _value(self, column: Column) -> Value:
        """Return the value of a literal of the query, a value near one, or any value of the column's kind."""
        draw = self.random.random()
        bound = self.wanted.values.get(column.name, [])
        if bound and draw < 0.75:
            literal = self.random.choice(bound)
            return literal if draw < 0.5 else self.random.choice(near_values(literal))
        return self._random_value(column)

    def _random_value(self, column: Column) -> Value:
        pick = self.random.randint
        if "bool" in column.type:
            return pick(0, 1)
        description = f"{column.name} {column.type}"
        if "year" in description:
            return pick(2012, 2021)
        if column.affinity not in ("INTEGER", "REAL") and ("date" in description or "time" in description):
            day = f"{pick(2015, 2021)}-{pick(1, 12):02}-{pick(1, 28):02}"
            return f"{day} {pick(0, 23):02}:{pick(0, 59):02}:00" if "time" in description else day
        if column.affinity in ("TEXT", "BLOB") and column.name not in self.wanted.numbers:
            return self.random.choice(WORDS if self.wide else WORDS[:FEW])
        number = pick(1, 200 if self.wide else 7)
        return number / 4 if column.affinity == "REAL" else number
