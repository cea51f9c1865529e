"""Our value for every reported number, from the available runs, or why it is missing.

A number of a table or figure is looked up in its experiment's cells by the paper's names of model, task, method and
setting. Of several scales, the first of `SCALES` with all parts of the number counts; scales are never mixed. Averages
(Overall, Average, mix_ratio=overall, KNN-SSD Table 2, lists of tasks) are arithmetic means of our values over all tasks
or settings of the row, as in the papers up to rounding. A bound of a range is our smallest or largest value. A number
in the text is looked up in its table.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ssd_bench.errors import ConfigError
from ssd_bench.papers.ours import select, values
from ssd_bench.papers.ours.agreement import EXCLUDED, NO_RUN, NOT_RUN, UNDEFINED, UNMEASURED, Counterpart
from ssd_bench.papers.ours.cells import Cell, Replication
from ssd_bench.papers.ours.values import Value
from ssd_bench.papers.printed.catalogue import folder_of
from ssd_bench.papers.printed.reported import METRICS, Number

SCALES = ("paper", "long", "small", "mini")


Part = tuple[Cell, str | None]
"""Value combined in a number: a cell, and the part of its stream (None: all)."""


class Matcher:
    """Lookup of numbers in replications; each is computed once."""

    def __init__(self, replications: Sequence[Replication]) -> None:
        self._counterparts: dict[str, Counterpart] = {}
        self._replications: dict[tuple[str, str], dict[str, list[Replication]]] = {}  # by exhibit and scale
        for replication in replications:
            experiment = replication.experiment
            for exhibit in ((experiment.paper, experiment.exhibit), *experiment.also):
                self._replications.setdefault(exhibit, {}).setdefault(replication.scale, []).append(replication)

    def counterpart(self, number: Number) -> Counterpart:
        if number.id not in self._counterparts:
            self._counterparts[number.id] = self._find_counterpart(number)
        return self._counterparts[number.id]

    def _find_counterpart(self, number: Number) -> Counterpart:
        if reason := METRICS[number.metric].why_not:
            return Counterpart(number, None, UNMEASURED, reason)
        exhibit = (number.paper, number.exhibit)
        if exhibit not in select.experiments():
            return self._counterpart_of_prose(number)
        if missing := select.why_not_run(number, select.experiments()[exhibit]):
            return Counterpart(number, None, NOT_RUN, missing)
        not_measured = folder_of(number.paper).not_measured
        if number.metric != "matchness" and (keys := not_measured.keys() & number.settings.keys()):
            return Counterpart(number, None, UNMEASURED, not_measured[min(keys)])
        counterparts = [self._try_scale(number, scale) for scale in order_scales(self._replications.get(exhibit, {}))]
        with_value = [counterpart for counterpart in counterparts if counterpart.value is not None]
        return next(iter([*with_value, *counterparts]), Counterpart(number, None, NO_RUN, NO_RUN))

    def _try_scale(self, number: Number, scale: str) -> Counterpart:
        try:
            return self._at_scale(number, scale)
        except ConfigError as error:  # a damaged record must not prevent the report of the others
            return Counterpart(number, None, UNDEFINED, f"its record is unreadable: {error}", scale)

    def _at_scale(self, number: Number, scale: str) -> Counterpart:
        replications = self._replications[number.paper, number.exhibit][scale]
        cells = [cell for replication in replications for cell in replication.cells]
        matches = select.matching_items(number, cells)
        if comparison := folder_of(number.paper).compared.get(number.metric):
            axis, reference = comparison
            matches += [cell for cell in cells if cell[axis] == reference]
        jobs = [job for experiment in select.experiments()[number.paper, number.exhibit] for job in experiment.jobs]
        missing = _missing_runs(number, matches, len(select.matching_items(number, jobs)))
        if missing:
            return Counterpart(number, None, NO_RUN, missing, scale)
        parts = [(cell, domain) for cell in matches if cell.record for domain in select.domains(number, cell)]
        exclusions = ChainMap(*(replication.exclusions for replication in replications))
        excluded = [exclusions[cell] for cell, _ in parts if exclusions[cell]]
        if excluded and number.method not in values.BASELINES:  # plain decoding is in every run
            reason = f"excluded: {excluded[0]}"
            return Counterpart(number, None, EXCLUDED, reason, scale, tuple(cell for cell, _ in parts))
        combined = _combine(number, parts)
        if isinstance(combined, str):
            return Counterpart(number, None, UNDEFINED, combined, scale)
        decode = _combine(number, parts, "speedup") if number.metric == "speedup" else None
        decode = None if isinstance(decode, str) or number.method in values.BASELINES else decode
        return Counterpart(number, combined, "", combined.remark, scale, tuple(cell for cell, _ in parts), decode)

    def _counterpart_of_prose(self, number: Number) -> Counterpart:
        """Return the counterpart of a number in the text, from the numbers of its table."""
        repeated, reason = select.repeated_numbers(number)
        if reason:
            return Counterpart(number, None, UNMEASURED, reason)
        counterparts = [self.counterpart(number_in_table) for number_in_table in repeated]
        missing = next((counterpart for counterpart in counterparts if counterpart.value is None), None)
        if missing is not None:
            return replace(missing, number=number)
        values = [counterpart.value for counterpart in counterparts if counterpart.value is not None]
        scales = list(dict.fromkeys(counterpart.scale for counterpart in counterparts))
        if len(scales) > 1:
            return Counterpart(number, None, NO_RUN, f"its parts have runs at different scales ({', '.join(scales)})")
        remarks = list(dict.fromkeys(value.remark for value in values))
        if len(remarks) > 1:
            return Counterpart(number, None, NO_RUN, "its parts have different baselines: run all with baseline=hf")
        cells = tuple(cell for counterpart in counterparts for cell in counterpart.cells)
        decodes = [counterpart.decode for counterpart in counterparts if counterpart.decode is not None]
        decode = bound_reduction(number.bound)(decodes) if len(decodes) == len(counterparts) else None
        return Counterpart(number, bound_reduction(number.bound)(values), "", remarks[0], scales[0], cells, decode)


def order_scales(scales: Mapping[str, object]) -> list[str]:
    """Order the scales, nearest to the papers' first."""
    return sorted(scales, key=lambda name: (SCALES.index(name) if name in SCALES else len(SCALES), name))


