"""Questions about a small database, answered with one SQL statement, in the form of Spider 2.0.

Columns are drawn anew for every table, so that a statement cannot be written without reading the schema.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ssd_bench.conf import read_yaml
from studies.miniature.domains.item import Item

TEXTS = read_yaml(Path(__file__).with_suffix(".yaml"))


class _Name(str):
    """Name of a table or column."""

    @property
    def spoken(self) -> str:
        return self.replace("_", " ")


@dataclass(frozen=True)
class _Table:
    name: _Name
    texts: Sequence[_Name]
    ints: Sequence[_Name]
    columns: Sequence[_Name]

    def ddl(self) -> str:
        typed = ", ".join(f"{c} {'TEXT' if c in self.texts else 'INT'}" for c in self.columns)
        return f"CREATE TABLE {self.name} ({typed});"


def make(rng: random.Random) -> Item:
    """Make a schema of two or three tables, a question about one of them, and its statement."""
    tables = [_table(rng, name) for name in rng.sample(TEXTS["tables"], rng.choice((2, 3)))]
    kind, table = rng.choice(TEXTS["kinds"]), rng.choice(tables)
    slots: dict[str, object] = {"table": table.name}
    for name in kind["draws"]:
        slots |= _draw(rng, table, name)
    question, query = kind["question"].format(**slots), kind["query"].format(**slots)
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
    return _Table(_Name(name), *([_Name(column) for column in part] for part in (texts, ints, ["id", *further])))


def _draw(rng: random.Random, table: _Table, name: str) -> dict[str, object]:
    """Draw what a kind of question names, by the slots of its texts."""
    match name:
        case "columns":
            return dict(zip(("first", "second"), rng.sample(table.columns, 2)))
        case "aggregate":
            return dict(zip(("word", "function"), rng.choice(TEXTS["aggregates"])))
        case "order":
            return dict(zip(("way", "order"), rng.choice(TEXTS["orders"])))
        case "limit":
            return {"limit": rng.randint(2, 30)}
        case "condition":
            return dict(zip(("which", "where"), _condition(rng, table)))
    return {name: rng.choice({"column": table.columns, "text": table.texts, "number": table.ints}[name])}


def _condition(rng: random.Random, table: _Table) -> tuple[str, str]:
    """Draw a condition on one column, in English and in SQL."""
    if rng.random() < 0.3:
        column, value = rng.choice(table.texts), rng.choice(TEXTS["values"])
        return f"whose {column.spoken} is '{value}'", f"WHERE {column} = '{value}'"
    column, number = rng.choice(table.ints), rng.randint(2, 99)
    phrase, sign = rng.choice((("is more than", ">"), ("is less than", "<"), ("is exactly", "=")))
    return f"whose {column.spoken} {phrase} {number}", f"WHERE {column} {sign} {number}"
