"""Our value for every number that the papers report, from the runs that are there, or the reason why there is none.

A number of a table or figure is looked up in the cells of its experiment by the paper's names of model, task, method
and setting. Of several scales the first of `SCALES` that has all its parts gives the value; parts are never mixed.
Averages (Overall, Average, mix_ratio=overall, KNN-SSD Table 2, lists of tasks) are arithmetic means of our values over
the tasks or settings of the row, as the papers' own columns are to rounding, and need all of them. A bound of a range
is our smallest or largest value. A number of the prose is the same number of the table that the prose is about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ssd_bench.errors import ConfigError
from ssd_bench.papers import grid, select
from ssd_bench.papers.cells import Cell, Replication
from ssd_bench.papers.reported import METRICS, Number
from ssd_bench.papers.rooms import room_of
from ssd_bench.papers.values import BASELINES, Value, has_hf, mean, pearson, search_made, search_time, source_of, value
from ssd_bench.papers.verdict import NO_RUN, NOT_RUN, UNDEFINED, UNMEASURED, VOID, Ours

SCALES = ("paper", "small", "mini")


Piece = tuple[Cell, str | None]
"""One of the values that a number is made of: a cell, and the part of its stream, None for all of it."""


class Matcher:
    """Looks numbers up in replications; each is worked out once."""

    def __init__(self, replications: Sequence[Replication]) -> None:
        self._known: dict[str, Ours] = {}
        self._at: dict[tuple[str, str], dict[str, list[Replication]]] = {}
        for one in replications:
            for exhibit in ((one.experiment.paper, one.experiment.exhibit), *one.experiment.also):
                self._at.setdefault(exhibit, {}).setdefault(one.scale, []).append(one)

    def ours(self, number: Number) -> Ours:
        """Our value for a reported number."""
        if number.id not in self._known:
            self._known[number.id] = self._ours(number)
        return self._known[number.id]

    def _ours(self, number: Number) -> Ours:
        if underived := METRICS[number.metric].why_not:
            return Ours(number, None, UNMEASURED, underived)
        exhibit = (number.paper, number.exhibit)
        if exhibit not in select.experiments():
            return self._prose(number)
        if why := select.not_run(number, select.experiments()[exhibit]):
            return Ours(number, None, NOT_RUN, why)
        partial = room_of(number.paper).not_measured
        if number.metric != "matchness" and (keys := partial.keys() & number.settings.keys()):
            return Ours(number, None, UNMEASURED, partial[min(keys)])
        tried = [self._readable(number, scale) for scale in ordered(self._at.get(exhibit, {}))]
        with_value = [ours for ours in tried if ours.found is not None]
        return next(iter([*with_value, *tried]), Ours(number, None, NO_RUN, NO_RUN))

    def _readable(self, number: Number, scale: str) -> Ours:
        try:
            return self._of_scale(number, scale)
        except ConfigError as error:  # a damaged record must not cost the others their report
            return Ours(number, None, UNDEFINED, f"its record cannot be read: {error}", scale)

    def _of_scale(self, number: Number, scale: str) -> Ours:
        there = [cell for one in self._at[number.paper, number.exhibit][scale] for cell in one.cells]
        found = select.about(number, there)
        if compared := room_of(number.paper).compared.get(number.metric):
            axis, other = compared
            found += [cell for cell in there if cell[axis] == other]
        jobs = [job for e in select.experiments()[number.paper, number.exhibit] for job in e.jobs]
        lacking = _lacking(number, found, len(select.about(number, jobs)))
        if lacking:
            return Ours(number, None, NO_RUN, lacking, scale)
        parts = [(cell, domain) for cell in found if cell.record for domain in _domains(number, cell)]
        if void := _void(number, parts):
            return Ours(number, None, VOID, void, scale, tuple(cell for cell, _ in parts))
        worked_out = _combined(number, parts)
        if isinstance(worked_out, str):
            return Ours(number, None, UNDEFINED, worked_out, scale)
        decode = _combined(number, parts, "speedup") if number.metric == "speedup" else None
        decode = None if isinstance(decode, str) or number.method in BASELINES else decode
        return Ours(number, worked_out, "", worked_out.remark, scale, tuple(cell for cell, _ in parts), decode)

    def _prose(self, number: Number) -> Ours:
        """From the numbers of the table that the prose is about."""
        twins, why = select.twins(number)
        if why:
            return Ours(number, None, UNMEASURED, why)
        found = [self.ours(twin) for twin in twins]
        missing = next((ours for ours in found if ours.found is None), None)
        if missing is not None:
            return replace(missing, number=number)
        values = [ours.found for ours in found if ours.found is not None]
        scales = list(dict.fromkeys(ours.scale for ours in found))
        if len(scales) > 1:
            return Ours(number, None, NO_RUN, f"its parts are there at different scales ({', '.join(scales)})")
        remarks = list(dict.fromkeys(one.remark for one in values))
        if len(remarks) > 1:
            return Ours(number, None, NO_RUN, "its parts are there over different baselines (baseline=hf)")
        cells = tuple(cell for ours in found for cell in ours.cells)
        decoded = [ours.decode for ours in found if ours.decode is not None]
        decode = extreme(number.bound)(decoded) if len(decoded) == len(found) else None
        return Ours(number, extreme(number.bound)(values), "", remarks[0], scales[0], cells, decode)


def ordered(scales: Mapping[str, object]) -> list[str]:
    """Scales, the nearest to the papers first."""
    return sorted(scales, key=lambda name: (SCALES.index(name) if name in SCALES else len(SCALES), name))


def extreme(bound: str) -> Callable[[Sequence[Value]], Value]:
    """How values become one number: the smallest for a lower bound, the largest for an upper one, else their mean."""
    if bound == "low":
        return lambda values: min(values, key=lambda v: v.value)
    if bound in ("high", "max"):
        return lambda values: max(values, key=lambda v: v.value)
    return mean


def _lacking(number: Number, found: Sequence[Cell], asked: int) -> str:
    """Why the cells of a number do not suffice; for plain decoding one run of each task and setting does."""
    if not found:
        return NO_RUN
    missing = [cell for cell in found if cell.record is None]
    if number.method in BASELINES:
        have = {_place(cell) for cell in found if cell.record is not None}
        missing = [cell for place, cell in {_place(cell): cell for cell in found}.items() if place not in have]
    elif len(found) < asked:
        return f"no run yet of {asked - len(found)} of {asked} parts"
    failed = next((cell.error for cell in missing if cell.error), None)
    if failed:
        return f"its run failed: {failed}"
    if not missing:
        return ""
    return f"no run yet of {len(missing)} of {len(found)} parts" if len(found) > 1 else NO_RUN


def _void(number: Number, parts: Sequence[Piece]) -> str:
    """Why a number rests on a cell that decides nothing; plain decoding, which every run has, never does."""
    if number.method in BASELINES:
        return ""
    return next((f"void: {cell.void}" for cell, _ in parts if cell.void), "")


def _place(cell: Cell) -> tuple[str, str, str]:
    return cell["model"], cell["task"], cell["setting"]


def _domains(number: Number, cell: Cell) -> list[str | None]:
    """As `select.domains`; what is said about the course of a stream is about all its parts, or before or after the
    first."""
    stream = select.parts_of(grid.choice(cell.overrides, "task"))
    if "stream" not in number.settings or cell["task"] != number.task or not stream:
        return select.domains(number, cell)
    first = select.first_domain(cell)
    point = number.settings.get("point")
    if point is None:
        return list(stream)
    return [part for part in stream if (part == first) == (point == "before domain shift")]


def _combined(number: Number, parts: Sequence[Piece], statistic: str = "") -> Value | str:
    """One value of all parts, or why one of them has none; `statistic` as in `value`."""
    if number.metric == "pearson":
        return pearson(number, list({cell.path: cell for cell, _ in parts}.values()))
    if number.metric in room_of(number.paper).compared:
        return _compared(number, [cell for cell, _ in parts])
    with_hf = all(has_hf(cell) for cell, _ in parts)  # one baseline for all that is averaged or compared
    if number.settings.get("aspect") == "peak speedup":
        parts = [max(parts, key=lambda part: _peak(number, part, with_hf))]
    groups: dict[tuple[tuple[str, str, str], str | None], list[Value]] = {}
    for cell, domain in {(part[0].path, _place(part[0]), part[1]): part for part in parts}.values():
        one = value(number, cell, domain, with_hf, statistic)
        if isinstance(one, str):
            return one
        groups.setdefault((_place(cell), domain), []).append(one)
    return extreme(number.bound)([mean(values) for values in groups.values()])  # plain decoding: mean of its runs


def _peak(number: Number, part: Piece, with_hf: bool) -> float:
    found = value(replace(number, metric="speedup"), *part, with_hf)
    return 0.0 if isinstance(found, str) else found.value


def _compared(number: Number, cells: Sequence[Cell]) -> Value | str:
    """A ratio of two runs of the exhibit: peak memory (weights and cache included), or time of the search."""
    axis, other = room_of(number.paper).compared[number.metric]
    theirs = [cell for cell in cells if cell[axis] == other]
    own = [cell for cell in cells if cell[axis] != other]
    if not theirs or not own:
        return f"only beside a run of {other}"
    source = source_of((own[0], theirs[0]), number.metric)
    if number.metric == "memory_reduction_pct":
        reduction = 100 * (1 - own[0].summary["peak_bytes"] / theirs[0].summary["peak_bytes"])
        return Value(reduction, source=source)
    both = (theirs[0].run, own[0].run)
    times = [search_time(run) for run in both]
    if None in times:
        return "the methods did not search"
    made = [how for how in map(search_made, both) if how != "run"]
    remark = f"a search of the two was {made[0]} from the store: its time is of when it was made" if made else ""
    return Value(times[0] / times[1], remark=remark, compared=not made, source=source)  # type: ignore[operator]
