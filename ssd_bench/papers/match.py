"""Our value for every number that the papers report, from the runs that are there, or the reason why there is none.

A number of a table or figure is looked up in the cells of its experiment by the paper's names of model, task, method
and setting. Of several scales the first of `SCALES` that has all its parts gives the value; parts are never mixed.
Averages (Overall, Average, mix_ratio=overall, KNN-SSD Table 2, lists of tasks) are arithmetic means of our values over
the tasks or settings of the row, as the papers' own columns are to rounding, and need all of them. A bound of a range
is our smallest or largest value. A number of the prose is the same number of the table that the prose is about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ssd_bench.errors import ConfigError
from ssd_bench.papers import prose, select
from ssd_bench.papers.cells import Made, Replication, Result
from ssd_bench.papers.reported import METRICS, Number
from ssd_bench.papers.rooms import room_of
from ssd_bench.papers.values import (
    BASELINES,
    Value,
    by_definition,
    has_hf,
    mean,
    pearson,
    search_time,
    value,
)
from ssd_bench.records.schema import hardware

SCALES = ("paper", "small", "mini")
NO_RUN, NOT_RUN, UNDEFINED, UNMEASURED = "no run yet", "not run", "undefined", "not measurable"
PAPERS_OWN, REHEARSAL, OTHER_MODEL, OTHER_SCALE = "as the paper", "rehearsal", "other model", "other scale"


@dataclass(frozen=True)
class Ours:
    """What we have for a reported number.

    Attributes:
        found: our value; None: there is none.
        state: "" with a value, else `NO_RUN`, `NOT_RUN` (the experiment says why), `UNDEFINED` (the runs are there but
            do not have it) or `UNMEASURED`.
        reason: why there is no value, or in what it is not the paper's statistic.
        scale: of the runs.
        runs: ids of the runs behind it.
        setup: how near the runs are to the paper's: `PAPERS_OWN`, `REHEARSAL` (a model that this project trained),
            `OTHER_MODEL` or `OTHER_SCALE` (its model, but fewer or other prompts).
        same_hardware: all ran on a device that the paper names.
        by_definition: 1 for plain decoding.
    """

    found: Value | None
    state: str
    reason: str = ""
    scale: str = ""
    runs: tuple[str, ...] = ()
    setup: str = ""
    same_hardware: bool = False
    by_definition: bool = False


@dataclass(frozen=True)
class _Part:
    """One of the values that a number is made of."""

    key: tuple[str, str, str]
    result: Result
    made: Made
    domain: str | None


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
            return Ours(None, UNMEASURED, underived)
        exhibit = (number.paper, number.exhibit)
        if exhibit not in select.experiments():
            return self._prose(number)
        if why := select.not_run(number, select.experiments()[exhibit]):
            return Ours(None, NOT_RUN, why)
        claims = room_of(number.paper).not_measured
        if number.metric != "matchness" and (keys := claims.keys() & number.settings.keys()):
            return Ours(None, UNMEASURED, claims[min(keys)])
        tried = [self._readable(number, scale) for scale in ordered(self._at.get(exhibit, {}))]
        with_value = [ours for ours in tried if ours.found is not None]
        return next(iter([*with_value, *tried]), Ours(None, NO_RUN, NO_RUN))

    def _readable(self, number: Number, scale: str) -> Ours:
        try:
            return self._of_scale(number, scale)
        except ConfigError as error:  # a damaged record must not cost the others their report
            return Ours(None, UNDEFINED, f"its record cannot be read: {error}", scale)

    def _of_scale(self, number: Number, scale: str) -> Ours:
        replications = self._at[number.paper, number.exhibit][scale]
        pairs = [(one, result) for one in replications for result in one.results]
        owner = {id(result): one for one, result in pairs}
        found = select.about(number, [result for _, result in pairs])
        if compared := room_of(number.paper).compared.get(number.metric):
            axis, other = compared
            found += [result for _, result in pairs if result.labels[axis] == other]
        jobs = [job for e in select.experiments()[number.paper, number.exhibit] for job in e.jobs]
        lacking = _lacking(number, found, len(select.about(number, jobs)))
        if lacking:
            return Ours(None, NO_RUN, lacking, scale)
        parts = [
            _Part((r.labels["model"], r.labels["task"], r.labels["setting"]), r, r.made, domain)
            for r in found
            if r.made is not None
            for domain in _domains(number, r)
        ]
        worked_out = _combined(number, parts)
        if isinstance(worked_out, str):
            return Ours(None, UNDEFINED, worked_out, scale)
        results = list({id(part.result): part.result for part in parts}.values())
        runs = tuple(dict.fromkeys(str(part.made.run.header["run_id"]) for part in parts))
        setup = furthest([_setup(owner[id(result)], result) for result in results])
        there = all(_same_hardware(number, part.made) for part in parts)
        return Ours(
            worked_out, "", worked_out.remark, scale, runs, setup, there,
            by_definition(number),
        )  # fmt: skip

    def _prose(self, number: Number) -> Ours:
        """From the numbers of the table that the prose is about."""
        twins, why = prose.twins(number)
        if why:
            return Ours(None, UNMEASURED, why)
        found = [self.ours(twin) for twin in twins]
        missing = next((ours for ours in found if ours.found is None), None)
        if missing is not None:
            return missing
        values = [ours.found for ours in found if ours.found is not None]
        scales = list(dict.fromkeys(ours.scale for ours in found))
        if len(scales) > 1:
            return Ours(None, NO_RUN, f"its parts are there at different scales ({', '.join(scales)})")
        remarks = list(dict.fromkeys(one.remark for one in values))
        if len(remarks) > 1:
            return Ours(None, NO_RUN, "its parts are there over different baselines (baseline=hf)")
        return Ours(
            extreme(number.bound)(values), "", remarks[0], scales[0],
            tuple(dict.fromkeys(run for ours in found for run in ours.runs)),
            furthest([ours.setup for ours in found]), all(ours.same_hardware for ours in found),
            all(ours.by_definition for ours in found),
        )  # fmt: skip


def ordered(scales: Mapping[str, object]) -> list[str]:
    """Scales, the nearest to the papers first."""
    return sorted(scales, key=lambda name: (SCALES.index(name) if name in SCALES else len(SCALES), name))


def furthest(setups: Sequence[str]) -> str:
    """The setup of a number with several parts: the one that is furthest from the paper's."""
    return max(setups, key=(PAPERS_OWN, OTHER_SCALE, OTHER_MODEL, REHEARSAL).index)


