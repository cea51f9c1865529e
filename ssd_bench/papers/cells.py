"""What a report is made of: every cell of every experiment with its run, numbers and the paper's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from ssd_bench import metrics
from ssd_bench.errors import ConfigError
from ssd_bench.metrics import Digest, RunTiming, RunVariation, VariationLevel
from ssd_bench.metrics.store import DigestStore, RunCache
from ssd_bench.papers import grid, index
from ssd_bench.papers.ran import ModelRan, named
from ssd_bench.papers.scale import load as load_scale
from ssd_bench.records.files import read_header
from ssd_bench.records.pack import unpacked_folder
from ssd_bench.records.reader import Run, find_runs, load_run
from ssd_bench.records.schema import hardware

PAPERS_OWN, REHEARSAL, OTHER_MODEL, OTHER_SCALE = "as the paper", "rehearsal", "other model", "other scale"
MOMENTS = "ssd_bench_noise"
"""The experiment whose runs are one trace at several moments."""
SETUPS = (PAPERS_OWN, OTHER_SCALE, OTHER_MODEL, REHEARSAL)
"""The nearest first. A rehearsal is of a model that this project trained; another scale has the paper's model, but
fewer or other prompts."""


class Record:
    """A run on disk, read when first asked for; one may stand behind several cells.

    Args:
        path: its folder.
        floors: noise floors of the folder that it is in, asked for when a number needs one.
        shelf: where its tables stay for a while; one of its own unless given.
        store: where its digest is kept.
    """

    def __init__(
        self,
        path: Path,
        floors: Callable[[], Sequence[RunVariation]] = tuple,
        shelf: RunCache | None = None,
        store: DigestStore | None = None,
    ) -> None:
        self.path, self.store, self._floors, self._shelf = path, store, floors, shelf or RunCache()

    @property
    def run(self) -> Run:
        """What it holds; of many records only those asked for last stay in memory."""
        return self._shelf.run(self, self.path)

    @cached_property
    def header(self) -> dict[str, Any]:
        """run.json of it."""
        return read_header(self.path)

    @cached_property
    def error(self) -> ConfigError | None:
        """Why it cannot be read; None: it can."""
        if self.store is not None and self.store.has(self.path):
            return None
        try:
            self.run  # noqa: B018
        except ConfigError as error:
            return error
        return None

    @cached_property
    def digest(self) -> Digest:
        """`metrics.Digest` of it."""
        if self.store is None:  # whoever asks many for it alone need not have room for their tables
            return Digest.of(self.run if self in self._shelf else load_run(self.path))
        return self.store.digest(self.path, lambda: self.run)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """`metrics.summarise` of it."""
        return self.digest.summarise(self.path, self.noise)

    @cached_property
    def domains(self) -> list[dict[str, Any]]:
        """`metrics.summarise_domains` of it."""
        return self.digest.summarise_domains(self.noise)

    @cached_property
    def noise(self) -> RunVariation | None:
        """The noise floor of its model and machine, where its folder has one."""
        return next((one for one in self._floors() if one.holds_for(self.digest.timing)), None)

    @property
    def trace(self) -> str:
        """`metrics.trace` of it."""
        return self.digest.timing.trace


@dataclass(frozen=True)
class Cell:
    """One cell of an exhibit: what the paper calls it, our run, and what that says.

    Attributes:
        labels: axis (`model`, `task`, `method`, `setting`) -> the paper's own name.
        overrides: what was run.
        record: our run; None where there is none (`error` says why, if it was tried).
        scale: of the run.
        asked: the overrides of the paper's own run, before its scale.
        among: all cells of its exhibit, in order.
        position: of this one among them.
    """

    labels: Mapping[str, str]
    overrides: tuple[str, ...]
    record: Record | None = field(default=None, repr=False)
    error: str | None = None
    scale: str = "paper"
    asked: tuple[str, ...] = ()
    among: Sequence[Cell] = field(default=(), repr=False, compare=False)
    position: int = 0

    def __getitem__(self, axis: str) -> str:
        return self.labels[axis]

    def setting(self, key: str) -> str:
        """The value of one `key=value` of the setting."""
        return dict(part.split("=", 1) for part in self["setting"].split(";") if "=" in part)[key]

    @property
    def _its(self) -> Record:
        assert self.record is not None, "what has no record is not asked for it"
        return self.record

    @property
    def path(self) -> Path:
        """Folder of the record."""
        return self._its.path

    @property
    def run(self) -> Run:
        """What the record holds."""
        return self._its.run

    @property
    def header(self) -> dict[str, Any]:
        """run.json of the record."""
        return self._its.header

    @property
    def summary(self) -> dict[str, Any]:
        """`metrics.summarise` of it."""
        return self._its.summary

    @property
    def domains(self) -> list[dict[str, Any]]:
        """`metrics.summarise_domains` of it."""
        return self._its.domains

    @property
    def noise(self) -> VariationLevel | None:
        """The noise floor of its folder for its model, machine and length, where there is one."""
        return None if self._its.noise is None else self._its.noise.at(self.moment.seconds)

    @property
    def moment(self) -> RunTiming:
        """What the noise floor asks of its record."""
        return self._its.digest.timing

    @cached_property
    def void(self) -> str:
        """Why it decides nothing: no search ran in it, or it has the trace of a cell before it; "" where it may decide.

        Only cells of one model and task are compared: at a small scale one run stands for several models.
        """
        if self.record is None or self.record.error:
            return ""
        if self.summary["searched_share"] == 0:
            return "no search ran in it"
        own = self.among[self.position].labels if self.among else self.labels
        for other in self.among[: self.position]:
            if any(own[axis] != other[axis] for axis in ("model", "task")) or other.record is None:
                continue
            if other.record is self.record or (not other.record.error and other.record.trace == self.record.trace):
                named = ", ".join(filter(None, (other["method"], other["setting"])))
                times = self.record.noise.speed_ratio(self.moment, other.moment) if self.record.noise else None
                apart = "" if times is None else f", timed {times:.2f} times apart, which is beyond the noise floor"
                return f"its trace is that of {named}{apart}"
        return ""

    @property
    def ran(self) -> ModelRan:
        """The model that ran."""
        return ModelRan.of(self.header)

    @property
    def is_of_papers_model(self) -> bool:
        """Whether the paper's own model ran."""
        return self.setup in (PAPERS_OWN, OTHER_SCALE)

    @property
    def setup(self) -> str:
        """How near its run is to the paper's, one of `SETUPS`."""
        model = self.header.get("model") or {}
        if model.get("rehearsal"):
            return REHEARSAL
        if model.get("name") != grid.choice(self.asked, "model"):
            return OTHER_MODEL
        data = ((self.header.get("config") or {}).get("data") or {}).get("_target_", "")
        return PAPERS_OWN if self.scale == "paper" and data.endswith(("HubSource", "LocalSource")) else OTHER_SCALE

    def ran_on(self, gpus: Sequence[str]) -> bool:
        """Whether all its GPUs, one at least, are of these, by parts of their names."""
        own = hardware(self.header)["gpus"] or []
        return bool(own) and all(any(name in str(gpu) for name in gpus) for gpu in own)


