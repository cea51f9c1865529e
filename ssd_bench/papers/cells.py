"""What a report is made of: every cell of every experiment with its run, numbers and the paper's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ssd_bench import metrics
from ssd_bench.errors import ConfigError
from ssd_bench.papers import grid, index
from ssd_bench.papers.scale import load as load_scale
from ssd_bench.records.files import read_header
from ssd_bench.records.reader import Run, find_runs, load_run


class Made:
    """A record behind one or more cells, read when first asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def run(self) -> Run:
        """The record."""
        return load_run(self.path)

    @cached_property
    def error(self) -> ConfigError | None:
        """Why it cannot be read; None: it can."""
        try:
            self.run  # noqa: B018
        except ConfigError as error:
            return error
        return None

    @cached_property
    def summary(self) -> dict[str, Any]:
        """`metrics.summarise` of it."""
        return metrics.summarise(self.run)

    @cached_property
    def domains(self) -> list[dict[str, Any]]:
        """`metrics.by_domain` of it."""
        return metrics.by_domain(self.run)


@dataclass(frozen=True)
class Result:
    """One cell of an exhibit.

    Attributes:
        labels: axis (`model`, `task`, `method`, `setting`) -> the paper's own name.
        overrides: what was run.
        made: its record; None where there is none (`error` says why, if it was tried).
    """

    labels: Mapping[str, str]
    overrides: tuple[str, ...]
    made: Made | None
    error: str | None


@dataclass(frozen=True)
class Replication:
    """An experiment at a scale, with the results that are there.

    Attributes:
        runs_dir: folder of its records.
    """

    experiment: grid.Experiment
    scale: str
    results: tuple[Result, ...]
    runs_dir: Path

    @property
    def command(self) -> str:
        """What makes its runs."""
        return f"python -m ssd_bench -m experiment={self.experiment.name} scale={self.scale}"

    @property
    def notes(self) -> list[str]:
        """What is to be known of its runs: the scale's own note, settings that one run stands for, methods' caveats."""
        found = [self._scale_note] if self._scale_note else []
        runs = [result.made.run for result in self.results if result.made is not None and not result.made.error]
        found += [f"{caveat}." for caveat in dict.fromkeys(run.header.get("caveat") for run in runs) if caveat]
        shared: dict[str, list[str]] = {}
        for result in self.results:
            if result.made is not None and result.labels["setting"]:
                shared.setdefault(result.made.path.name, []).append(result.labels["setting"])
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
        paths = {result.made.path for result in self.results if result.made is not None}
        return max((str(read_header(path).get("finished_at") or "") for path in paths), default="")

    def where(self, **labels: str) -> Iterator[Result]:
        """The results with these labels that have a record."""
        for result in self.results:
            if result.made is not None and all(result.labels[axis] == name for axis, name in labels.items()):
                yield result


def records(runs_dir: Path) -> list[Made]:
    """Every complete run under a folder; none is read yet."""
    return [Made(path) for path in find_runs(runs_dir)]


def replications(runs_dir: Path, known: Sequence[Made] | None = None) -> list[Replication]:
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
        name, scale, cells = index.read(path)
        if name not in grid.names():
            raise ConfigError("runs_dir", str(path), f"an index of an experiment that there is; {name} is none")
        results = [Result(c.labels, tuple(c.overrides), made.get(c.run or ""), c.error) for c in cells]
        one = Replication(grid.load(name), scale, tuple(results), path.parents[1])
        other = found.get((name, scale))
        if other is None or one.finished > other.finished:
            found[name, scale] = one
    return list(found.values())
