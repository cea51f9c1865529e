"""Comparing a printed number with what other printed numbers imply, when every one of them is rounded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from ssd_bench.metrics.definitions import expected_speedup
from ssd_bench.papers.reported import Number, numbers, settings
from ssd_bench.papers.rooms import papers

CONSISTENT, ROUNDING = "consistent", "rounding"
CONTRADICTION, IMPOSSIBLE, UNCLEAR = "contradiction", "impossible", "unclear"
FINDINGS = (CONTRADICTION, IMPOSSIBLE, UNCLEAR)
EPSILON = 1e-9
CARD_GB = 48  # NVIDIA RTX A6000 data sheet


@dataclass(frozen=True)
class Check:
    """One comparison: `id` is the id of the stated number, "#" and the check's name.

    `what` is a sentence; `stated` and `implied` are None where a paper prints nothing to compare; `source` is the
    formula or section from which `implied` follows; `verdict` is "consistent" (equal in the printed digits),
    "rounding" (equal for some values that round to the printed ones), "contradiction" (two printed numbers that cannot
    both hold), "impossible" (beyond a limit of the paper's own formula) or "unclear" (the paper leaves open what it
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

    @property
    def difference(self) -> float | None:
        """implied - stated."""
        return None if self.stated is None or self.implied is None else self.implied - self.stated


def pick(paper: str, exhibit: str | None = None, **where: object) -> list[Number]:
    """The reported numbers with all given values; a name that is not a column is a key of the setting."""
    columns = Number.__dataclass_fields__
    return [
        number
        for number in _of(paper, exhibit)
        if all((getattr(number, k) if k in columns else number.settings.get(k)) == v for k, v in where.items())
    ]


@cache
def _of(paper: str, exhibit: str | None) -> tuple[Number, ...]:
    return tuple(n for n in numbers() if n.paper == paper and exhibit in (None, n.exhibit))


def one(paper: str, exhibit: str, **where: object) -> Number:
    """The only such number.

    Raises:
        LookupError: there are none or several.
    """
    found = pick(paper, exhibit, **where)
    if len(found) != 1:
        raise LookupError(f"{len(found)} numbers have {paper} {exhibit} {where}")
    return found[0]


def name(number: Number) -> str:
    """The number in words: exhibit, model, method, task, what sets it apart, metric."""
    apart = [f"{k}={v}" for k, v in number.settings.items() if k not in ("decoding", "temperature", "skip_ratio")]
    parts = (number.exhibit.removeprefix("text "), number.model, number.method, number.task, *apart, number.metric)
    return ", ".join(filter(None, parts))


def short(value: float) -> str:
    """A value with up to four digits behind the point."""
    return f"{value:.4f}".rstrip("0").rstrip(".")


def span(formula: Callable[..., float], *inputs: Number) -> tuple[float, float]:
    """The lowest and highest result over values that round to the printed inputs (formula monotone in each)."""
    ends = [(max(n.value - n.half, 0.0), _most(n)) for n in inputs]
    found = [formula(*point) for point in product(*ends)]
    return min(found), max(found)


def _most(number: Number) -> float:
    return min(number.value + number.half, 1.0) if number.metric == "alpha" else number.value + number.half


def verdict(number: Number, implied: float, low: float | None = None, high: float | None = None) -> str:
    """Consistent, rounding or contradiction, with `implied` anywhere in [low, high]."""
    low, high = implied if low is None else low, implied if high is None else high
    if abs(implied - number.value) <= number.half + EPSILON:
        return CONSISTENT
    near = low - number.half - EPSILON <= number.value <= high + number.half + EPSILON
    return ROUNDING if near else CONTRADICTION


def check(number: Number, about: str, what: str, implied: float | None, source: str, result: str) -> Check:
    """A comparison of `number`, with a verdict that is known."""
    text = f"{name(number)} is printed {number.printed}; {what}"
    where = (f"{number.id}#{about}", number.paper, number.exhibit, about)
    return Check(*where, text, number.value, implied, source, result)


def recompute(number: Number, about: str, how: str, source: str, formula: Callable[..., float], *of: Number) -> Check:
    """`number` against `formula` of other printed numbers."""
    implied = formula(*(n.value for n in of))
    text = f"{how} is {short(implied)}"
    return check(number, about, text, implied, source, verdict(number, implied, *span(formula, *of)))


def average(number: Number, parts: Sequence[Number], of: str) -> Check:
    """`number` against the mean of its parts."""
    implied = sum(n.value for n in parts) / len(parts)
    slack = sum(n.half for n in parts) / len(parts)
    text = f"the mean of its {len(parts)} {of} is {short(implied)}"
    result = verdict(number, implied, implied - slack, implied + slack)
    return check(number, "mean", text, implied, "arithmetic mean", result)


def same(number: Number, other: Number, about: str) -> Check:
    """`number` against another print of itself, both to their digits."""
    implied = other.value
    result = verdict(number, implied, implied - other.half, implied + other.half)
    if number.half == other.half and number.value != other.value:
        result = CONTRADICTION
    where = other.exhibit if other.paper == number.paper else f"{other.paper} {other.exhibit}"
    return check(number, about, f"{where} prints {other.printed}", implied, where, result)


def at_least(number: Number, cells: Sequence[Number], where: str, result: str = CONTRADICTION) -> Check:
    """A lower bound (as "over 90 %") against the cells it is about; `result` if one lies below it."""
    least = min(cells, key=lambda n: n.value)
    below = [n for n in cells if n.value + n.half < number.value - EPSILON]
    listed = ", ".join(f"{n.printed} ({n.model} {n.task}, {n.exhibit})" for n in sorted(below, key=lambda n: n.value))
    text = f"below it are {listed}" if below else f"the least in {where} is {least.printed}"
    fits = CONSISTENT if least.value >= number.value - EPSILON else ROUNDING
    return check(number, "lower bound", text, least.value, where, result if below else fits)


def at_most(number: Number, value: float, text: str, source: str) -> Check:
    """An upper bound against the largest value that is implied."""
    result = CONSISTENT if value <= number.value + number.half + EPSILON else CONTRADICTION
    return check(number, "upper bound", text, value, source, result)


def extreme(number: Number, cells: Sequence[Number], where: str) -> Check:
    """An end of a range ("from 3.43 to 7.80", bound low or high) against the least or largest cell."""
    choose, word = (min, "least") if number.bound == "low" else (max, "largest")
    cell = choose(cells, key=lambda n: n.value)
    text = f"the {word} in {where} is {cell.printed} ({cell.model}, {cell.task})"
    result = verdict(number, cell.value, cell.value - cell.half, cell.value + cell.half)
    return check(number, "range", text, cell.value, where, result)


def expectation(skip: float) -> Callable[[float, float], float]:
    """E(speedup) of M and alpha at a given skip ratio (SWIFT Eq. 6, KNN-SSD Eq. 9)."""

    def formula(m: float, acceptance: float) -> float:
        found = expected_speedup(m, acceptance, skip)
        assert found is not None
        return found

    return formula


def within_expected(number: Number, m: Number, acceptance: Number, skip: float, source: str) -> Check:
    """A measured speedup against E(speedup), which leaves out every overhead and so is a limit."""
    formula = expectation(skip)
    implied, (_, high) = formula(m.value, acceptance.value), span(formula, m, acceptance)
    result = IMPOSSIBLE if number.value - number.half > high + EPSILON else CONSISTENT
    text = f"E(speedup), which no overhead slows, is {short(implied)} at M {m.printed}, alpha {acceptance.printed}"
    return check(number, "measured against E", f"{text}, r {short(skip)}", implied, source, result)


def setting_of(number: Number, without: str = "") -> Mapping[str, str]:
    """The setting of a number without one key."""
    return {key: value for key, value in number.settings.items() if key != without}


def repeats() -> Iterator[Check]:
    """Numbers of the prose whose note says that they repeat a table's, against that; and cards' memory as printed."""
    for number in numbers():
        table = re.match(r"repeats (Table \d+)|likely typo in the paper: (Table \d+) prints", number.note)
        if table:
            yield same(number, same_cell(number, table[1] or table[2]), "repeats")
    for paper in papers():
        yield from _memory(paper)


def same_cell(number: Number, table: str) -> Number:
    """The number of a table with the same model, method, task and metric."""
    where = {"model": number.model, "method": number.method, "task": number.task, "metric": number.metric}
    return one(number.paper, table, **where, optimizer=number.settings.get("optimizer"))


def _memory(paper: str) -> Iterator[Check]:
    """The memory of the RTX A6000 as its hardware row prints it."""
    for row in settings(paper).itertuples():
        printed = re.search(r"RTX A6000 \((\d+)GB", str(row.value))
        if row.key == "hardware" and printed:
            stated = float(printed[1])
            text = f"{row.source_section}, {row.exhibit}: RTX A6000 with {printed[1]}GB; the card has {CARD_GB}GB"
            where = (f"{paper}/{row.source_section}#hardware", paper, str(row.exhibit), "hardware")
            yield Check(*where, text, stated, float(CARD_GB), "data sheet of the card", UNCLEAR)
