"""Relations between printed numbers in a paper's `checks.yaml`: averages, ratios, repeats, ranges, bounds.

An entry selects numbers (`each`) and names their relation to others, with the arguments of its function in `RELATIONS`.
A selection gives labels or settings with one or several allowed values; `not` has values to leave out, `same` the
labels shared with the checked number. It stands for its only number; a list of selections for all of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ssd_bench.conf import read_yaml
from ssd_bench.papers.audit import arithmetic
from ssd_bench.papers.audit.arithmetic import Check
from ssd_bench.papers.printed.catalogue import PaperFolder
from ssd_bench.papers.printed.reported import Number, numbers

Selection = Mapping[str, Any]
RELATIONS: Mapping[str, Callable[..., Check]] = {
    "mean": arithmetic.check_average,
    "ratio": arithmetic.check_token_ratio,
    "repeat": arithmetic.check_repeat,
    "range": arithmetic.check_range_end,
    "lower_bound": arithmetic.check_lower_bound,
    "expected": arithmetic.check_expectation,
    "expected_limit": arithmetic.check_expected_speedup,
}


def relations(folder: PaperFolder) -> Iterator[Check]:
    """Yield the checks of a paper's `checks.yaml`, if any."""
    path = folder.path / "checks.yaml"
    for entry in read_yaml(path) if path.is_file() else ():
        (kind,) = entry.keys() - {"each"}
        stated = _select(entry["each"])
        if not stated:
            raise LookupError(f"{path.name} of {folder.name}: no number has {entry['each']}")
        for number in stated:
            yield RELATIONS[kind](number, **{key: _resolve(value, number) for key, value in entry[kind].items()})


def _resolve(argument: object, number: Number) -> object:
    """Return the number of a selection, or all of a list of selections; other arguments stay."""
    if isinstance(argument, list):
        return [match for selection in argument for match in _select(selection, number)]
    if not isinstance(argument, Mapping):
        return argument
    matches = _select(argument, number)
    if len(matches) != 1:
        raise LookupError(f"{len(matches)} numbers have {argument}, for {number.id}")
    return matches[0]


def _select(selection: Selection, number: Number | None = None) -> list[Number]:
    """Return the selected numbers in the order of the files, restricted to a given number's version."""
    wanted = {name: value for name, value in selection.items() if name not in ("same", "not")}
    if number is not None:
        wanted |= {name: number.label(name) for name in ("paper", *selection.get("same", ()))}
    return [
        candidate
        for candidate in numbers()
        if all(candidate.label(name) in _listed(value) for name, value in wanted.items())
        and not any(candidate.label(name) in _listed(value) for name, value in selection.get("not", {}).items())
    ]


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else [value]
