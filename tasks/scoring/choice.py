"""Scorer of multiple-choice answers, which are a letter."""

from __future__ import annotations

import re

from tasks.scoring.numbers import before_next_question
from tasks.scoring.reading import ReadingScorer

_EMPHASIS = r"(?:[\s*_$]|\\[(\[])*+"
_STYLE = r"\\(?:text|textbf|textrm|mathrm|mathbf|boldsymbol)\s*\{\s*"
_BOX = r"\\(?:f?boxed|fbox)\s*\{"
_QUOTES = r"\"'`“”‘’"
# Words that introduce a reason. Before other words the letter may be the first of the option's text ("B cells").
_REASON = r"(?:because|since|as|due\s+to|which|where|if|when|but|is)\b"
_REASON_OF_CAPITAL = r"(?:given|with|so|not)\b"
# A letter in brackets, quotes or braces, or at the end of a line, clause or emphasis; not the first word of "A man" or
# "I think", nor the beginning of "C-14" or "I'd".
_CLOSED = rf"[(\[{{<{_QUOTES}]{{1,4}}\s*(?:option\s+)?(?:{_STYLE})?([A-J])\s*\}}?\s*(?:[)\]}}>{_QUOTES}]|[.:,]\s)"
_ENDED = r"([A-J])(?=\s*(?:\n|\Z|[)\]}.:,;*_$(=]|\\[)\]])|\s+[-–—]\s|['\"`”’](?![a-z]))"
# A letter before a number or a reason; capitals other than A and I also before another capital.
_FOLLOWED = (
    rf"((?-i:[A-J]))\s+(?=(?:[$\\+\u2212-]|\d[\d.,]*(?![\d.,-]))|(?-i:(?<=[B-HJ]\s)(?:[A-Z]|{_REASON_OF_CAPITAL})))"
    rf"|([A-HJ])\s+(?={_REASON})|((?-i:I))\s+(?=because\b|since\b)"
)
_OPTION = rf"(?:{_STYLE})?(?:(?:option|choice|letter)\s+)?(?:{_CLOSED}|{_ENDED}|{_FOLLOWED})"
_NAMED = r"(?<![A-Za-z])(?:answer|option|choice|letter)(?:\s+(?:choice|option|letter|to\s+(?:the|this)\s+question))?"
_ADVERB = r"(?:,?\s+(?:therefore|thus|then|likely|clearly|indeed),?)?"
_IS = (
    rf"{_ADVERB}\s+(?:is|would\s+be|should\s+be|must\s+be|will\s+be)\b{_ADVERB}"
    r"(?:\s+not\s+[(\[]?[A-J][)\]]?,?\s+but)?:?"
)
_RIGHT = r"\s{0,4}[)\]}*_\"'`.]{0,8}\s+is\s+(?:the\s+)?(?:most\s+)?(?:correct|right|best|accurate|appropriate)\b"
_CHOSEN = r"\b(?:choose|chose|select|selected|pick|picked|go\s+with|going\s+with|it\s+(?:must|has\s+to)\s+be)"


def _pattern(*befores: str) -> re.Pattern[str]:
    return re.compile(f"(?:{'|'.join(befores)}){_EMPHASIS}{_OPTION}", re.IGNORECASE)


_PATTERNS = (
    _pattern(rf"(?<![A-Za-z])answer{_EMPHASIS}:{_EMPHASIS}(?:{_BOX})?"),
    _pattern(rf"{_NAMED}{_IS}{_EMPHASIS}(?:{_BOX})?", rf"{_BOX}\s*", rf"{_NAMED}{_EMPHASIS}(?:[:=–—→-]|->)\s"),
    re.compile(rf"(?:\b(?:option|choice)\s+|[(\[*])[(\[*]{{0,4}}((?-i:[A-J])){_RIGHT}", re.IGNORECASE),
    _pattern(rf"{_CHOSEN}(?:\s+(?:option|choice|answer))?\s*:?"),
)
_ALONE = re.compile(r"[\s*_$(\[{\"'`>]*(?:(?:option|choice)\s+)?([A-J])[)\]}.:*_$\s\"'`<]*", re.IGNORECASE)
# a last line that is a letter or a conclusion; a text that is an option with its letter
_LAST_LINE = (
    _ALONE,
    re.compile(r".*\b(?:thus|therefore|hence|so),?:?\s+[*_(\[]{0,4}((?-i:[A-HJ]))[)\]*_.]{0,4}\s*", re.IGNORECASE),
)
_WHOLE = re.compile(r"\s*(?:[(\[]([A-J])[)\]]|([A-J])[):])[ ].*|\s*([A-J])\.[ ][^a-z].*")


class MultipleChoice(ReadingScorer[str]):
    """1.0 if an answer ends on the letter of the right option, else 0.0; references are letters A to J."""

    metric = "accuracy"

    def expected(self, reference: str) -> str | None:
        return reference.strip().upper() or None

    def verdict(self, prediction: str, expected: str) -> bool | None:
        letter = chosen_option(prediction)
        return None if letter is None else letter == expected

    def reference_fault(self, reference: str) -> str | None:
        return None if reference.strip().upper() in tuple("ABCDEFGHIJ") else "one letter from A to J"


def chosen_option(text: str) -> str | None:
    r"""Return an answer's final letter, or None.

    It is the X of the last `Answer: X`, the form of KnapSpec's prompt for MMLU-Pro; else, in turn, of the last "the
    answer is X" (or option, choice) or \boxed{X}; "option X is correct"; "I choose X"; a last line that is a letter or
    ends on "thus X", or a one-line text `X) …`. X may be in brackets, quotes, emphasis or a box. Its option's text may
    follow after a full stop, colon, comma or dash, a number or a reason directly. The text is cut at the first line
    that begins `Question:` or `Q:`, which base models invent.
    """
    text = before_next_question(text).replace("\uff1a", ":")
    for pattern in _PATTERNS:
        letters = [letter for match in pattern.finditer(text) for letter in match.groups() if letter]
        if letters:
            return letters[-1].upper()
    matches = [pattern.fullmatch(text.rstrip().rpartition("\n")[2]) for pattern in _LAST_LINE]
    letters = [
        letter for match in (*matches, _WHOLE.fullmatch(text.strip().strip("*_"))) if match for letter in match.groups()
    ]
    return next((letter.upper() for letter in letters if letter), None)
