r"""Rewriting of an answer in LaTeX, Markdown or plain signs as LaTeX that math-verify parses, without units."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache

_COMMAND = r"(?<!\\)\\"  # two backslashes begin a new row of a matrix
_GROUP = r"\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
_BRACKETS = r"\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)"
_FUNCTION = r"(?:arc(?:sin|cos|tan|cot|sec|csc)|(?:sin|cos|tan)h?|cot|sec|csc|log|ln)"

_SIGNS = str.maketrans(
    {"−": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne "}
    | {"∞": r"\infty ", "π": r"\pi ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "±": r"\pm ", "∈": r"\in "}
    | {"⁄": "/", "€": "", "£": "", "¥": "", "\u00a0": "~", "\u2009": "~", "\u202f": "~"}
)
# digits above and below the line, and fractions of one character, with their form in LaTeX
_DIGIT_SIGNS = ((re.compile("[⁻⁰¹²³⁴-⁹]+"), "^{%s}"), (re.compile("[₀-₉]+"), "_{%s}"))
_FRACTION_SIGN = re.compile("[¼-¾⅐-⅞]")

# Digits in groups of three. A bare comma separates them only next to a separator that does not occur in lists.
_SEPARATOR = r"(?:(?:,\s*)?\\!\s*|\\[,:;]\s*|\\ |~|\{,\}(?:\\!)?\s*)"
_THOUSANDS = re.compile(rf"(?<![\d.,])\d{{1,3}}(?:{_SEPARATOR}\d{{3}}|,\d{{3}})+(?!\d)")
_SPACED = re.compile(r"-?\d{1,3}(?: \d{3})+(?:\.\d+)?")
_PERIOD = re.compile(r"(?<![\d.])(\d{0,30})\.(\d{0,30})\\overline\s{0,4}\{\s{0,4}(\d{1,30})\s{0,4}\}")

_FORMULA = re.compile(r"(\$\$?)([^$]{1,500})\1|\\\((.{1,500}?)\\\)|\\\[(.{1,500}?)\\\]", re.DOTALL)

Rewrites = tuple[tuple[re.Pattern[str], str], ...]


def _rewrites(*pairs: tuple[str, str]) -> Rewrites:
    return tuple((re.compile(pattern, re.DOTALL), replacement) for pattern, replacement in pairs)


_MARKDOWN = _rewrites(
    (r"\A\s*(\*{1,3}|__?|`+)(?=[^\s*_`])(.*[^\s*_`])\1\s*\Z", r"\2"),
    (r"(?<![\w)}\]*])\*\*(?=[^\s*])([^*]*[^\s*])\*\*(?![\w({*])", r"\1"),
    (r"\s?\*\*\s?(-?\d+|[A-Za-z])", r"^{\1}"),  # Python's power
)
_SIZES = _rewrites(
    (rf"{_COMMAND}(?:display|text|script)style(?![A-Za-z])", ""),
    (rf"{_COMMAND}(?:text)?color\s*\{{[^{{}}]*\}}", ""),
    (rf"{_COMMAND}(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])\.?", ""),
)
_LOOKS = _rewrites(
    (rf"{_COMMAND}lbrace(?![A-Za-z])", r"\\{"),
    (rf"{_COMMAND}rbrace(?![A-Za-z])", r"\\}"),
    (rf"{_COMMAND}(?:SI|qty)\s*\{{([^{{}}]*)\}}", r"\1\\text"),
    (rf"{_COMMAND}(?:math(?:rm|it|sf|tt|normal)|[mh]box|operatorname|unit|si)\*?\s*(?=\{{)", r"\\text"),
    (rf"{_COMMAND}text(?:rm|it|bf|sf|tt|normal)\s*(?=\{{)", r"\\text"),
    (rf"{_COMMAND}(?:mathbf|boldsymbol|bm|pmb|underline)\s*(?=\{{\s*[A-Za-z]{{2}})", r"\\text"),
    (rf"{_COMMAND}(?:mathbf|boldsymbol|bm|pmb|underline)\s*(?=\{{)", ""),
    (r"\{\s*\\rm(?![A-Za-z])\s*", r"\\text{"),
    (rf"\A\s*{_GROUP}\s*\Z", r"\1"),
    (rf"{_COMMAND}(?:[,;:! ]|q?quad(?![A-Za-z]))|~", " "),
)
_ANSWER_IS = r"(?:the\s+)?(?:final\s+)?answer\s*(?:is\s*:?|[:=])\s*"
_UPRIGHT = _rewrites(
    (r"\s{0,4},?\s{0,4}\\text\s*\{\s*,?\s*(?:and|or)\s*,?\s*\}\s{0,4}", ", "),
    (r"(?<=[\d)}])\s{1,4}(?:and|or)\s{1,4}(?=[-\d\\(])", ", "),
    (rf"(?i)\A\s*(?:\\text\s*\{{\s*{_ANSWER_IS}\}}\s*|(\\text\s*\{{)?\s*{_ANSWER_IS})", r"\1"),
    (rf"\\text\s*\{{\s*({_FUNCTION}|gcd|max|min|exp)\s*\}}", r"\\\1 "),
    (r"\\text\s*\{\s*([ei])\s*\}", r" \1"),
    (r"\s{0,4}(?:\\text\s*\{\s*percent\s*\}|\bpercent\b)|(?<!\\)%", r"\\%"),
    (r"\\text\s*\{((?:[^{}A-Za-z\\]|\\%|\\degree)*)\}", r"\1"),
    (r"\\text\s*\{\s*(-?\d[\d.,]*)\s+([A-Za-z][A-Za-z. ]*)\}", r"\1\\text{ \2}"),
)
_FORMS = _rewrites(
    (rf"{_COMMAND}[dtc]frac(?![A-Za-z])", r"\\frac"),
    (r"(?<![\w)}\]])\u2013(?=\s*[\d\\.])", "-"),
    (r"√\s*(\d+(?:\.\d+)?|[A-Za-z])", r"\\sqrt{\1}"),
    (r"√|(?<![A-Za-z\\])sqrt(?![A-Za-z])", r"\\sqrt"),
    *2 * ((rf"(\\sqrt|\^)\s*{_BRACKETS}", r"\1{\2}"), (rf"\\frac\s*{_BRACKETS}\s*{_BRACKETS}", r"\\frac{\1}{\2}")),
    (rf"(?<![A-Za-z\\{{ ]){_FUNCTION}(?=\s*(?:[(\d\\^]|[a-z](?![A-Za-z])))", r"\\\g<0> "),
    (r"\\log\s*_\s*(?:e|\{\s*e\s*\})(?![A-Za-z])", r"\\ln "),
    (r"(\\sqrt\s*\[[^\]]*\])\s*([A-Za-z\d])", r"\1{\2}"),
    (r"\\varnothing(?![A-Za-z])", r"\\emptyset "),
    (r"\\bigcup(?![A-Za-z])", r"\\cup "),
    (r"\\(begin|end)\s*\{smallmatrix\}", r"\\\1{pmatrix}"),
    (r"\\cr(?![A-Za-z])|\\\\\s*\[\s*-?[\d.]+\s*(?:pt|em|ex|[cm]m)\s*\]", r"\\\\"),
    (
        r"°|\\degree(?![A-Za-z])|\^\s*\{\s*\\circ\s*\}|(?<=\d)\s*\^\s*(?:o|(?:\\text\s*)?\{\s*(?:\\text\s*\{\s*)?o\s*\}{1,2})(?![A-Za-z])",
        r"^\\circ",
    ),
)
# Text after a value is its unit or a remark, unless it changes the value.
_CHANGES = r"(?:or|and|mod|more|less|fewer|not|if|when)"
_UNIT_TEXT = rf"\\text\s*\{{(?![^{{}}]*\b{_CHANGES}\b)(?:[^{{}}]|\{{-?\d\}})*\}}"
_POWER = r"(?:\s*\^\s*\{?\s*-?\d\s*\}?)?"
_LENGTH = r"(?:[cmk]?m|in|ft|yd|mi|inch(?:es)?|foot|feet|yards?|miles?|(?:centi|milli|kilo)?met(?:er|re)s?|units?)"
_SHORT_UNIT = (
    r"(?:[cdkm]m|mi|in|ft|yds?|k?g|mg|lbs?|oz|m?l|h|hrs?|min|mins|secs?|yrs?|days?|mph|km/h|m/s|USD|cents?|deg|inch)"
)
_NO_UNIT = (
    r"alpha|beta|gamma|delta|theta|lambda|sigma|omega|infinity|sqrt|plus|minus|times|over|divided|multiplied|choose"
    rf"|million|billion|thousand|hundred|dozen|{_CHANGES}"
)
_UNITS = _rewrites(
    (r"\A(?:=|\\approx(?![A-Za-z]))\s*|(?<=[\d)}])\s*\\%", ""),
    (rf"(?<=[\w)}}\]%!])(?:(?:[/\s]|\\cdot)*{_UNIT_TEXT}{_POWER}){{1,4}}\s*\Z", ""),
    (rf"(?<=[\d)}}])\s*\\frac\s*\{{\s*{_UNIT_TEXT}{_POWER}\s*\}}\s*\{{\s*{_UNIT_TEXT}{_POWER}\s*\}}\s*\Z", ""),
    (rf"(?<=[\d}}])\s*(?:sq\.?\s+)?{_LENGTH}\s*\^\s*\{{?\s*[23]\s*\}}?\s*\Z", ""),
    (rf"(?<=[\d)}}])\s*{_SHORT_UNIT}\.?\s*\Z", ""),
    (rf"(?<=[\d)}}])\s+(?!(?:[a-z]+[ ])*(?:{_NO_UNIT})\b)[A-Za-z]{{4,}}(?:[ /-][A-Za-z]+)*\.?{_POWER}\s*\Z", ""),
    (r"(\^\\circ)\s*[CF]\s*\Z", r"\1"),
    (r"(?<![A-Za-z\d.])(\d+(?:\.\d+)?)[eE]([+-]?\d+)(?![A-Za-z\d.])", r"\1\\times 10^{\2}"),
)


@lru_cache(maxsize=4096)  # references, and the formulas of a model that repeats itself
def plain_latex(latex: str) -> str:
    """Return the same mathematics without commands for looks, units, and a final full stop."""
    latex = latex_signs(re.sub(r"\\\$|\$", "", latex))
    latex = _applied(_MARKDOWN, latex.strip())
    latex = re.sub(r"(?<=\d)(?:\\[,!]|\{,\})(?=\d{3})", "", joined_thousands(_applied(_SIZES, latex)))
    latex = _applied((*_LOOKS, *_UPRIGHT), latex)
    latex = _PERIOD.sub(_fraction, _applied(_FORMS, latex)).strip().removesuffix(".").rstrip()
    latex = _applied(_UNITS, latex).strip()
    return latex.replace(" ", "") if _SPACED.fullmatch(latex) else latex


def plain_formulas(text: str) -> str:
    """Return a text with its formulas, between dollars or LaTeX brackets, in plain LaTeX."""
    return _FORMULA.sub(
        lambda formula: f"${plain_latex(formula[2] or formula[3] or formula[4])}$", joined_thousands(text)
    )


def joined_thousands(latex: str) -> str:
    """Return the text without thousands separators that only LaTeX has."""

    def joined(number: re.Match[str]) -> str:
        return re.sub(r"\D", "", number[0]) if re.search(r"[\\~{]", number[0]) else number[0]

    return _THOUSANDS.sub(joined, latex)


def latex_signs(text: str) -> str:
    """Return the text with LaTeX commands for Unicode signs."""
    for pattern, form in _DIGIT_SIGNS:
        text = pattern.sub(_plain_digits(form), text)
    text = _FRACTION_SIGN.sub(
        lambda sign: rf"\frac{{{'}{'.join(unicodedata.normalize('NFKC', sign[0]).split('⁄'))}}}", text
    )
    return text.translate(_SIGNS)


def _plain_digits(form: str) -> Callable[[re.Match[str]], str]:
    return lambda digits: form % unicodedata.normalize("NFKC", digits[0]).replace("−", "-")


def _applied(rewrites: Rewrites, latex: str) -> str:
    for pattern, replacement in rewrites:
        latex = pattern.sub(replacement, latex)
    return latex


def _fraction(number: re.Match[str]) -> str:
    integer, fixed, period = number.groups()
    scale = 10 ** len(fixed)
    top = int(f"{integer}{fixed}{period}") - int(f"{integer}{fixed}" or 0)
    return rf"\frac{{{top}}}{{{scale * (10 ** len(period) - 1)}}}"