def extreme(bound: str) -> Callable[[Sequence[Value]], Value]:
    """How values become one number: the smallest for a lower bound, the largest for an upper one, else their mean."""
    if bound == "low":
        return lambda values: min(values, key=lambda v: v.value)
    if bound in ("high", "max"):
        return lambda values: max(values, key=lambda v: v.value)
    return mean


def _lacking(number: Number, found: Sequence[Result], asked: int) -> str:
    """Why the cells of a number do not suffice; for plain decoding one run of each task and setting does."""
    if not found:
        return NO_RUN
    missing = [result for result in found if result.made is None]
    if number.method in BASELINES:
        cells = {tuple(r.labels[axis] for axis in ("model", "task", "setting")): r for r in found}
        have = {tuple(r.labels[axis] for axis in ("model", "task", "setting")) for r in found if r.made is not None}
        missing = [result for key, result in cells.items() if key not in have]
    elif len(found) < asked:
        return f"no run yet of {asked - len(found)} of {asked} parts"
    failed = next((result.error for result in missing if result.error), None)
    if failed:
        return f"its run failed: {failed}"
    if not missing:
        return ""
    return f"no run yet of {len(missing)} of {len(found)} parts" if len(found) > 1 else NO_RUN


def _domains(number: Number, result: Result) -> list[str | None]:
    """As `select.domains`; what is said about the course of a stream is about all its parts, or before or after the
    first."""
    stream = select.parts_of(select.choice(result.overrides, "task"))
    if "stream" not in number.settings or result.labels["task"] != number.task or not stream:
        return select.domains(number, result)
    first = select.first_domain(result)
    point = number.settings.get("point")
    if point is None:
        return list(stream)
    return [part for part in stream if (part == first) == (point == "before domain shift")]


def _combined(number: Number, parts: Sequence[_Part]) -> Value | str:
    """One value of all parts, or why one of them has none."""
    if number.metric == "pearson":
        return pearson(number, list({id(part.made): part.made for part in parts}.values()))
    if number.metric in room_of(number.paper).compared:
        return _compared(number, parts)
    with_hf = all(has_hf(part.made) for part in parts)  # one baseline for all that is averaged or compared
    if number.settings.get("aspect") == "peak speedup":
        parts = [max(parts, key=lambda part: _peak(number, part, with_hf))]
    groups: dict[tuple[tuple[str, str, str], str | None], list[Value]] = {}
    for part in {(id(p.made), p.key, p.domain): p for p in parts}.values():
        one = value(number, part.made, part.domain, with_hf)
        if isinstance(one, str):
            return one
        groups.setdefault((part.key, part.domain), []).append(one)
    return extreme(number.bound)([mean(values) for values in groups.values()])  # plain decoding: mean of its runs


def _peak(number: Number, part: _Part, with_hf: bool) -> float:
    found = value(replace(number, metric="speedup"), part.made, part.domain, with_hf)
    return 0.0 if isinstance(found, str) else found.value


def _compared(number: Number, parts: Sequence[_Part]) -> Value | str:
    """A ratio of two runs of the exhibit: peak memory (weights and cache included), or time of the search."""
    axis, other = room_of(number.paper).compared[number.metric]
    theirs = [part.made for part in parts if part.result.labels[axis] == other]
    own = [part.made for part in parts if part.result.labels[axis] != other]
    if not theirs or not own:
        return f"only beside a run of {other}"
    if number.metric == "memory_reduction_pct":
        return Value(100 * (1 - own[0].summary["peak_bytes"] / theirs[0].summary["peak_bytes"]))
    times = [search_time(made) for made in (theirs[0], own[0])]
    return "the methods did not search" if None in times else Value(times[0] / times[1])  # type: ignore[operator]


def _setup(replication: Replication, result: Result) -> str:
    assert result.made is not None
    header = result.made.run.header
    model = header.get("model") or {}
    if model.get("rehearsal"):
        return REHEARSAL
    asked = next((job.overrides for job in replication.experiment.jobs if job.labels == result.labels), ())
    if model.get("name") != select.choice(asked, "model"):
        return OTHER_MODEL
    data = ((header.get("config") or {}).get("data") or {}).get("_target_", "")
    return PAPERS_OWN if replication.scale == "paper" and data.endswith(("HubSource", "LocalSource")) else OTHER_SCALE


def _same_hardware(number: Number, made: Made) -> bool:
    gpus = hardware(made.run.header)["gpus"] or []
    return bool(gpus) and all(any(name in str(gpu) for name in room_of(number.paper).hardware) for gpu in gpus)
