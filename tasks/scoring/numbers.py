"""Exact match of the number that an answer ends on."""

from __future__ import annotations

import re
from fractions import Fraction

from tasks.scoring.scorer import Scorer

# A minus counts as a sign only where it touches the number and nothing before it that could make it a subtraction;
# digits glued to a letter ("H2O") are no number.
_NUMBER = re.compile(
    r"(?<![A-Za-z\d])(?P<sign>(?<![\w)\]}%])-)?(?:[$€£]\s?(?P<inner>-)?)?"
    r"(?P<digits>\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
)
_NEXT_QUESTION = re.compile(r"\n\s*(?:Question|Q):")
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")


def final_number(text: str) -> Fraction | None:
    r"""The number that an answer ends on, or None.

    It is the first number after the first `####` (the mark of GSM8K's own solutions); without that mark the last
    number of the last `\boxed{}`; without either the last number of the text. A base model goes on to invent
    further questions after its few-shot answer: the text is cut at the first line that begins `Question:` or `Q:`.
    Thousands separators, currency and percent signs are dropped, and 70.00 equals 70.
    """
    text = _plain(before_next_question(text))
    if "####" in text:
        marked = _numbers(text.split("####", maxsplit=1)[1].strip().split("\n", maxsplit=1)[0])
        return marked[0] if marked else None
    boxed = _BOXED.findall(text)
    if boxed:
        # A fraction is no final answer of this kind; its denominator must not pass for one.
        inside = [] if "frac" in boxed[-1] or "/" in boxed[-1] else _numbers(boxed[-1])
        return inside[-1] if inside else None
    found = _numbers(text)
    return found[-1] if found else None


def before_next_question(text: str) -> str:
    """The text up to the first line that begins `Question:` or `Q:`, which a base model invents after its answer."""
    return _NEXT_QUESTION.split(text.strip(), maxsplit=1)[0]


class FinalNumber(Scorer):
    """1.0 where the final number of an answer equals that of the reference, else 0.0."""

    metric = "exact_match"

    def item(self, prediction: str, reference: str) -> float | None:
        """Whether the values are equal, however they are written."""
        expected = final_number(reference)
        return None if expected is None else float(final_number(prediction) == expected)

    def reference_fault(self, reference: str) -> str | None:
        """Refuse a reference without a number in digits."""
        return None if final_number(reference) is not None else "a text that ends on a number in digits, such as 12"


def _plain(text: str) -> str:
    r"""The text with the minus sign as `-`, and `{,}`, `\,`, `\!` and `\$` of LaTeX as in plain text."""
    for written, plain in (("\u2212", "-"), ("{,}", ","), (r"\,", ""), (r"\!", ""), (r"\$", "$")):
        text = text.replace(written, plain)
    return text


def _numbers(text: str) -> list[Fraction]:
    numbers = []
    for match in _NUMBER.finditer(text):
        value = Fraction(match["digits"].replace(",", ""))
        numbers.append(-value if match["sign"] or match["inner"] else value)
    return numbers