def bound_reduction(bound: str) -> Callable[[Sequence[Value]], Value]:
    """Return the function that combines values: smallest for a lower bound, largest for an upper one, else the mean."""
    if bound == "low":
        return lambda values: min(values, key=lambda value: value.value)
    if bound in ("high", "max"):
        return lambda values: max(values, key=lambda value: value.value)
    return values.mean_value


def _missing_runs(number: Number, cells: Sequence[Cell], n_jobs: int) -> str:
    """Return why a number has too few of its `n_jobs` cells of one scale with runs, or "".

    For plain decoding one run of each task and setting suffices.
    """
    if not cells:
        return NO_RUN
    missing = [cell for cell in cells if cell.record is None]
    if number.method in values.BASELINES:
        recorded = {_key(cell) for cell in cells if cell.record is not None}
        missing = [cell for key, cell in {_key(cell): cell for cell in cells}.items() if key not in recorded]
    elif len(cells) < n_jobs:
        return f"no run yet for {n_jobs - len(cells)} of {n_jobs} parts"
    failed = next((cell.error for cell in missing if cell.error), None)
    if failed:
        return f"its run failed: {failed}"
    if not missing:
        return ""
    return f"no run yet for {len(missing)} of {len(cells)} parts" if len(cells) > 1 else NO_RUN


def _key(cell: Cell) -> tuple[str, str, str]:
    return cell["model"], cell["task"], cell["setting"]


def _combine(number: Number, parts: Sequence[Part], statistic: str = "") -> Value | str:
    """Return one value of all parts, or why one lacks it."""
    if number.metric == "pearson":
        return values.pearson(number, list({cell.path: cell for cell, _ in parts}.values()))
    if number.metric in folder_of(number.paper).compared:
        return _compare_runs(number, [cell for cell, _ in parts])
    # values that are averaged or compared need the same baseline
    with_hf = all(cell.summary.has_hf for cell, _ in parts)
    if number.settings.get("aspect") == "peak speedup":
        speedups = [values.our_value(replace(number, metric="speedup"), *part, with_hf) for part in parts]
        peaks = [0.0 if isinstance(speedup, str) else speedup.value for speedup in speedups]
        parts = [parts[peaks.index(max(peaks))]]
    groups: dict[tuple[tuple[str, str, str], str | None], list[Value]] = {}
    for cell, domain in {(part[0].path, _key(part[0]), part[1]): part for part in parts}.values():
        value = values.our_value(number, cell, domain, with_hf, statistic)
        if isinstance(value, str):
            return value
        groups.setdefault((_key(cell), domain), []).append(value)
    # plain decoding has a value per run: their mean
    return bound_reduction(number.bound)([values.mean_value(of_cell) for of_cell in groups.values()])


def _compare_runs(number: Number, cells: Sequence[Cell]) -> Value | str:
    """Return the ratio of two runs of the exhibit: peak memory (with weights and cache), or search time."""
    axis, reference = folder_of(number.paper).compared[number.metric]
    reference_cells = [cell for cell in cells if cell[axis] == reference]
    method_cells = [cell for cell in cells if cell[axis] != reference]
    if not reference_cells or not method_cells:
        return f"needs a run of {reference} to compare with"
    compared = reference_cells[0], method_cells[0]
    source = values.source_of(compared, number.metric)
    if number.metric == "memory_reduction_pct":
        reference_peak, peak = (cell.summary.peak_bytes for cell in compared)
        assert peak is not None and reference_peak is not None, "only cells whose method ran are compared"
        return Value(100 * (1 - peak / reference_peak), source=source)
    reference_s, method_s = (values.search_time(cell.run) for cell in compared)
    if reference_s is None or method_s is None:
        return "the methods did not search"
    origins = [origin for cell in compared if (origin := values.search_origin(cell.run)) != "run"]
    remark = f"a search was {origins[0]} from the store, so its time was measured in an earlier run" if origins else ""
    return Value(reference_s / method_s, remark=remark, compared=not origins, source=source)
