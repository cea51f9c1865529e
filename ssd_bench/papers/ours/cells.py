"""Data of a report: every cell of every experiment, with its run, numbers and the paper's names."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ssd_bench.errors import ConfigError
from ssd_bench.papers.printed.catalogue import NAMES
from ssd_bench.papers.runs import grid, index
from ssd_bench.papers.runs import scale as scales
from ssd_bench.records.header import RunHeader
from ssd_bench.records.reader import Run
from ssd_bench.results.evidence import RunTiming, VariationLevel
from ssd_bench.results.folder import Record, Result, records
from ssd_bench.results.models import ModelRan, model_names
from ssd_bench.results.summary import DomainSummary, Summary

PAPERS_OWN, TOY_MODEL, OTHER_MODEL, OTHER_SCALE = "as the paper", "toy model", "other model", "other scale"
REPEATED_TIMINGS = "ssd_bench_noise"
"""Experiment that times the same traces repeatedly, to measure run-to-run variation."""
DUPLICATE = "duplicates the trace of "
"""First words of the exclusion's reason if the steps are an earlier cell's."""
SPEED_FACTOR = ", although their speedups differ by a factor of "
"""Part of an exclusion's reason, before a factor unexplained by run-to-run variation."""
SETUPS = (PAPERS_OWN, OTHER_SCALE, OTHER_MODEL, TOY_MODEL)
"""Setups of a run, most similar to the paper's first: another scale has the paper's model, but fewer or other prompts;
this project trained the toy model.
"""


