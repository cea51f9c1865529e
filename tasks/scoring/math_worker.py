"""Program that compares mathematical answers by math-verify; `MathAnswer` runs it in a process of its own.

Arguments: processor time of one comparison in seconds, address space in MiB. It prints a line `true` when ready, and
then for each JSON line [REFERENCE, ANSWER] on stdin a JSON line: whether the answer equals the reference, or null
without an answer.
"""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import sys
from decimal import Decimal
from fractions import Fraction
from typing import Any

from math_verify import grader, parse, verify
from math_verify.parser import NormalizationConfig, normalize_latex, parse_latex_cached
from sympy import Basic, Float, MatrixBase, MatrixExpr, Rational

WORKING_DIGITS, MOST_DIGITS = 60, 400
"""Digits of compared values; most digits for distinguishing a difference from zero."""
DECIMALS = 6
"""Places to which a decimal must agree with another value, from its first digit if that comes later."""

_FORMULA = NormalizationConfig(units=False, malformed_operators=True, nits=True)  # a letter may be no unit

_PLAIN_NUMBER = re.compile(r"[-\d\s.,*+/()^%]*")


def main() -> None:
    """Answer requests until stdin ends."""
    seconds, memory = map(int, sys.argv[1:])
    replies = os.fdopen(os.dup(1), "w")
    # the packages' own output must not mix with the replies; their notes on invalid LaTeX are useless
    logging.disable(logging.CRITICAL)
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, 1)
    _limit(resource.RLIMIT_AS, memory << 20)
    _limit(resource.RLIMIT_CORE, 0)
    # math-verify compares sets, intervals, matrices and equations part by part, each part with this function. Its own
    # version treats values as equal that agree to six decimals, however small they are.
    assert callable(grader.sympy_numeric_eq), "a version of math-verify without this function compares otherwise"
    grader.sympy_numeric_eq = numerically_equal
    equal("$1$", "$\\frac{2}{2}$")  # the first use loads the grammar
    os.dup2(null_device, 2)
    print("true", file=replies, flush=True)
    for line in sys.stdin.buffer:
        # the caller kills this process when its time is up; this limit works if the caller is dead
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + seconds)
        print(json.dumps(equal(*json.loads(line))), file=replies, flush=True)


def equal(reference: str, answer: str) -> bool | None:
    """Return whether the final answers that math-verify extracts from `answer` and `reference` are equal.

    None: it extracts no answer. Time limits are off, since math-verify implements them by alarms.
    """
    expected, answers = map(_parsed, (reference, answer))
    # an interval equals the inequality with the same meaning, whichever is the reference
    return bool(verify(expected, answers, timeout_seconds=None, allow_set_relation_comp=True)) if answers else None


def _parsed(text: str) -> list[Any]:
    """Return value and LaTeX of the formula that is the text or, among words, its answer.

    A formula is parsed as a whole or not at all: math-verify would go on with a number inside it.
    """
    latex = text
    if not text.startswith("$") or "$" in text[1:-1]:
        found: list[Any] = parse(text, parsing_timeout=None)
        if not found or not isinstance(found[-1], str) or _PLAIN_NUMBER.fullmatch(found[-1]):
            return found
        latex = found[-1]  # the first formula that math-verify tried
    latex = normalize_latex(latex, _FORMULA)
    try:
        return [parse_latex_cached(latex), latex]
    except Exception:  # of any kind: equal only to the same LaTeX
        return [latex] if latex else []


def numerically_equal(a: Any, b: Any, decimals: int, digits: int) -> bool:
    """Return whether two expressions have the same value; exactly, unless one has a decimal.

    A decimal equals a value that rounds to the same at `DECIMALS` places, or significant digits if stricter. A
    percentage equals its number and its hundredth. It replaces a math-verify function; `decimals` and `digits` are not
    used.
    """
    if all(isinstance(side, MatrixBase | MatrixExpr) for side in (a, b)):
        a, b = (grader.safe_sympy_doit(side) for side in (a, b))
        shapes = [side.shape for side in (a, b) if isinstance(side, MatrixBase)]
        if len(shapes) < 2 or shapes[0] != shapes[1]:
            return False
        return all(numerically_equal(*pair, decimals, digits) for pair in zip(a.flat(), b.flat(), strict=True))
    try:
        return any(_equal_values(x, y) for x in _readings(a) for y in _readings(b))
    except Exception:  # of any kind; math-verify then tries to simplify the difference with SymPy
        return False


def _readings(value: Basic) -> list[Basic]:
    number = grader.get_pct_val(value)
    return [value] if number is None else [value, number]


def _equal_values(a: Any, b: Any) -> bool:
    rounded = (a.has(Float) and not b.is_Integer) or (b.has(Float) and not a.is_Integer)
    a, b = (_exact(side) for side in (a, b))
    if a.free_symbols or b.free_symbols:
        return _equal_terms(a, b)
    difference = (a - b).evalf(DECIMALS, maxn=MOST_DIGITS)  # without `chop`, which would treat small values as zero
    if not any(map(_significant, difference.as_real_imag())):
        return True
    return rounded and all(_equal_rounded(*pair) for pair in zip(_parts(a), _parts(b), strict=True))


def _significant(value: Any) -> bool:
    """Return whether a value differs from zero; SymPy marks a value without a certain digit by a precision of 1."""
    return bool(value != 0 and getattr(value, "_prec", 0) != 1)


def _exact(value: Any) -> Any:
    return value.xreplace({number: Rational(str(number)) for number in value.atoms(Float)})


def _equal_terms(a: Any, b: Any) -> bool:
    """Return whether the coefficients of all terms are equal; terms are not rearranged."""
    difference, size = (
        max((abs(number) for number in side.evalf(WORKING_DIGITS).as_coefficients_dict().values()), default=0)
        for side in (a - b, a)
    )
    return bool(difference <= size * Rational(1, 10 ** (WORKING_DIGITS - 10)))


def _parts(value: Any) -> list[Fraction]:
    return [Fraction(str(part)) for part in value.evalf(WORKING_DIGITS).as_real_imag()]


def _equal_rounded(a: Fraction, b: Fraction) -> bool:
    size = max(abs(a), abs(b))
    if not size:
        return True
    exponent = (Decimal(size.numerator) / Decimal(size.denominator)).adjusted()
    places = max(DECIMALS, DECIMALS - 1 - exponent)
    return round(a, places) == round(b, places)


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    main()
