"""Scorer of an answer's final number."""

from __future__ import annotations

import re
from fractions import Fraction

from tasks.scoring.boxes import last_boxed
from tasks.scoring.reading import ReadingScorer

_DIGITS = r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d{1,2}(?:,\d{2}){1,6},\d{3}(?![,\d])(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+"
_INTEGER = r"\{\s{0,4}-?\d+\s{0,4}\}|-?\d+"
# Digits glued to a letter ("H2O"), exponents ("cm^2") and subscripts ("x_1") are no numbers.
_BEGIN = r"(?<![A-Za-z\d^])(?<!\^[{-])(?<!\^\{-)(?<!\d\*\*)(?<![A-Za-z\d})]_)(?<![A-Za-z\d})]_\{)"
# A minus is a sign if it touches the number and nothing before it makes it a subtraction.
_SIGN = r"(?P<sign>(?<![\w)\]}%])-)?(?:[$€£]\s?(?P<inner>-)?)?"
_FRACTION = (
    rf"(?:(?P<whole>\d+)\s{{0,4}})?\\[dtc]?frac\s{{0,4}}(?P<top>\{{\s{{0,4}}-?(?:{_DIGITS})\s{{0,4}}\}}|\d)\s{{0,4}}"
    rf"(?P<bottom>\{{\s{{0,4}}(?:{_DIGITS})\s{{0,4}}\}}|\d)"
)
_FACTOR = (
    rf"\s{{0,4}}(?:\\times|\\cdot|[×·*x])\s{{0,4}}10\s{{0,4}}\^\s{{0,4}}(?P<ten>{_INTEGER})|[eE](?P<e>[+-]?\d+)(?![\w.])"
    rf"|\^(?P<power>{_INTEGER})|\s?/\s?(?P<under>{_DIGITS})|[ ](?P<over>\d+)/(?P<below>\d+)"
)
_NUMBER = re.compile(rf"{_BEGIN}{_SIGN}(?:{_FRACTION}|(?P<digits>{_DIGITS})(?:{_FACTOR})?)")
# More digits are no answer but a model that repeats itself; Python refuses to read 4301 digits.
MOST_DIGITS, MOST_POWER = 1000, 400
POWERS = ("ten", "e", "power")
_NEXT_QUESTION = re.compile(r"(?<=\n)[^\S\n]*(?:Question|Q):")
# A Markdown heading of the fourth level begins like the mark of GSM8K's solutions, ####.
_HEADING = re.compile(r"[\s*_]*(?:#|(?:step|part|case)\b|\d+\s*[.):]\s+\D)", re.IGNORECASE)
_STATED = re.compile(r"(?<![A-Za-z])answer[\s*_]*+(?:\bis\b|[:=])[\s*_:]*+(?:\\[(\[]\s*+)?", re.IGNORECASE)
# The number's unit, and the end of the sentence or a remark.
_SENTENCE_END = re.compile(r"[^\d\n.!?;(]{0,40}(?:[.!?](?!\d)|\n|\(|\Z)")
_EQUALS = re.compile(r"=|\\approx|≈")
_EXPRESSION = re.compile(r"\\(?:sqrt|pi|log|ln|sin|cos|tan|binom|infty)(?![A-Za-z])|[π√∞]|\d!|=.*[,;].*=", re.DOTALL)
_MODULUS = re.compile(r"\\(?:p?mod|bmod)\s?(?:\{[^{}]*\}|\d+)")
_SEPARATOR = re.compile(r"(?P<comma>,\\!\s*|\{,\})|\\[,!]")
# Groups of three digits: blanks that do not break a line join them, other blanks only before 000 or in a number that
# stands alone, since "25 100 dollar notes" has two numbers.
_UNBROKEN = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:[\u00a0\u2007\u2009\u202f~]|\\[ ;:])\d{3})+(?!\d)")
_THOUSANDS = re.compile(r"(?<![\d.,])(?<!\d )\d{1,3}(?: \d{3})* 000(?! ?\d)")
_ALONE = re.compile(r"\A([\s*$€£+-]*\d{1,3}(?: \d{3})+)(?! ?\d)(?=(?:\.\d+)?[\s*$€£%.]*\Z)")
_BEGINS = re.compile(r"\A([*$€£+-]{0,4}\d{1,3}(?: \d{3})+)(?! ?\d)")
_COMMA = re.compile(r"(?<=\d),(?=\d)")


