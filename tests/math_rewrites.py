"""Other ways to write a mathematical answer in LaTeX, and ways to make it wrong."""

from __future__ import annotations

import re
from collections.abc import Callable

Rewrite = Callable[[str], str]
LONG_NUMBER = re.compile(r"(?<![\d.])[1-9]\d{3,}(?![\d.])")
INTEGER, POSITIVE = re.compile(r"-?\d+"), re.compile(r"[1-9]\d*")
NUMBER = re.compile(r"-?\d+|\\frac\{\d+\}\{\d+\}")


def separated(separator: str) -> Rewrite:
    return lambda answer: LONG_NUMBER.sub(lambda number: f"{int(number[0]):,}".replace(",", separator), answer)


def only(pattern: re.Pattern[str], rewrite: Rewrite) -> Rewrite:
    """Return a rewrite of answers that match as a whole; others stay as they are."""
    return lambda answer: rewrite(answer) if pattern.fullmatch(answer) else answer


EQUAL: dict[str, Rewrite] = {
    "itself": lambda a: a,
    "dollars": lambda a: f"${a}$",
    "full stop": lambda a: f" {a} .",
    "dfrac": lambda a: a.replace(r"\frac", r"\dfrac"),
    "no left": lambda a: a.replace(r"\left", "").replace(r"\right", ""),
    "comma": only(INTEGER, separated(",")),
    "comma and space": separated(r",\!"),
    "braced comma": separated("{,}"),
    "thin space": separated(r"\,"),
    "no separator": lambda a: re.sub(r"(?<=\d),\\!\s*(?=\d{3})", "", a),
    "unit": only(NUMBER, lambda a: rf"{a}\text{{ units}}"),
    "square unit": only(NUMBER, lambda a: rf"{a}\text{{ cm}}^2"),
    "roman unit": only(NUMBER, lambda a: rf"{a}\,\mathrm{{cm}}"),
    "no unit": lambda a: re.sub(r"\\text\{[^}]*\}(\^\d)?$", "", a) if re.search(r"\d", a) else a,
    "degrees": only(INTEGER, lambda a: rf"{a}^\circ"),
    "no degrees": lambda a: re.sub(r"\^(\\circ|\{\\circ\})", "", a),
    "per cent": only(INTEGER, lambda a: rf"{a}\%"),
    "currency": only(POSITIVE, lambda a: rf"\${a}"),
    "no currency": lambda a: a.replace(r"\$", ""),
    "equation": only(NUMBER, lambda a: f"x = {a}"),
    "spaces": lambda a: a.replace(",", ", ").replace("+", " + "),
}
WRONG: dict[str, Rewrite] = {
    "one higher": lambda a: re.sub(r"\d+$", lambda number: str(int(number[0]) + 1), a),
    "a further 0": only(POSITIVE, lambda a: f"{a}0"),
    "another sign": only(re.compile(r"[1-9]\d*|\\frac\{\d+\}\{\d+\}"), lambda a: f"-{a}"),
}
"""Rewrites that change the value; an answer left as it is has none of its kind."""