@dataclass(frozen=True)
class Replication:
    """An experiment at a scale, with what there is of its cells.

    Attributes:
        runs_dir: folder of its records.
    """

    experiment: grid.Experiment
    scale: str
    cells: tuple[Cell, ...]
    runs_dir: Path

    @property
    def command(self) -> str:
        """What makes its runs."""
        return f"python -m ssd_bench -m experiment={self.experiment.name} scale={self.scale}"

    @property
    def ran(self) -> str:
        """The models of its runs, with their sizes."""
        return named(cell.ran for cell in self.where())

    @property
    def notes(self) -> list[str]:
        """What is to be known of its runs: the scale's own note, settings that one run stands for, methods' caveats."""
        found = [self._scale_note] if self._scale_note else []
        readable = [cell for cell in self.cells if cell.record is not None and not cell.record.error]
        found += [f"{caveat}." for caveat in dict.fromkeys(cell.header.get("caveat") for cell in readable) if caveat]
        shared: dict[str, list[str]] = {}
        for cell in self.where():
            if cell["setting"]:
                shared.setdefault(cell.path.name, []).append(cell["setting"])
        alike = dict.fromkeys(tuple(dict.fromkeys(settings)) for settings in shared.values())
        found += [
            f"At scale {self.scale} one run stands for several settings: {', '.join(settings)}."
            for settings in alike
            if len(settings) > 1
        ]
        return found

    @property
    def _scale_note(self) -> str:
        try:
            return load_scale(self.scale).notes.get(self.experiment.name, "")
        except ConfigError:  # a scale that was removed since
            return ""

    @property
    def finished(self) -> str:
        """When the last of its runs ended (UTC, ISO 8601); "" without one."""
        paths = {cell.path for cell in self.where()}
        return max((str(read_header(path).get("finished_at") or "") for path in paths), default="")

    def where(self, **labels: str) -> Iterator[Cell]:
        """The cells with these labels that have a record."""
        for cell in self.cells:
            if cell.record is not None and all(cell[axis] == name for axis, name in labels.items()):
                yield cell


