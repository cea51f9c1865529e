"""Questions about a small database, answered with one SQL statement, in the form of Spider 2.0.

Columns are drawn anew for every table, so that a statement cannot be written without reading the schema.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ssd_bench.conf import read_yaml
from studies.miniature.domains.item import Item

TASK = "spider2"

TEXTS = read_yaml(Path(__file__).with_suffix(".yaml"))


@dataclass(frozen=True)
class _Table:
    name: str
    texts: tuple[str, ...]
    ints: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def plural(self) -> str:
        return f"{_spoken(self.name)}s"

    def ddl(self) -> str:
        typed = ", ".join(f"{c} {'TEXT' if c in self.texts else 'INT'}" for c in self.columns)
        return f"CREATE TABLE {self.name} ({typed});"


# (random generator, table) -> question and statement.
_Kind = Callable[[random.Random, _Table], tuple[str, str]]


def make(rng: random.Random) -> Item:
    """Make a schema of two or three tables, a question about one of them, and its statement."""
    tables = [_table(rng, name) for name in rng.sample(TEXTS["tables"], rng.choice((2, 3)))]
    question, query = rng.choice(_KINDS)(rng, rng.choice(tables))
    instruction = "\n".join([*(table.ddl() for table in tables), question])
    return Item({"instruction": instruction, "query": query}, query)


def row(item: Item) -> dict[str, str]:
    """Return the item's fields as in Spider2; the schema is part of the question, and a field of its own."""
    schema, _, _ = item.row["instruction"].rpartition("\n")
    return {"question": item.row["instruction"], "query": item.row["query"], "schema": schema}


def bare(item: Item) -> dict[str, str]:
    """Return the item's fields as in Spider, with the question without its schema."""
    schema, _, question = item.row["instruction"].rpartition("\n")
    return {"question": question, "query": item.row["query"], "schema": schema}


def _table(rng: random.Random, name: str) -> _Table:
    """Draw a table with an id and two or three further columns, at least one a text and one a number."""
    texts = [rng.choice(TEXTS["texts"])]
    ints = [rng.choice(TEXTS["ints"])]
    if rng.random() < 0.7:
        extra, pool = (texts, TEXTS["texts"]) if rng.random() < 0.5 else (ints, TEXTS["ints"])
        extra.append(rng.choice([column for column in pool if column not in extra]))
    further = [*texts, *ints]
    rng.shuffle(further)
    return _Table(name, tuple(texts), tuple(ints), ("id", *further))


def _spoken(name: str) -> str:
    return name.replace("_", " ")


def _condition(rng: random.Random, table: _Table) -> tuple[str, str]:
    """Draw a condition on one column, in English and in SQL."""
    if rng.random() < 0.3:
        column, value = rng.choice(table.texts), rng.choice(TEXTS["values"])
        return f"whose {_spoken(column)} is '{value}'", f"WHERE {column} = '{value}'"
    column, number = rng.choice(table.ints), rng.randint(2, 99)
    phrase, sign = rng.choice((("is more than", ">"), ("is less than", "<"), ("is exactly", "=")))
    return f"whose {_spoken(column)} {phrase} {number}", f"WHERE {column} {sign} {number}"


def _one_column(rng: random.Random, table: _Table) -> tuple[str, str]:
    column = rng.choice(table.columns)
    return f"Show the {_spoken(column)} of every {_spoken(table.name)}.", f"SELECT {column} FROM {table.name};"


def _two_columns(rng: random.Random, table: _Table) -> tuple[str, str]:
    first, second = rng.sample(table.columns, 2)
    question = f"Show the {_spoken(first)}, {_spoken(second)} of every {_spoken(table.name)}."
    return question, f"SELECT {first}, {second} FROM {table.name};"


def _where(rng: random.Random, table: _Table) -> tuple[str, str]:
    column = rng.choice(table.columns)
    english, sql = _condition(rng, table)
    question = f"Show the {_spoken(column)} of each {_spoken(table.name)} {english}."
    return question, f"SELECT {column} FROM {table.name} {sql};"


def _two_where(rng: random.Random, table: _Table) -> tuple[str, str]:
    first, second = rng.sample(table.columns, 2)
    english, sql = _condition(rng, table)
    question = f"Show the {_spoken(first)}, {_spoken(second)} of each {_spoken(table.name)} {english}."
    return question, f"SELECT {first}, {second} FROM {table.name} {sql};"


def _count(rng: random.Random, table: _Table) -> tuple[str, str]:
    return f"How many {table.plural} are there?", f"SELECT COUNT(*) FROM {table.name};"


def _count_where(rng: random.Random, table: _Table) -> tuple[str, str]:
    english, sql = _condition(rng, table)
    return f"How many {table.plural} are there {english}?", f"SELECT COUNT(*) FROM {table.name} {sql};"


def _aggregate(rng: random.Random, table: _Table) -> tuple[str, str]:
    column = rng.choice(table.ints)
    word, function = rng.choice((("largest", "MAX"), ("smallest", "MIN"), ("average", "AVG")))
    question = f"What is the {word} {_spoken(column)} of all {table.plural}?"
    return question, f"SELECT {function}({column}) FROM {table.name};"


def _ordered(rng: random.Random, table: _Table) -> tuple[str, str]:
    column, key = rng.choice(table.columns), rng.choice(table.ints)
    way, order = rng.choice((("lowest", "ASC"), ("highest", "DESC")))
    question = f"Sort the {table.plural} with the {way} {_spoken(key)} first and show the {_spoken(column)}."
    return question, f"SELECT {column} FROM {table.name} ORDER BY {key} {order};"


def _top(rng: random.Random, table: _Table) -> tuple[str, str]:
    column, key, limit = rng.choice(table.columns), rng.choice(table.ints), rng.randint(2, 30)
    way, order = rng.choice((("lowest", "ASC"), ("highest", "DESC")))
    question = f"Show the {_spoken(column)} of the {limit} {table.plural} with the {way} {_spoken(key)}."
    return question, f"SELECT {column} FROM {table.name} ORDER BY {key} {order} LIMIT {limit};"


def _grouped(rng: random.Random, table: _Table) -> tuple[str, str]:
    column = rng.choice(table.texts)
    question = f"For each {_spoken(column)}, how many {table.plural} are there?"
    return question, f"SELECT {column}, COUNT(*) FROM {table.name} GROUP BY {column};"


def _distinct(rng: random.Random, table: _Table) -> tuple[str, str]:
    column = rng.choice(table.texts)
    question = f"Show every different {_spoken(column)} of the {table.plural} once."
    return question, f"SELECT DISTINCT {column} FROM {table.name};"


_KINDS: tuple[_Kind, ...] = (
    *(_one_column, _two_columns, _where, _two_where, _count, _count_where, _aggregate, _ordered, _top),
    *(_grouped, _distinct),
)
