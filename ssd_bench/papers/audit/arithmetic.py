"""Comparison of printed numbers with values implied by other printed numbers, allowing for rounding."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from operator import truediv

from ssd_bench.papers.printed.reported import Number, find_number, numbers, settings
from ssd_bench.results.definitions import expected_speedup

CONSISTENT, ROUNDING = "consistent", "rounding"
CONTRADICTION, IMPOSSIBLE, DEFINITIONAL, UNCLEAR = "contradiction", "impossible", "definitional", "unclear"
FINDINGS = (CONTRADICTION, IMPOSSIBLE, DEFINITIONAL, UNCLEAR)
EPSILON = 1e-9  # tolerance for binary floating point, in which 1.35 - 1.3 > 0.05
CARD_GB = 48  # memory of an NVIDIA RTX A6000, by its data sheet


@dataclass(frozen=True)
class Check:
    """Comparison of a paper's stated number with the value implied by its other numbers.

    Attributes:
        id: id of the stated number, "#" and the name of the check.
        paper, exhibit: of the stated number (table, figure or section).
        check: name, such as "mean".
        what: the comparison as a sentence.
        stated, implied: None where a paper prints nothing to compare.
        source: formula, table or section that gives `implied`. Findings of one check with one source have one cause.
        verdict: "consistent" (equal in the printed digits), "rounding" (equal for some values that round to these),
            "contradiction" (not both are right), "impossible" (beyond a limit of the paper's own formula),
            "definitional" (different definitions, stated in `what`) or "unclear" (the paper leaves open what it
            compares).
    """

    id: str
    paper: str
    exhibit: str
    check: str
    what: str
    stated: float | None
    implied: float | None
    source: str
    verdict: str


def describe(number: Number) -> str:
    """Return a number's identity in words: table, figure or section, model, method, task, settings, metric."""
    # decoding, temperature and skip ratio are left out: no two rows of a table or figure differ in these alone
    settings_shown = [
        f"{k}={v}" for k, v in number.settings.items() if k not in ("decoding", "temperature", "skip_ratio")
    ]
    labels = (number.exhibit.removeprefix("text "), number.model, number.method, number.task)
    return ", ".join(filter(None, (*labels, *settings_shown, number.metric)))


def format_value(value: float) -> str:
    return f"{value:.4f}".rstrip("0").rstrip(".")


def implied_range(formula: Callable[..., float], *inputs: Number) -> tuple[float, float]:
    """Return the range of a formula, monotone in each input, over all values that round to the printed inputs."""
    # no input is negative, and no acceptance rate is above 1
    intervals = [
        (max(n.value - n.half, 0.0), min(n.value + n.half, 1.0 if n.metric == "alpha" else inf)) for n in inputs
    ]
    results = [formula(*ends) for ends in product(*intervals)]
    return min(results), max(results)


def rounding_verdict(
    number: Number, implied: float, low: float | None = None, high: float | None = None, otherwise: str = CONTRADICTION
) -> str:
    """Return the verdict on a printed number: consistent, rounding or `otherwise`.

    Args:
        low, high: range of `implied` over all values that round to the printed digits; None: `implied` itself.
    """
    low, high = implied if low is None else low, implied if high is None else high
    if abs(implied - number.value) <= number.half + EPSILON:
        return CONSISTENT
    overlap = low - number.half - EPSILON <= number.value <= high + number.half + EPSILON
    return ROUNDING if overlap else otherwise


def new_check(
    number: Number, check_name: str, what: str, implied: float | None, source: str, verdict: str = ""
) -> Check:
    """Make the `Check` of a number compared with `implied`; `what` ends "NUMBER is printed as VALUE; ...".

    The default verdict is `rounding_verdict`.
    """
    if not verdict:
        assert implied is not None, "without a value to compare, a check states its verdict"
        verdict = rounding_verdict(number, implied)
    text = f"{describe(number)} is printed as {number.printed}; {what}"
    labels = (f"{number.id}#{check_name}", number.paper, number.exhibit, check_name)
    return Check(*labels, text, number.value, implied, source, verdict)


def check_formula(
    number: Number, check_name: str, words: str, source: str, formula: Callable[..., float], *inputs: Number
) -> Check:
    """Compare `number` with a formula of other printed numbers; `words` is a noun phrase for the result."""
    implied = formula(*(n.value for n in inputs))
    result = rounding_verdict(number, implied, *implied_range(formula, *inputs))
    return new_check(number, check_name, f"{words} is {format_value(implied)}", implied, source, result)


def check_average(
    number: Number, of: Sequence[Number], parts: str, check: str = "mean", own_digits: bool = False
) -> Check:
    """Compare `number` with an arithmetic mean.

    Args:
        parts: plural noun for the averaged numbers, such as "tasks".
        own_digits: they were rounded as the average, not as printed.
    """
    implied = sum(n.value for n in of) / len(of)
    # largest error of the mean: all parts rounded in one direction
    half = number.half if own_digits else sum(n.half for n in of) / len(of)
    text = f"the mean of its {len(of)} {parts} is {format_value(implied)}"
    result = rounding_verdict(number, implied, implied - half, implied + half)
    return new_check(number, check, text, implied, f"arithmetic mean of {of[0].exhibit}", result)


def check_token_ratio(number: Number, of: Number, to: Number) -> Check:
    """Compare a speedup with the method's tokens/s over plain decoding's."""
    how = f"{of.printed} / {to.printed} tokens/s"
    return check_formula(number, "tokens/s", how, "ratio of tokens/s", truediv, of, to)


def check_repeat(number: Number, of: Number, check: str) -> Check:
    """Compare `number` with another print of the same quantity, perhaps with other digits."""
    result = rounding_verdict(number, of.value, of.value - of.half, of.value + of.half)
    # with equally many digits, two roundings of one value are equal
    if number.half == of.half and number.value != of.value:
        result = CONTRADICTION
    source = of.exhibit if of.paper == number.paper else f"{of.paper} {of.exhibit}"
    return new_check(number, check, f"{source} prints {of.printed}", of.value, source, result)


def check_upper_bound(number: Number, value: float, text: str, source: str) -> Check:
    """Compare an upper bound with `value`, the largest implied by its source; `text` ends `Check.what`."""
    result = CONSISTENT if value <= number.value + number.half + EPSILON else CONTRADICTION
    return new_check(number, "upper bound", text, value, source, result)


def check_lower_bound(number: Number, of: Sequence[Number], source: str, if_below: str = CONTRADICTION) -> Check:
    """Compare a lower bound ("over 90 %") with its smallest number; `if_below` is the verdict if one is below."""
    least = min(of, key=lambda n: n.value)
    below = [n for n in of if n.value + n.half < number.value - EPSILON]
    listed = ", ".join(f"{n.printed} ({n.model} {n.task}, {n.exhibit})" for n in sorted(below, key=lambda n: n.value))
    text = f"lower values: {listed}" if below else f"the smallest value in {source} is {least.printed}"
    fits = CONSISTENT if least.value >= number.value - EPSILON else ROUNDING
    return new_check(number, "lower bound", text, least.value, source, if_below if below else fits)


def check_range_end(number: Number, of: Sequence[Number], source: str = "") -> Check:
    """Compare an end of a range ("from 3.43 to 7.80"), by its `bound`, with the extreme of the summarised numbers."""
    choose, word = (min, "smallest") if number.bound == "low" else (max, "largest")
    cell, source = choose(of, key=lambda n: n.value), source or of[0].exhibit
    text = f"the {word} value in {source} is {cell.printed} ({cell.model}, {cell.task})"
    result = rounding_verdict(number, cell.value, cell.value - cell.half, cell.value + cell.half)
    return new_check(number, "range", text, cell.value, source, result)


def expected_speedup_at(skip: float) -> Callable[[float, float], float]:
    """Return E(speedup) as a function of M and alpha at a given skip ratio (SWIFT Eq. 6, KNN-SSD Eq. 9)."""

    # E = M α / ((M - 1)(1 - r) + α)
    def formula(m: float, acceptance: float) -> float:
        speedup = expected_speedup(m, acceptance, skip)
        assert speedup is not None  # undefined only where the denominator is 0
        return speedup

    return formula


def check_expectation(number: Number, m: Number, acceptance: Number, source: str) -> Check:
    """Check a printed E(speedup) by its M, alpha and skip ratio, a setting."""
    skip = float(number.settings["skip_ratio"])
    what = f"E(speedup) at r {skip:g}"
    return check_formula(number, "E(speedup)", what, source, expected_speedup_at(skip), m, acceptance)


def check_expected_speedup(number: Number, m: Number, acceptance: Number, skip: Number | float, source: str) -> Check:
    """Check that a measured speedup does not exceed E(speedup), its upper limit without overhead."""
    skip = skip.value if isinstance(skip, Number) else skip
    formula = expected_speedup_at(skip)
    implied, (_, high) = formula(m.value, acceptance.value), implied_range(formula, m, acceptance)
    result = IMPOSSIBLE if number.value - number.half > high + EPSILON else CONSISTENT
    text = (
        f"E(speedup), which ignores overhead, is {format_value(implied)} at M = {m.printed}, "
        f"alpha = {acceptance.printed}, r = {format_value(skip)}"
    )
    return new_check(number, "measured against E", text, implied, source, result)


def check_repeats() -> Iterator[Check]:
    """Check numbers whose note says that they repeat a table, and GPU memory against the data sheet."""
    for number in numbers():
        repeated = re.match(r"repeats (Table \d+)|likely typo in the paper: (Table \d+) prints", number.note)
        if repeated:
            yield check_repeat(number, number_in_table(number, repeated[1] or repeated[2]), "repeats")
    for row in settings().itertuples():
        printed = re.search(r"RTX A6000 \((\d+)GB", str(row.value))
        if row.key == "hardware" and printed:
            stated = float(printed[1])
            text = f"{row.source_section}, {row.exhibit}: RTX A6000 with {printed[1]} GB; the card has {CARD_GB} GB"
            labels = (f"{row.paper}/{row.source_section}#hardware", str(row.paper), str(row.exhibit), "hardware")
            yield Check(*labels, text, stated, float(CARD_GB), "data sheet of the card", UNCLEAR)


def number_in_table(number: Number, table: str) -> Number:
    """Return the number in `table` with the model, method, task, metric and optimizer of `number`."""
    # the optimizer, because SWIFT's Table 12 has SWIFT once per optimizer
    labels = {"model": number.model, "method": number.method, "task": number.task, "metric": number.metric}
    return find_number(number.paper, table, **labels, optimizer=number.settings.get("optimizer"))