def records(runs_dir: Path) -> list[Record]:
    """Every complete run under a folder; none is read yet. Their speeds have the folder's noise floors."""
    found: list[Record] = []
    shelf, store = RunCache(), DigestStore(unpacked_folder(runs_dir))

    @cache
    def floors() -> list[RunVariation]:
        indices = (index.read(path) for path in index.find(runs_dir) if path.name.startswith(f"{MOMENTS}."))
        names = {line.run for _, _, lines in indices for line in lines}
        return metrics.run_to_run_variation(
            [one.digest.timing for one in found if one.path.name in names and not one.error]
        )

    found += [Record(path, floors, shelf, store) for path in find_runs(runs_dir)]
    return found


def these(run_dirs: Iterable[Path]) -> list[Record]:
    """The records of some folders, each once, prepared."""
    stores: dict[Path, DigestStore] = {}
    shelf, found = RunCache(), []
    for run_dir in dict.fromkeys(run_dirs):
        if run_dir.parent not in stores:
            stores[run_dir.parent] = DigestStore(run_dir.parent)
        found.append(Record(run_dir, shelf=shelf, store=stores[run_dir.parent]))
    prepare(found)
    return found


def prepare(made: Iterable[Record]) -> None:
    """Work out at once, and keep in their folders, what all of these records will be asked for."""
    by_store: dict[DigestStore, list[Path]] = {}
    for one in made:
        if one.store is not None:
            by_store.setdefault(one.store, []).append(one.path)
    for store, paths in by_store.items():
        store.fill(paths)


def replications(runs_dir: Path, known: Sequence[Record] | None = None) -> list[Replication]:
    """Every experiment that has an index under `runs_dir`; records are looked up by the names of their folders.

    Where there are several of one experiment and scale, as of committed records beside one's own, the latest counts.

    Args:
        known: `records` of the folder, where they are at hand.

    Raises:
        ConfigError: an index is damaged, or its experiment unknown.
    """
    made = {one.path.name: one for one in (records(runs_dir) if known is None else known)}
    found: dict[tuple[str, str], Replication] = {}
    for path in index.find(runs_dir):
        name, scale, entries = index.read(path)
        if name not in grid.names():
            raise ConfigError("runs_dir", str(path), f"an index of an experiment that there is; {name} is none")
        experiment = grid.load(name)
        asked = {frozenset(job.labels.items()): job.overrides for job in reversed(experiment.jobs)}
        cells: list[Cell] = []
        cells += [
            Cell(e.labels, tuple(e.overrides), made.get(e.run or ""), e.error, scale,
                 asked.get(frozenset(e.labels.items()), ()), cells, position)
            for position, e in enumerate(entries)
        ]  # fmt: skip
        one = Replication(experiment, scale, tuple(cells), path.parents[1])
        other = found.get((name, scale))
        if other is None or one.finished > other.finished:
            found[name, scale] = one
    return list(found.values())
