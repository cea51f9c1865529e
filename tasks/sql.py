"""Whether two SQL queries are the same text, apart from what SQL does not read."""

from __future__ import annotations

import re

# A quoted string or identifier, in which a doubled quote stands for itself; a word or number; any other character.
_TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\w+|[^\w\s]""")
_COMMENT = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`)|--[^\n]*|/\*.*?\*/""", re.DOTALL)
_NEXT = re.compile(r"\n\s*Instruction:")
_FENCE = re.compile(r"```[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)


def sql_match(reference: str, text: str) -> float:
    """1.0 if the query in `text` equals `reference`, else 0.0.

    White space, comments and closing semicolons do not count, nor does the case of what is not quoted. A base model
    goes on to invent further instructions after its few-shot answer: the text is cut at the first line that begins
    `Instruction:`. Of a text with fenced code blocks, as chat models write it, the first block is the query.
    """
    expected = _tokens(reference)
    answer = _NEXT.split(text, maxsplit=1)[0]
    fenced = _FENCE.search(answer)
    return float(bool(expected) and _tokens(fenced[1] if fenced else answer) == expected)


def _tokens(query: str) -> list[str]:
    """The query's tokens, in lower case where they are not quoted, less any semicolons at its end."""
    tokens = _TOKEN.findall(_COMMENT.sub(lambda found: found[1] or " ", query))
    while tokens and tokens[-1] == ";":
        tokens.pop()
    return [token if token[0] in "'\"`" else token.lower() for token in tokens]