def final_number(text: str) -> Fraction | None:
    r"""Return an answer's final number, or None.

    It is the first number after the first `####` that has one (GSM8K's own mark); else in the last `\boxed{}`; else in
    the last sentence "the answer is …"; else the last number of the text. The text is cut at the first line that begins
    `Question:` or `Q:`, which base models invent. Thousands separators, currency, percent signs and units are dropped,
    powers and fractions are evaluated, and 70.00 equals 70. After `####` all commas between digits are dropped, as in
    GSM8K's own scorer.
    """
    text = _joined(_ALONE, _plain(before_next_question(text)))
    for marked in text.split("####")[1:]:
        line = marked.strip().split("\n", maxsplit=1)[0]
        numbers = [] if _HEADING.match(line) else _numbers(_COMMA.sub("", _joined(_ALONE, line)))
        if numbers:
            return numbers[0]
    boxed = last_boxed(text)
    if boxed is not None:
        return _boxed_number(boxed)
    numbers = _stated(text) or _numbers(text)
    return numbers[-1] if numbers else None


def _stated(text: str) -> list[Fraction]:
    """Return the numbers in sentences that only state the answer."""
    sentences = [text[stated.end() :][: 2 * MOST_DIGITS] for stated in _STATED.finditer(text)]
    sentences = [_joined(_BEGINS, sentence) for sentence in sentences]
    places = [(sentence, _NUMBER.match(sentence)) for sentence in sentences]
    values = [_value(place) for sentence, place in places if place and _SENTENCE_END.match(sentence, place.end())]
    return [value for value in values if value is not None]


def before_next_question(text: str) -> str:
    """Return the text up to a base model's invented question: a line with `Question:` or `Q:`."""
    return _NEXT_QUESTION.split(text.strip(), maxsplit=1)[0]


class FinalNumber(ReadingScorer[Fraction]):
    """1.0 if an answer's final number equals the reference's, else 0.0."""

    metric = "exact_match"

    def expected(self, reference: str) -> Fraction | None:
        return final_number(reference)

    def verdict(self, prediction: str, expected: Fraction) -> bool | None:
        number = final_number(prediction)
        return None if number is None else number == expected

    def reference_fault(self, reference: str) -> str | None:
        """Return the failed requirement that a reference has a number in digits."""
        return None if final_number(reference) is not None else "a text that ends on a number in digits, such as 12"


def _plain(text: str) -> str:
    r"""Return the text with `-` as minus sign, and LaTeX's separators and `\$` as in plain text."""
    text = _SEPARATOR.sub(lambda separator: "," if separator["comma"] else "", text)
    text = _joined(_THOUSANDS, _joined(_UNBROKEN, text))
    return text.replace("\u2212", "-").replace(r"\$", "$").replace(r"\%", "%")


def _joined(pattern: re.Pattern[str], text: str) -> str:
    return pattern.sub(lambda number: re.sub(r"\\.|~|\s", "", number[0]), text)


def _boxed_number(content: str) -> Fraction | None:
    """Return a box's number; None for no number, several, or part of an expression."""
    content = _joined(_ALONE, _MODULUS.sub("", content))
    if _EXPRESSION.search(content):
        return None
    numbers = list(_numbers(_EQUALS.split(content)[-1]))
    return numbers[0] if len(numbers) == 1 else None


def _numbers(text: str) -> list[Fraction]:
    values = map(_value, _NUMBER.finditer(text))
    return [value for value in values if value is not None]


def _value(match: re.Match[str]) -> Fraction | None:
    """Return a match's value; None with too many digits or a division by zero."""
    parts = {name: re.sub(r"[{}\s,]", "", text) for name, text in match.groupdict().items() if text}
    if max(map(len, parts.values())) > MOST_DIGITS or any(abs(int(parts.get(name, 0))) > MOST_POWER for name in POWERS):
        return None
    number = {name: Fraction(text) for name, text in parts.items() if name not in ("sign", "inner")}
    try:
        if "top" in parts:
            value = number.get("whole", Fraction(0)) + number["top"] / number["bottom"]
        elif "over" in parts:
            value = number["digits"] + number["over"] / number["below"]
        else:
            value = number["digits"] ** int(parts.get("power", 1)) / number.get("under", 1)
            value *= Fraction(10) ** int(parts.get("ten") or parts.get("e") or 0)
    except ZeroDivisionError:
        return None
    return -value if "sign" in parts or "inner" in parts else value
