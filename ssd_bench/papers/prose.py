"""Numbers of prose, abstracts and summaries: which numbers of the paper's own tables and figures they are about."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ssd_bench.papers.reported import Number, numbers
from ssd_bench.papers.rooms import room_of
from ssd_bench.papers.select import AVERAGES

UNSAID = "a claim of the text; it does not say of which runs"
SETTING = "a setting, not a result"
# settings that say which of several runs a number is of, where a table has more than one
NARROWING = ("aggregate", "vs", "component", "when", "aspect")


def twins(number: Number) -> tuple[list[Number], str]:
    """The numbers of a table or figure that a number of the prose repeats or bounds.

    Returns:
        The numbers, of which a bound is the smallest or largest, and "", or none and why.
    """
    if number.metric == "skip_ratio" and not number.bound and not number.note.startswith("repeats"):
        return [], SETTING
    if number.settings.keys() & set(NARROWING) and not number.metric.startswith("optimization"):
        return [], UNSAID
    for exhibit in (*_named(number), *_about(number.paper, number.exhibit)):
        found = [other for other in numbers() if other.paper == number.paper and other.exhibit == exhibit]
        found = [other for other in found if other.metric == number.metric and other.method == number.method]
        found = _narrowed(number, [other for other in found if _model(number, other) and _task(number, other)])
        if found:
            return found, ""
    return [], UNSAID


def sources(paper: str, exhibit: str) -> list[str]:
    """The tables and figures that the numbers of a passage may be about."""
    own = [number for number in numbers() if (number.paper, number.exhibit) == (paper, exhibit)]
    named = [table for number in own for table in _named(number)]
    return list(dict.fromkeys([*named, *_about(paper, exhibit)]))


def _about(paper: str, passage: str) -> Sequence[str]:
    return room_of(paper).prose.get(paper, {}).get(passage, ())


def _named(number: Number) -> list[str]:
    """The tables that the note names as the number's own: "repeats Table 12", "prose on Table 4"."""
    return re.findall(r"(?:repeats|prose on|refers to|are) (Table \d+)", number.note)


def _narrowed(number: Number, found: Sequence[Number]) -> list[Number]:
    """A bound is about all rows but averages, or about averages only; another number about the one that it equals."""
    if number.bound:
        whole = "Overall" in number.note
        return [other for other in found if not other.bound and _is_average(other) == whole]
    same = [other for other in found if abs(other.value - number.value) <= other.half + number.half]
    return same[:1] if same else list(found if len(found) == 1 else ())


def _is_average(number: Number) -> bool:
    return number.task in AVERAGES or number.settings.get("mix_ratio") == "overall"


def _model(number: Number, other: Number) -> bool:
    if series := room_of(number.paper).series.get(number.model):
        return other.model in series
    if number.model.endswith(" series"):
        return other.model.startswith(number.model.removesuffix(" series"))
    return number.model in ("", other.model)


def _task(number: Number, other: Number) -> bool:
    return "" in (number.task, other.task) or other.task in number.task.split(", ") or number.task == "out-of-domain"
