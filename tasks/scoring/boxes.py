r"""Reader of answers in a \boxed{}, where models put their final answer."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"(?P<box>\\(?:f?boxed|fbox)\s{0,4}\{)|\\(?:f?boxed|fbox)\s{1,4}(?P<bare>[^\s{}$]+)|\\.|[{}]", re.DOTALL
)
# end of a sentence or formula after a bare box
_END = re.compile(r"(?:\\[)\]]|[.,;:!?])+\Z")


def boxes(text: str) -> list[tuple[int, int, str]]:
    r"""Return begin, end and content of all complete boxes, by begin.

    A box is `\boxed{…}`, `\fbox{…}` or `\boxed 5`. Braces and boxes nest; `\{` is no brace.
    """
    complete = []
    open_braces: list[tuple[int, int] | None] = []  # begin of a box and of its content; None: another brace
    for token in _TOKEN.finditer(text):
        if token["box"] or token[0] == "{":
            open_braces.append((token.start(), token.end()) if token["box"] else None)
        elif token["bare"]:
            complete.append((token.start(), token.end(), _END.sub("", token["bare"])))
        elif token[0] == "}" and open_braces and (box := open_braces.pop()):
            complete.append((box[0], token.end(), text[box[1] : token.start()]))
    return sorted(complete)


def last_boxed(text: str) -> str | None:
    """Return the last non-empty box's content; "" if all are empty, None without a box."""
    contents = [content for _, _, content in boxes(text)]
    return next((content for content in reversed(contents) if content.strip()), "" if contents else None)


def braces_close(text: str) -> bool:
    r"""Return whether all braces are balanced; `\{` is no brace."""
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += {"{": 1, "}": -1}.get(token[0][-1], 0) if token["box"] or token[0] in "{}" else 0
        if depth < 0:
            return False
    return depth == 0
