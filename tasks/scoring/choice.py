"""Answers that are a letter of a multiple choice."""

from __future__ import annotations

import re

from tasks.scoring.numbers import before_next_question
from tasks.scoring.scorer import Scorer

# A letter in brackets, or one after which the line, the clause or the emphasis ends: not the first word of "A man",
# "I think" or "B cells", nor the beginning of "C-14".
_OPTION = (
    r"(?:\\(?:text|textbf|mathrm|mathbf)\s*\{\s*)?(?:option\s+)?"
    r"(?:[(\[]\s*(?:option\s+)?([A-J])\s*[)\]]"
    r"|([A-J])(?=\s*(?:\n|\Z|[)\]}.:,;*_$(])|\s+[-–—]\s))"
)
_EMPHASIS = r"[\s*_$]*"


def _pattern(*befores: str) -> re.Pattern[str]:
    """An option after one of the given expressions, its letter the only group that is not empty."""
    return re.compile(f"(?:{'|'.join(befores)}){_EMPHASIS}{_OPTION}", re.IGNORECASE)


_BOX = r"\\boxed\s*\{"
_PATTERNS = (
    _pattern(rf"\banswer{_EMPHASIS}:{_EMPHASIS}(?:{_BOX})?"),
    _pattern(rf"\banswer\s+is\b:?{_EMPHASIS}(?:{_BOX})?", _BOX),
)
_ALONE = re.compile(r"[\s*_]*[(\[]?([A-J])[)\]]?[.:]?[\s*_]*", re.IGNORECASE)


class MultipleChoice(Scorer):
    """1.0 where an answer ends on the letter of the right option, else 0.0; a reference is a letter from A to J."""

    metric = "accuracy"

    def item(self, prediction: str, reference: str) -> float | None:
        """Whether the letters are the same."""
        expected = reference.strip().upper()
        return float(chosen_option(prediction) == expected) if expected else None

    def reference_fault(self, reference: str) -> str | None:
        """Refuse a reference that is no letter of an option."""
        return None if reference.strip().upper() in tuple("ABCDEFGHIJ") else "one letter from A to J"


def chosen_option(text: str) -> str | None:
    r"""The letter that an answer ends on, or None.

    It is that of the last `Answer: X`, as KnapSpec's prompt for MMLU-Pro asks for; without one that of the last "the
    answer is X" or \boxed{X}; without either the text itself where it is a letter alone. X may be in brackets, emphasis
    or a box, and its option's text may follow after a full stop, colon, comma or dash. A base model goes on to invent
    further questions: the text is cut at the first line that begins `Question:` or `Q:`.
    """
    text = before_next_question(text)
    for pattern in _PATTERNS:
        found = [letter for match in pattern.finditer(text) for letter in match.groups() if letter]
        if found:
            return found[-1].upper()
    alone = _ALONE.fullmatch(text)
    return alone[1].upper() if alone else None
