"""Reading SQL without running it: tokens, statements, and the query in a model's answer."""

from __future__ import annotations

import re

QUOTED = r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`"""
# A quoted string or identifier, in which a doubled quote stands for itself; a word or number; any other character.
_TOKEN = re.compile(rf"{QUOTED}|\w+|[^\w\s]")
_COMMENT = re.compile(rf"({QUOTED})|--[^\n]*|/\*.*?\*/", re.DOTALL)
_PIECE = re.compile(rf"{QUOTED}|[^'\"`;]+|.", re.DOTALL)
_NEXT = re.compile(r"\n\s*Instruction:")
_FENCE = re.compile(r"```[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)


def answered(text: str) -> str:
    """What of an answer is SQL.

    A base model goes on to invent further instructions after its few-shot answer: the text is cut at the first line
    that begins `Instruction:`. Of a text with fenced code blocks, as chat models write it, the first block is the SQL.
    """
    answer = _NEXT.split(text, maxsplit=1)[0]
    fenced = _FENCE.search(answer)
    return fenced[1] if fenced else answer


def tokens(query: str) -> list[str]:
    """The query's tokens, in lower case where they are not quoted, less any semicolons at its end."""
    found = _TOKEN.findall(without_comments(query))
    while found and found[-1] == ";":
        found.pop()
    return [token if token[0] in "'\"`" else token.lower() for token in found]


def statements(text: str) -> list[str]:
    """The statements of a text, without comments and semicolons, none empty."""
    found = [""]
    for piece in _PIECE.findall(without_comments(text)):
        if piece == ";":
            found.append("")
        else:
            found[-1] += piece
    return [statement.strip() for statement in found if statement.strip()]


def without_comments(text: str) -> str:
    return _COMMENT.sub(lambda found: found[1] or " ", text)


def is_ordered(query: str) -> bool:
    """Whether the rows of the query's result have an order: ORDER BY outside all parentheses."""
    depth, before = 0, ""
    for token in tokens(query):
        depth += (token == "(") - (token == ")")
        if depth == 0 and (before, token) == ("order", "by"):
            return True
        before = token
    return False
