"""Literals of a query, by column: values that generated rows must have, or just miss, for the query to find some."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from tasks.scoring.sql.text import QUOTED, without_comments

Value = str | int | float

# Longer literals are ignored; 15 digits are exact in a float too.
_LONGEST, _DIGITS = 200, 15

_TOKEN = re.compile(rf"(?P<quoted>{QUOTED})|(?P<number>(?<![\w.])\d+(?:\.\d+)?\b)|(?P<word>\w+)|(?P<other>[^\w\s])")
_DAY = re.compile(r"(\d{4})(-\d\d.*)", re.DOTALL)
_NULL_WORDS = {"null", "isnull", "notnull", "ifnull", "coalesce", "nullif"}
_CLAUSES = {"select", "from", "where", "group", "having", "limit", "union", "intersect", "except"}


@dataclass
class QueryLiterals:
    """Uses of columns in a query, by the column's name in lower case, for all tables together.

    Attributes:
        values: literals that follow the column.
        ordered: columns in an ORDER BY.
        numbers: columns that are summed or averaged, whatever their type.
        nulls: whether the query mentions NULL.
    """

    values: dict[str, list[Value]] = field(default_factory=dict)
    ordered: set[str] = field(default_factory=set)
    numbers: set[str] = field(default_factory=set)
    nulls: bool = False


def read_literals(query: str, columns: Collection[str], parents: Iterable[tuple[str, str]]) -> QueryLiterals:
    """Read a query: a literal belongs to the column named last before it, and to the column that this one refers to.

    Args:
        query: SQL.
        columns: names of the columns of all tables, in lower case.
        parents: pairs of a column and the column that it refers to.
    """
    literals, column, clause, sums = QueryLiterals(), "", "", False
    for token in _TOKEN.finditer(without_comments(query)):
        text = token[0]
        word = text[1:-1].lower() if token["quoted"] and text[0] != "'" else text.lower()
        if token["word"] and word in _CLAUSES | {"order"}:
            column, clause = "", word
        elif token["word"] and word in _NULL_WORDS:
            literals.nulls = True
        elif word in columns and not token["number"] and text[0] != "'":
            column = word
            if clause == "order":
                literals.ordered.add(word)
            if sums:
                literals.numbers.add(word)
        elif token["word"] and word in ("sum", "avg"):
            sums = True
        elif text == "*":
            column = ""
        elif text == ")":
            sums, clause = False, "" if clause == "order" else clause
        elif column and (value := _value(text)) is not None:
            literals.values.setdefault(column, []).append(value)
    for child, parent in parents:
        if child != parent and child in literals.values:
            literals.values.setdefault(parent, []).extend(literals.values[child])
    return literals


def near_values(value: Value) -> list[Value]:
    """Return values that `= value`, `<`, `>` or LIKE distinguish from the value, and some that they may not."""
    if isinstance(value, str):
        if day := _DAY.fullmatch(value):
            return [f"{int(day[1]) - 1:04}{day[2]}", f"{int(day[1]) + 1:04}{day[2]}"]
        return [f"{value}x", f"x{value}", f"x{value}x", value.swapcase(), value[:-1]]
    return [value - 1, value + 1, value * 2, value // 2, value + 0.5 if isinstance(value, float) else value + 3]


def _value(text: str) -> Value | None:
    """Return the value of a literal, or a text that matches a pattern; None if it is no literal or too long."""
    if text[0] in "'\"" and len(text) <= _LONGEST:
        content = text[1:-1].replace(text[0] * 2, text[0])
        return content.strip("%").replace("%", "x").replace("_", "x") if "%" in content else content
    if text[0].isdigit() and len(text) <= _DIGITS:
        return float(text) if "." in text else int(text)
    return None