@dataclass(frozen=True, eq=False)
class Cell:
    """Cell of a table or figure: the paper's labels, and our run; it equals only itself, as two may have the same run.

    Attributes:
        labels: axis (`model`, `task`, `method`, `setting`) -> the paper's own name.
        record: None without a run (`error` says why, if tried).
        paper_overrides: options of the paper's run, before its scale.
    """

    labels: Mapping[str, str]
    overrides: tuple[str, ...]
    record: Record | None = field(default=None, repr=False)
    error: str | None = None
    scale: str = "paper"
    paper_overrides: tuple[str, ...] = ()

    def __getitem__(self, axis: str) -> str:
        return self.labels[axis]

    def setting(self, key: str) -> str:
        """Return the value of one `key=value` of the setting."""
        return dict(part.split("=", 1) for part in self["setting"].split(";") if "=" in part)[key]

    @property
    def _existing_record(self) -> Record:
        assert self.record is not None, "the cell has no record: check `record` first"
        return self.record

    @property
    def is_readable(self) -> bool:
        return self.record is not None and not self.record.error

    @property
    def path(self) -> Path:
        return self._existing_record.path

    @property
    def run(self) -> Run:
        return self._existing_record.run

    @property
    def header(self) -> RunHeader:
        return self._existing_record.header

    @property
    def summary(self) -> Summary:
        return self._existing_record.summary

    @property
    def domains(self) -> Sequence[DomainSummary]:
        return self._existing_record.domains

    @property
    def variation(self) -> VariationLevel | None:
        """Run-to-run variation for this model, machine and run length; None if the folder has not measured it."""
        return self._existing_record.level

    @property
    def timing(self) -> RunTiming:
        """Machine, trace and speeds of the record, for run-to-run variation."""
        return self._existing_record.digest.timing

    def remember(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """Return a result as `Record.remember`."""
        return self._existing_record.remember(key, compute)

    @property
    def model_ran(self) -> ModelRan:
        return ModelRan.of(self.header)

    @property
    def is_of_papers_model(self) -> bool:
        return self.setup in (PAPERS_OWN, OTHER_SCALE)

    @property
    def setup(self) -> str:
        """Similarity to the paper's run: one of `SETUPS`."""
        if self.header.model.toy:
            return TOY_MODEL
        if self.header.model.name != grid.choice(self.paper_overrides, "model"):
            return OTHER_MODEL
        data = self.header.options("data").get("_target_", "")
        return PAPERS_OWN if self.scale == "paper" and data.endswith(("HubSource", "LocalSource")) else OTHER_SCALE

    def ran_on(self, gpus: Sequence[str]) -> bool:
        """Return whether the run used GPUs, all with one of these parts in their names."""
        used = self.header.provenance.device.gpus
        return bool(used) and all(any(name in gpu for name in gpus) for gpu in used)


@dataclass(frozen=True, eq=False)
class ShownCell(Cell):
    """Cell with the model and setting that ran, not the paper's, and why it is excluded, or ""."""

    exclusion: str = ""


def setting_ran(setting: str, options: Mapping[str, Any]) -> str:
    """Return a paper's setting (`key=value` pairs, separated by ";") with the values of the record's options."""
    parts = (part.partition("=") for part in setting.split(";"))
    return ";".join(f"{key}{sign}{_value_ran(key, value, options)}" for key, sign, value in parts)


def _value_ran(key: str, value: str, options: Mapping[str, Any]) -> str:
    """Return the value that ran for a number in a setting; words stay."""
    try:
        planned = float(value)
        ran = options[NAMES["options"][key]]
    except (ValueError, KeyError):
        return value
    if ran is None:
        return "none"
    return value if not isinstance(ran, int | float) or float(ran) == planned else f"{ran:g}"


@dataclass(frozen=True)
class Replication:
    """Experiment at a scale, with one cell per job, and its runs; `repeats` have other seeds."""

    experiment: grid.Experiment
    scale: str
    cells: tuple[Cell, ...]
    runs_dir: Path
    repeats: tuple[Replication, ...] = ()

    @property
    def seeds(self) -> tuple[str, ...]:
        return _seeds(cell.overrides for cell in self.cells)

    @property
    def of_all_seeds(self) -> tuple[Replication, ...]:
        return self, *self.repeats

    @property
    def command(self) -> str:
        return scales.command(self.experiment.name, self.scale)

    @property
    def models_ran(self) -> str:
        return model_names(cell.model_ran for cell in self.recorded_cells())

    @property
    def notes(self) -> list[str]:
        """Notes on its runs: note of the scale, caveats of methods, settings that share a run."""
        notes = [self._scale_note] if self._scale_note else []
        caveats = dict.fromkeys(cell.header.caveat for cell in self.cells if cell.is_readable)
        notes += [f"{caveat}." for caveat in caveats if caveat]
        settings_by_run: dict[str, list[str]] = {}
        for cell in self.recorded_cells():
            if cell["setting"]:
                settings_by_run.setdefault(cell.path.name, []).append(cell["setting"])
        shared = dict.fromkeys(tuple(dict.fromkeys(settings)) for settings in settings_by_run.values())
        notes += [
            f"At scale {self.scale}, one run represents several settings: {', '.join(settings)}."
            for settings in shared
            if len(settings) > 1
        ]
        return notes

    @property
    def _scale_note(self) -> str:
        try:
            return scales.load(self.scale).notes.get(self.experiment.name, "")
        except ConfigError:  # a scale that was removed since
            return ""

    @property
    def finished(self) -> str:
        """End of its last run (UTC, ISO 8601); "" without one."""
        return max((cell.header.finished_at for cell in self.recorded_cells()), default="")

    def recorded_cells(self, **labels: str) -> Iterator[Cell]:
        """Yield the cells with these labels and a record."""
        for cell in self.cells:
            if cell.record is not None and all(cell[axis] == name for axis, name in labels.items()):
                yield cell

    def readable_cells(self) -> list[ShownCell]:
        return [cell for cell in self.shown_cells() if cell.is_readable]

    def shown_cells(self) -> list[ShownCell]:
        """Return the cells with a record, each record once (at a small scale cells share records)."""
        by_path: dict[Path, ShownCell] = {}
        for cell in self.recorded_cells():
            setting = setting_ran(cell["setting"], cell.header.options("method"))
            labels = {**cell.labels, "model": cell.model_ran.text, "setting": setting}
            shown = ShownCell(**vars(cell) | {"labels": labels}, exclusion=self.exclusions[cell])
            by_path.setdefault(cell.path, shown)
        return list(by_path.values())

    @cached_property
    def exclusions(self) -> dict[Cell, str]:
        """Cell -> why it is excluded (no search ran, or its trace duplicates an earlier cell's), or "".

        Only cells of one model and task are compared: at a small scale one run represents several models.
        """
        exclusions = dict.fromkeys(self.cells, "")
        earlier_cells: dict[tuple[str, str], list[Cell]] = {}
        for cell in self.cells:
            if cell.is_readable:
                same_task = earlier_cells.setdefault((cell["model"], cell["task"]), [])
                exclusions[cell] = _exclusion(cell, same_task)
                same_task.append(cell)
        return exclusions


def _exclusion(cell: Cell, earlier_cells: Sequence[Cell]) -> str:
    """Return why a cell is excluded, also by earlier cells of the same model and task, or ""."""
    if cell.summary.searched_share == 0:
        return "no search ran"
    earlier = next((earlier for earlier in earlier_cells if earlier.timing.trace == cell.timing.trace), None)
    if earlier is None:
        return ""
    name = ", ".join(filter(None, (earlier["method"], earlier["setting"])))
    variation = cell._existing_record.variation
    factor = variation.speed_ratio(cell.timing, earlier.timing) if variation else None
    differing = "" if factor is None else f"{SPEED_FACTOR}{factor:.2f}, beyond run-to-run variation"
    return f"{DUPLICATE}{name}{differing}"


def replications(runs_dir: Path, run_records: Sequence[Record] | None = None) -> list[Replication]:
    """Return every experiment with an index under `runs_dir`; records are found by their folders' names.

    Of several indices with one scale and seeds the latest counts. Indices with other seeds than the experiment's own
    are its `repeats`. `run_records` are the folder's, if at hand.

    Raises:
        ConfigError: an index is damaged, or its experiment unknown.
    """
    records_by_name = {
        record.path.name: record for record in (records(runs_dir) if run_records is None else run_records)
    }
    latest: dict[tuple[str, str], dict[tuple[str, ...], Replication]] = {}
    for path in index.find(runs_dir):
        name, scale, entries = index.read(path)
        if name not in grid.names():
            available = ", ".join(sorted(grid.names()))
            raise ConfigError("runs_dir", str(path), reason=f"unknown experiment {name}; available: {available}")
        experiment = grid.load(name)
        paper_overrides = {frozenset(job.labels.items()): job.overrides for job in reversed(experiment.jobs)}
        cells = tuple(
            Cell(
                line.labels,
                tuple(line.overrides),
                records_by_name.get(line.run or ""),
                line.error,
                scale,
                paper_overrides.get(frozenset(line.labels.items()), ()),
            )
            for line in entries
        )
        replication = Replication(experiment, scale, cells, path.parents[1])
        by_seeds = latest.setdefault((name, scale), {})
        previous = by_seeds.get(replication.seeds)
        if previous is None or replication.finished > previous.finished:
            by_seeds[replication.seeds] = replication
    return [_with_repeats(by_seeds) for by_seeds in latest.values()]


def _with_repeats(by_seeds: Mapping[tuple[str, ...], Replication]) -> Replication:
    """Return the replication with the experiment's own seeds, else the first, with the others as repeats."""
    jobs = next(iter(by_seeds.values())).experiment.jobs
    own = _seeds(job.overrides for job in jobs)
    first, *others = sorted(by_seeds, key=lambda seeds: (seeds != own, seeds))
    return replace(by_seeds[first], repeats=tuple(by_seeds[seeds] for seeds in others))


def _seeds(overrides: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(sorted({grid.choice(options, "seed") for options in overrides}))
