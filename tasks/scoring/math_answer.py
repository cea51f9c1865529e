r"""Answers that are mathematics in LaTeX, the last one in a \boxed{}."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tasks.scoring.numbers import before_next_question
from tasks.scoring.scorer import Scorer
from tasks.scoring.worker import Worker

MEMORY_MIB = 2048
_BOX = re.compile(r"\\f?boxed\s*\{|\\fbox\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
# What sets the size of brackets, fractions and spaces, and dollars that begin or end mathematics. Two backslashes are a
# new row of a matrix.
_SIZE = re.compile(r"(?<!\\)\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])\.?")
_FRACTION = re.compile(r"(?<!\\)\\[dtc]frac(?![A-Za-z])")
_THIN_SPACE = re.compile(r"(?<=\d)(?:\\[,!]|\{,\})(?=\d{3})")
_SPACE = re.compile(r"(?<!\\)\\(?:[,;:! ]|q?quad(?![A-Za-z]))|~")
_DOLLAR = re.compile(r"(?<!\\)\$")
# Not between digits, where it separates two numbers.
_BLANK = re.compile(r"(?<!\d)\s+|\s+(?!\d)")


class MathAnswer(Scorer):
    r"""1.0 where the last \boxed{} of an answer equals the reference, else 0.0.

    The reference is LaTeX, in a \boxed{} or bare. Answers that are written alike are equal; of all others math-verify
    decides (`parse` and `verify`, with its defaults), which also finds the final answer of a text without a box. It
    runs in one other process for all answers, since some of them keep it busy for hours: an answer that is not
    compared within the time limit scores 0.0.

    Args:
        seconds: time on the clock for one answer.
        command: the program that compares, instead of `math_worker`; `Worker` says how it is spoken to.
    """

    metric = "exact_match"

    def __init__(self, seconds: float = 5.0, command: Sequence[str] | None = None) -> None:
        # By path and with -P: the folder of that file, with its `numbers` and `code`, must not be on the module path.
        program = str(Path(__file__).with_name("math_worker.py"))
        default = (sys.executable, "-P", program, str(math.ceil(seconds) + 1), str(MEMORY_MIB))
        # SymPy's results may depend on the order of sets: one seed makes verdicts the same in every run.
        self.worker = Worker(command or default, seconds, {"PYTHONHASHSEED": "0"})

    def item(self, prediction: str, reference: str) -> float | None:
        """Whether the answers are equal; a base model's text ends where it goes on to a new question."""
        bare = last_boxed(reference)
        expected = _plain(reference if bare is None else bare)
        if not expected:
            return None
        text = before_next_question(prediction)
        boxed = last_boxed(text)
        found = None if boxed is None else _plain(boxed)
        if found is not None and _BLANK.sub("", found) == _BLANK.sub("", expected):
            return 1.0
        if not text or found == "":
            return 0.0
        return float(self.worker.ask([f"${expected}$", text if found is None else f"${found}$"]) is True)

    def reference_fault(self, reference: str) -> str | None:
        """Refuse a reference in which nothing is left to compare, or whose braces do not close."""
        bare = last_boxed(reference)
        depths = [0]
        for brace in _BRACE.findall(reference):
            depths.append(depths[-1] + {"{": 1, "}": -1}.get(brace, 0))
        closed = min(depths) == depths[-1] == 0
        if closed and any(map(str.isalnum, _plain(reference if bare is None else bare))):
            return None
        return r"an answer in LaTeX whose braces close, such as \frac{1}{2}, bare or in a \boxed{}"

    def close(self) -> None:
        """End the other process, if there is one; a later answer starts another."""
        self.worker.close()


def last_boxed(text: str) -> str | None:
    r"""What is in the last complete \boxed{} or \fbox{} of a text, or None; braces nest, and `\{` is none."""
    for start in reversed([found.end() for found in _BOX.finditer(text)]):
        depth = 1
        for brace in _BRACE.finditer(text, start):
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            if depth == 0:
                return text[start : brace.start()]
    return None


def _plain(latex: str) -> str:
    """The same mathematics without what sets only its looks, and without a full stop at the end."""
    latex = _DOLLAR.sub("", latex)
    latex = _SPACE.sub(" ", _THIN_SPACE.sub("", _SIZE.sub("", latex)))
    return _FRACTION.sub(r"\\frac", latex).strip().removesuffix(".").rstrip()
