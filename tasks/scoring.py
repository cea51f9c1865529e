"""Scores of answers: exact match of the final number, and ROUGE-L."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

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
    text = _plain(_NEXT_QUESTION.split(text.strip(), maxsplit=1)[0])
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


def exact_match(reference: str, text: str) -> float:
    """1.0 if the final number of `text` equals that of `reference`, else 0.0."""
    expected = final_number(reference)
    return float(expected is not None and final_number(text) == expected)


def rouge_l(reference: str, text: str) -> float:
    """ROUGE-L F1 over the whole text (one longest common subsequence), with Porter stemming (`rouge-score`)."""
    return float(_rouge_scorer().score(reference, text)["rougeL"].fmeasure)


@cache
def _rouge_scorer() -> RougeScorer:
    from rouge_score.rouge_scorer import RougeScorer  # imports nltk and numpy: only where a summary is scored

    return RougeScorer(["rougeL"], use_stemmer=True)


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
