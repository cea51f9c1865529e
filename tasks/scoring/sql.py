"""Scorer of SQL queries, compared as text."""

from __future__ import annotations

import re

from tasks.scoring.fences import fenced_blocks
from tasks.scoring.scorer import Scorer

_QUOTED = r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`"""
# A quoted string or identifier, in which a doubled quote means one quote; a word or number; any other character.
_TOKEN = re.compile(rf"{_QUOTED}|\w+|[^\w\s]")
_COMMENT = re.compile(rf"({_QUOTED})|--[^\n]*|/\*.*?\*/", re.DOTALL)
_NEXT = re.compile(r"\n\s*Instruction:")
_COMMENTS = r"(?:\s|--[^\n]*(?:\n|\Z)|/\*[\s\S]{0,2000}?\*/)*"
_CTE = rf"WITH\b(?=\s){_COMMENTS}(?:RECURSIVE\s+)?[\w\"`]+\s*(?:\([^()]*\)\s*)?AS\s*(?:\w+\s+)?\("
_QUERY = rf"(?:\(\s{{0,8}}){{0,4}}(?:SELECT\b|VALUES\s*\(|{_CTE})"
_IS_QUERY = re.compile(rf"{_COMMENTS}{_QUERY}", re.IGNORECASE | re.DOTALL)
_IS_OTHER_SQL = re.compile(
    r"\s*(?:EXPLAIN|CREATE|INSERT|UPDATE|DELETE|DROP|ALTER|ATTACH|VACUUM|PRAGMA|REPLACE|BEGIN)\b"
)
_INLINE = re.compile(
    rf"(?<!`)(`{{1,3}})(?:sql\s+)?(?=\s{{0,9}}{_QUERY})(.{{1,4000}}?)\1(?!`)", re.IGNORECASE | re.DOTALL
)
# where a query begins in prose: a line, a label, or capitals
_BEGINNINGS = (
    re.compile(
        rf"(?:^[\s>*_`]{{0,9}}(?:<sql>|\[SQL\])?|:[\s*_`]{{0,9}}|\bis\s{{1,9}})(?={_QUERY})",
        re.IGNORECASE | re.MULTILINE,
    ),
    re.compile(rf"(?<![\w.])(?={_QUERY})"),
)
_END = re.compile(rf"{_QUOTED}|--[^\n]*|/\*.{{0,2000}}?\*/|(?P<end>;)", re.DOTALL)
_STATEMENT = re.compile(rf"{_COMMENTS}(?:(?i:{_QUERY})|[A-Z]{{4,}}\b)", re.DOTALL)
_PROSE = re.compile(
    r"(?<![,(])\n[ \t]{0,9}\n(?=[*#>\s]{0,9}[A-Z][a-z]*(?:[*]*:|['’]?[a-z]*\s+(?!as\b)[a-z]+\b(?!\s*[(=,.])))"
)
_MARKS = re.compile(r"(?:\s{0,9}(?:\*\*|`{1,3}|</sql>|\[/SQL\]|<\|[^|]{0,40}\|>)){1,6}\s*\Z", re.IGNORECASE)


class SqlMatch(Scorer):
    """1.0 if the query in the answer (`sql_of_answer`) equals the reference query, else 0.0.

    White space, comments, closing semicolons and unquoted case do not count.
    """

    metric = "exact_match"

    def item(self, prediction: str, reference: str) -> float | None:
        if not reference.strip():
            return None
        expected = _tokens(reference)
        return float(bool(expected) and _tokens(sql_of_answer(prediction)) == expected)


def sql_of_answer(text: str) -> str:
    """Return the SQL in an answer.

    The text is cut at the first line that begins `Instruction:`, which base models invent. A chat model's SQL is the
    first fenced block with a query, or the first block; else inline code that is a query; else the text from a query's
    beginning up to its semicolon or a paragraph of prose.
    """
    answer = _NEXT.split(text, maxsplit=1)[0]
    if _IS_QUERY.match(answer):
        return _without_prose(answer)
    blocks = fenced_blocks(answer, lambda code: True)
    if blocks:
        return next(filter(_IS_QUERY.match, blocks), blocks[0])
    if _IS_OTHER_SQL.match(answer):
        return answer
    if inline := _INLINE.search(answer):
        return inline[2]
    begin = next((found for pattern in _BEGINNINGS if (found := pattern.search(answer))), None)
    return _without_prose(answer[begin.end() :]) if begin else answer


def _without_prose(query: str) -> str:
    for part in _END.finditer(query):
        if part["end"] and not _STATEMENT.match(query, part.end()):
            return query[: part.start()]
    return _MARKS.sub("", _PROSE.split(query, maxsplit=1)[0])


def _tokens(query: str) -> list[str]:
    """Return the query's tokens without final semicolons, in lower case unless quoted."""
    pieces = _TOKEN.findall(_COMMENT.sub(lambda match: match[1] or " ", query))
    while pieces and pieces[-1] == ";":
        pieces.pop()
    return [token if token[0] in "'\"`" else token.lower() for token in pieces]
