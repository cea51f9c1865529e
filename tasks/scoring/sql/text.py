"""Reader of SQL that is not run: tokens, statements, and the query in a model's answer."""

from __future__ import annotations

import re

QUOTED = r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`"""
# A quoted string or identifier, in which a doubled quote means one quote; a word or number; any other character.
_TOKEN = re.compile(rf"{QUOTED}|\w+|[^\w\s]")
_COMMENT = re.compile(rf"({QUOTED})|--[^\n]*|/\*.*?\*/", re.DOTALL)
_PIECE = re.compile(rf"{QUOTED}|[^'\"`;]+|.", re.DOTALL)
_NEXT = re.compile(r"\n\s*Instruction:")
_FENCE = re.compile(r"```[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)


def sql_of_answer(text: str) -> str:
    """Return the SQL in an answer.

    After its few-shot answer a base model goes on with invented instructions, so the text is cut at the first line that
    begins `Instruction:`. In a text with fenced code blocks, which chat models write, the first block is the SQL.
    """
    answer = _NEXT.split(text, maxsplit=1)[0]
    fenced = _FENCE.search(answer)
    return fenced[1] if fenced else answer


def tokens(query: str) -> list[str]:
    """Return the query's tokens without semicolons at its end, in lower case unless they are quoted."""
    pieces = _TOKEN.findall(without_comments(query))
    while pieces and pieces[-1] == ";":
        pieces.pop()
    return [token if token[0] in "'\"`" else token.lower() for token in pieces]


def statements(text: str) -> list[str]:
    """Return the non-empty statements of a text, without comments and semicolons."""
    parts = [""]
    for piece in _PIECE.findall(without_comments(text)):
        if piece == ";":
            parts.append("")
        else:
            parts[-1] += piece
    return [statement.strip() for statement in parts if statement.strip()]


def without_comments(text: str) -> str:
    return _COMMENT.sub(lambda match: match[1] or " ", text)


def is_ordered(query: str) -> bool:
    """Return whether the query orders the rows of its result: by an ORDER BY outside all parentheses."""
    depth, before = 0, ""
    for token in tokens(query):
        depth += (token == "(") - (token == ")")
        if depth == 0 and (before, token) == ("order", "by"):
            return True
        before = token
    return False
