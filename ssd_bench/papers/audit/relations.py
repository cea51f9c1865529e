"""Relations between printed numbers in a paper's `checks.yaml`: averages, ratios, repeats, ranges, bounds.

An entry selects numbers (`each`) and names their relation to others. A selection gives labels or settings with one or
several allowed values; `not` has values to leave out, `same` the labels shared with the checked number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ssd_bench.conf import read_yaml
from ssd_bench.papers.audit.arithmetic import (
    CONSISTENT,
    CONTRADICTION,
    EPSILON,
    ROUNDING,
    Check,
    check_average,
    check_formula,
    check_range_end,
    check_repeat,
    new_check,
)
from ssd_bench.papers.printed.catalogue import PaperFolder
from ssd_bench.papers.printed.reported import Number, numbers

Selection = Mapping[str, Any]


def relations(folder: PaperFolder) -> Iterator[Check]:
    """Yield the checks of a paper's `checks.yaml`, if any."""
    path = folder.path / "checks.yaml"
    for entry in read_yaml(path) if path.is_file() else ():
        (kind,) = entry.keys() - {"each"}
        stated = _select(entry["each"])
        if not stated:
            raise LookupError(f"{path.name} of {folder.name}: no number has {entry['each']}")
        for number in stated:
            yield RELATIONS[kind](number, **entry[kind])


def _select(selection: Selection, number: Number | None = None) -> list[Number]:
    """Return the selected numbers in the order of the files, restricted to a given number's version."""
    wanted = {name: value for name, value in selection.items() if name not in ("same", "not")}
    if number is not None:
        wanted |= {name: _label(number, name) for name in ("paper", *selection.get("same", ()))}
    return [
        candidate
        for candidate in numbers()
        if all(_label(candidate, name) in _listed(value) for name, value in wanted.items())
        and not any(_label(candidate, name) in _listed(value) for name, value in selection.get("not", {}).items())
    ]


def _label(number: Number, name: str) -> object:
    return getattr(number, name) if name in Number.__dataclass_fields__ else number.settings.get(name)


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else [value]


def _one(selection: Selection, number: Number) -> Number:
    matches = _select(selection, number)
    if len(matches) != 1:
        raise LookupError(f"{len(matches)} numbers have {selection}, for {number.id}")
    return matches[0]


def _mean(number: Number, of: Selection, parts: str, check: str = "mean", own_digits: bool = False) -> Check:
    """Check an average; with `own_digits` its parts were rounded as the average, not as printed."""
    return check_average(number, _select(of, number), parts, check, number.half if own_digits else None)


def _ratio(number: Number, of: Selection, to: Selection) -> Check:
    """Compare a speedup with the method's tokens/s over plain decoding's."""
    method, plain = _one(of, number), _one(to, number)
    how = f"{method.printed} / {plain.printed} tokens/s"
    return check_formula(number, "tokens/s", how, "ratio of tokens/s", lambda a, b: a / b, method, plain)


def _repeat(number: Number, of: Selection, check: str) -> Check:
    return check_repeat(number, _one(of, number), check)


def _range(number: Number, of: Sequence[Selection], source: str | None = None) -> Check:
    cells = _cells(number, of)
    return check_range_end(number, cells, source or cells[0].exhibit)


def _lower_bound(number: Number, of: Sequence[Selection], source: str, if_below: str = CONTRADICTION) -> Check:
    """Compare a lower bound ("over 90 %") with the smallest of its cells; `if_below` is the verdict if one is below."""
    cells = _cells(number, of)
    least = min(cells, key=lambda n: n.value)
    below = [n for n in cells if n.value + n.half < number.value - EPSILON]
    listed = ", ".join(f"{n.printed} ({n.model} {n.task}, {n.exhibit})" for n in sorted(below, key=lambda n: n.value))
    text = f"lower values: {listed}" if below else f"the smallest value in {source} is {least.printed}"
    fits = CONSISTENT if least.value >= number.value - EPSILON else ROUNDING
    return new_check(number, "lower bound", text, least.value, source, if_below if below else fits)


def _cells(number: Number, selections: Sequence[Selection]) -> list[Number]:
    return [cell for selection in selections for cell in _select(selection, number)]


RELATIONS: Mapping[str, Callable[..., Check]] = {
    "mean": _mean,
    "ratio": _ratio,
    "repeat": _repeat,
    "range": _range,
    "lower_bound": _lower_bound,
}
"""Relation, as in `checks.yaml` -> function of the checked number and the entry's other keys."""
