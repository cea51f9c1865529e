r"""Scorer of mathematics in LaTeX, in the last \boxed{}."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from tasks.scoring.boxes import boxes, braces_close, last_boxed
from tasks.scoring.latex import plain_formulas, plain_latex
from tasks.scoring.numbers import before_next_question
from tasks.scoring.reading import ReadingScorer
from tasks.scoring.worker import Worker

MEMORY_MIB = 2048
# Two numbers, the first with a unit, as in 2 hours 30 minutes: neither is the answer.
_COMPOUND = re.compile(
    r"\d\s*\\(?:text|mathrm|mbox)\s*\{\s*(?:hours?|hrs?|minutes?|mins?|days?|weeks?|months?|years?|feet|foot|ft|"
    r"yards?|miles?|pounds?|lbs?|dollars?|k?m|k?g)\.?,?\s*(?:and\s*)?\}\s*(?:\\text\s*\{\s*and\s*\}\s*)?\d"
)
# one letter is a unit only where the reference has no letters
_LETTER_UNIT = re.compile(r"(?<=\d)\s*[mghslLVAWNJK]\Z")
_TEXT = re.compile(r"\\text\s*\{([^{}\\]*)\}")
_PAIR_OR_SET = re.compile(r"\s*(?:(\()[^()]*,[^()]*\)|(\\\{)[^{}]*,[^{}]*\\\})\s*")
_INNERMOST = re.compile(r"\\?[({\[][^(){}\[\]]*[)}\]]")
# a sum with letters and numbers that is zero; x + y = 0 may be the value of x + y
_EQUATION = re.compile(r"(?=[^=]*[A-Za-z])(?=[^=]*\d)(?=[^=]*[+-])[^=]*=\s*0")
_MOST_NESTED = 8
_BASE = re.compile(r"[\dA-F]+_\{?(?P<base>\d+)\}?")
# blanks, except between digits, where they separate two numbers
_BLANK = re.compile(r"(?<!\d)\s+|\s+(?!\d)")
# text that may be between boxes that form one answer
_BETWEEN = re.compile(
    r"(?:[\s$,;]|\\[()\[\],;:! ]|\\q?quad(?![A-Za-z])|\b(?:and|or)\b|\\text\s*\{\s*,?\s*(?:and|or)\s*,?\s*\})*+"
)
# a statement of the final answer, which counts if it comes after the last box
_STATED = re.compile(r"final\s+answer\s+is:?\s*(?=[$\\\d(\[-])", re.IGNORECASE)


class MathAnswer(ReadingScorer[str]):
    r"""1.0 if an answer's last \boxed{} equals the reference, else 0.0.

    The reference is LaTeX, in a \boxed{} or bare. Answers with the same notation are equal; on others math-verify
    decides (`parse` and `verify`, with the comparison of values in `math_worker`), which also finds the final answer of
    a text without a box. Boxes with only a comma, "and" or "or" between them are one answer. math-verify runs in
    another process, since some answers keep it busy for hours: beyond the time limit an answer scores 0.0 and counts as
    unread.

    Args:
        seconds: wall-clock time for one answer.
        command: replacement for `math_worker`, with `Worker`'s protocol.
    """

    metric = "exact_match"

    def __init__(self, seconds: float = 5.0, command: Sequence[str] | None = None) -> None:
        # by path and with -P, so that the file's folder, with its `numbers` and `code`, is not on the module path
        program = str(Path(__file__).with_name("math_worker.py"))
        default = (sys.executable, "-P", program, str(math.ceil(seconds) + 1), str(MEMORY_MIB))
        # SymPy's results may depend on the order of sets: a fixed seed gives the same verdicts in every run
        self.worker = Worker(command or default, seconds, {"PYTHONHASHSEED": "0"})
        self._verdicts: dict[tuple[str, str], bool | None] = {}

    def expected(self, reference: str) -> str | None:
        boxed = _last_boxes(reference)
        return plain_latex(reference if boxed is None else boxed) or None

    def verdict(self, prediction: str, expected: str) -> bool | None:
        """Return whether the answers are equal; a base model's text is cut before the next question."""
        text = before_next_question(prediction)
        boxed = _last_boxes(text)
        answer = plain_formulas(text.replace(r"\$", "")) if boxed is None else plain_latex(boxed)
        if not any(map(str.isalpha, expected)):
            answer = _LETTER_UNIT.sub("", answer)
        if boxed is not None and _letters(answer) == _letters(expected):
            return True
        if not answer:
            return None
        if boxed is not None and (_COMPOUND.search(answer) or _other_kind(answer, expected)):
            return False
        # kept, because it is needed again when unread answers are counted
        request = (f"${expected}$", answer if boxed is None else f"${answer}$")
        if request not in self._verdicts:
            self._verdicts[request] = self.worker.ask(list(request))
        return self._verdicts[request]

    def reference_fault(self, reference: str) -> str | None:
        """Return the failed requirement that a reference has content to compare and balanced braces."""
        if braces_close(reference) and any(map(str.isalnum, self.expected(reference) or "")):
            return None
        return r"an answer in LaTeX whose braces close, such as \frac{1}{2}, bare or in a \boxed{}"


def _last_boxes(text: str) -> str | None:
    """Return the content of the last box and of boxes that form one answer with it.

    "" if all boxes are empty; None without a box, or if the final answer follows the last one.
    """
    filled = [box for box in boxes(text) if box[2].strip()]
    if not filled:
        return last_boxed(text)
    if _STATED.search(text, filled[-1][1]):
        return None
    contents = [filled[-1][2]]
    for (_, end, content), (begin, _, _) in reversed(list(pairwise(filled))):
        if end > begin or not _BETWEEN.fullmatch(text, end, begin):
            break
        contents += [] if content in contents else [content]
    return ", ".join(reversed(contents))


def _letters(latex: str) -> str:
    return _BLANK.sub("", _TEXT.sub(r"\1", latex))


def _other_kind(answer: str, expected: str) -> bool:
    """Return whether answers differ in a way that math-verify ignores: numerals of different bases, a pair and a set or
    list, or an equation (`2x + y - 1 = 0`) and a value.
    """
    numerals = [_BASE.fullmatch(side) for side in (answer, expected)]
    bases = {numeral["base"] for numeral in numerals if numeral}
    kinds = {_kind(side) for side in (answer, expected)}
    is_equation = "=" not in expected and _EQUATION.fullmatch(re.sub(r"\\[A-Za-z]+", "", answer))
    return len(bases) == 2 or kinds in ({"pair", "set"}, {"pair", "list"}) or bool(is_equation)


def _kind(latex: str) -> str:
    """Return `pair` or `set` by the brackets around several values, `list` without brackets, else nothing."""
    if brackets := _PAIR_OR_SET.fullmatch(latex):
        return "pair" if brackets[1] else "set"
    outside = latex
    for _ in range(_MOST_NESTED):
        outside = _INNERMOST.sub("", outside)
    return "list" if "," in outside and "=" not in outside else ""
