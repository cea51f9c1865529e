"""What a query asks its columns for: the values that generated rows must have, and just miss, for it to find some."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from tasks.scoring.sql.text import QUOTED, without_comments

Value = str | int | float

# Longer literals are not looked for; 15 digits are exact in a float too.
_LONGEST, _DIGITS = 200, 15

_TOKEN = re.compile(rf"(?P<quoted>{QUOTED})|(?P<number>(?<![\w.])\d+(?:\.\d+)?\b)|(?P<word>\w+)|(?P<other>[^\w\s])")
_DAY = re.compile(r"(\d{4})(-\d\d.*)", re.DOTALL)
_NULL_WORDS = {"null", "isnull", "notnull", "ifnull", "coalesce", "nullif"}
_CLAUSES = {"select", "from", "where", "group", "having", "limit", "union", "intersect", "except"}


@dataclass
class Asked:
    """What a query says of columns, by name in lower case, in whichever table.

    Attributes:
        values: literals that follow the column.
        ordered: columns that stand in an ORDER BY.
        numbers: columns that are added up, whatever their type.
        nulls: whether the query speaks of NULL.
    """

    values: dict[str, list[Value]] = field(default_factory=dict)
    ordered: set[str] = field(default_factory=set)
    numbers: set[str] = field(default_factory=set)
    nulls: bool = False


def asked(query: str, columns: Collection[str], parents: Iterable[tuple[str, str]]) -> Asked:
    """Read a query: a literal belongs to the column named last ahead of it, and to the one that column refers to.

    Args:
        query: SQL.
        columns: names of the columns of all tables, in lower case.
        parents: a column that refers to another, and that one.
    """
    found, column, clause, sums = Asked(), "", "", False
    for token in _TOKEN.finditer(without_comments(query)):
        text = token[0]
        word = text[1:-1].lower() if token["quoted"] and text[0] != "'" else text.lower()
        if token["word"] and word in _CLAUSES | {"order"}:
            column, clause = "", word
        elif token["word"] and word in _NULL_WORDS:
            found.nulls = True
        elif word in columns and not token["number"] and text[0] != "'":
            column = word
            if clause == "order":
                found.ordered.add(word)
            if sums:
                found.numbers.add(word)
        elif token["word"] and word in ("sum", "avg"):
            sums = True
        elif text == "*":
            column = ""
        elif text == ")":
            sums, clause = False, "" if clause == "order" else clause
        elif column and (value := _value(text)) is not None:
            found.values.setdefault(column, []).append(value)
    for child, parent in parents:
        if child != parent and child in found.values:
            found.values.setdefault(parent, []).extend(found.values[child])
    return found


def near(value: Value) -> list[Value]:
    """Values that the condition `= value`, or one with `<`, `>` or LIKE, tells from it, and some that it may not."""
    if isinstance(value, str):
        if day := _DAY.fullmatch(value):
            return [f"{int(day[1]) - 1:04}{day[2]}", f"{int(day[1]) + 1:04}{day[2]}"]
        return [f"{value}x", f"x{value}", f"x{value}x", value.swapcase(), value[:-1]]
    return [value - 1, value + 1, value * 2, value // 2, value + 0.5 if isinstance(value, float) else value + 3]


def _value(text: str) -> Value | None:
    """The value of a literal, of a pattern a text that fits it; None for what is no literal or too long."""
    if text[0] in "'\"" and len(text) <= _LONGEST:
        content = text[1:-1].replace(text[0] * 2, text[0])
        return content.strip("%").replace("%", "x").replace("_", "x") if "%" in content else content
    if text[0].isdigit() and len(text) <= _DIGITS:
        return float(text) if "." in text else int(text)
    return None
