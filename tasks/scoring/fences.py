"""Reader of fenced code blocks in an answer in Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

# A fence may be indented, may follow the mark of a list item and, if it names a language, may end a line of prose.
_OPENING = re.compile(
    r"(?P<indent>[ \t]*(?:(?:[-*+]|\d+[.)])[ \t]+)*)(?P<mark>`{3,}|~{3,})(?P<info>[^`]*)"
    r"|[ \t]*[^\s`][^`]*(?P<end>`{3,})[ \t]*[A-Za-z][\w.+#-]*[ \t]*"
)
_LANGUAGE = re.compile(r"\A(?:(?:python|py)\d*|sql|sqlite|mysql|postgresql)[ \t]+", re.IGNORECASE)
_NESTED = 3
"""Largest indentation of a closing fence relative to its opening fence (CommonMark)."""


def fenced_blocks(text: str, is_code: Callable[[str], bool]) -> list[str]:
    """Return all blocks' contents, without their fences' indentation.

    A block ends at a fence with the same mark of at least its length; at a fence with a language, which opens the next
    block; at the end of the text; and at a line of code that ends with the mark, if `is_code` holds for the block so
    far (within a docstring the mark is text).
    """
    lines = text.split("\n")
    blocks, i = [], 0
    while i < len(lines):
        line, i = lines[i], i + 1
        if (content := _in_one_line(line)) is not None:
            blocks.append(content)
        elif opening := _OPENING.fullmatch(line):
            mark, width = opening["mark"] or opening["end"], len(opening["indent"] or "")
            body, i = _body(lines, i, mark, width, is_code)
            blocks.append("\n".join(body) + "\n")
    return blocks


def _in_one_line(line: str) -> str | None:
    """Return the content of a one-line block, or None."""
    line = line.strip()
    mark = line[:3]
    if mark not in ("```", "~~~") or not line.endswith(mark):
        return None
    content = line.strip(mark[0])
    return _LANGUAGE.sub("", content, count=1).strip() + "\n" if content and mark not in content else None


def _body(
    lines: Sequence[str], start: int, mark: str, width: int, is_code: Callable[[str], bool]
) -> tuple[list[str], int]:
    body: list[str] = []
    for i in range(start, len(lines)):
        line = lines[i].rstrip()
        fence = _OPENING.fullmatch(line)
        if fence and fence["mark"] and fence["mark"].startswith(mark) and len(fence["indent"]) <= width + _NESTED:
            return body, i if fence["info"].strip() else i + 1
        if line.endswith(mark):
            last = _without(width, line.removesuffix(mark))
            if is_code("\n".join([*body, last])):
                return [*body, last], i + 1
        body.append(_without(width, lines[i]))
    return body, len(lines)


def _without(width: int, line: str) -> str:
    return line[:width].lstrip(" \t") + line[width:]
