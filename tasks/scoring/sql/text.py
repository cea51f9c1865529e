"""Reader of SQL that is not run: tokens, statements, and the query in a model's answer."""

from __future__ import annotations

import re

from tasks.scoring.fences import fenced_blocks

QUOTED = r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`"""
# A quoted string or identifier, in which a doubled quote means one quote; a word or number; any other character.
_TOKEN = re.compile(rf"{QUOTED}|\w+|[^\w\s]")
_COMMENT = re.compile(rf"({QUOTED})|--[^\n]*|/\*.*?\*/", re.DOTALL)
_PIECE = re.compile(rf"{QUOTED}|[^'\"`;]+|.", re.DOTALL)
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
_END = re.compile(rf"{QUOTED}|--[^\n]*|/\*.{{0,2000}}?\*/|(?P<end>;)", re.DOTALL)
_STATEMENT = re.compile(rf"{_COMMENTS}(?:(?i:{_QUERY})|[A-Z]{{4,}}\b)", re.DOTALL)
_PROSE = re.compile(
    r"(?<![,(])\n[ \t]{0,9}\n(?=[*#>\s]{0,9}[A-Z][a-z]*(?:[*]*:|['’]?[a-z]*\s+(?!as\b)[a-z]+\b(?!\s*[(=,.])))"
)
_MARKS = re.compile(r"(?:\s{0,9}(?:\*\*|`{1,3}|</sql>|\[/SQL\]|<\|[^|]{0,40}\|>)){1,6}\s*\Z", re.IGNORECASE)


def sql_of_answer(text: str) -> str:
    """Return the SQL in an answer.

    After its few-shot answer a base model goes on with invented instructions, so the text is cut at the first line that
    begins `Instruction:`. A chat model's SQL is the first fenced block with a query, or the first block; else inline
    code that is a query; else the text from where a query begins, up to its semicolon or to a paragraph of prose.
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
    """Return a text that begins with a query up to its end; further statements stay."""
    for part in _END.finditer(query):
        if part["end"] and not _STATEMENT.match(query, part.end()):
            return query[: part.start()]
    return _MARKS.sub("", _PROSE.split(query, maxsplit=1)[0])


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
