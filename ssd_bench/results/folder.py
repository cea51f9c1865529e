"""Records of a folder of runs, with numbers computed when first needed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TypeVar, cast

from ssd_bench.errors import ConfigError
from ssd_bench.records.header import RunHeader
from ssd_bench.records.reader import Run, find_runs
from ssd_bench.results.digest import Digest
from ssd_bench.results.evidence import RunVariation, VariationLevel, run_to_run_variation
from ssd_bench.results.store import DigestStore, RunCache
from ssd_bench.results.summary import DomainSummary, Summary

Result = TypeVar("Result")


class Record:
    """Run on disk, loaded when first needed; several cells may share it.

    Args:
        variations: returns the run-to-run variations measured in the folder, when a number needs one.
        cache: tables of recently used runs; default: a new cache.
        store: digests of the folder's runs; default: of the run's folder.
    """

    def __init__(
        self,
        path: Path,
        variations: Callable[[], Sequence[RunVariation]] = tuple,
        cache: RunCache | None = None,
        store: DigestStore | None = None,
    ) -> None:
        self.path, self._variations, self._cache = path, variations, cache or RunCache()
        self.store = store or DigestStore(path.parent)
        self._results: dict[Hashable, object] = {}

    @property
    def run(self) -> Run:
        """Tables and header; only recently used records stay in memory."""
        return self._cache.run(self, self.path)

    def remember(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """Return a small result from the tables, computed at the first call with its key."""
        if key not in self._results:
            self._results[key] = compute()
        return cast(Result, self._results[key])

    @cached_property
    def header(self) -> RunHeader:
        return RunHeader.read(self.path)

    @cached_property
    def error(self) -> ConfigError | None:
        """Reason why the record cannot be read; else None."""
        try:
            self.digest  # noqa: B018
        except ConfigError as error:
            return error
        return None

    @cached_property
    def digest(self) -> Digest:
        return self.store.digest(self.path, lambda: self.run)

    @cached_property
    def summary(self) -> Summary:
        """Every number, with run-to-run variation in the intervals of speeds."""
        return self.digest.summarise(self.path, self.level)

    @cached_property
    def domains(self) -> Sequence[DomainSummary]:
        """Main numbers of each domain, as `summary`."""
        return self.digest.summarise_domains(self.level)

    @cached_property
    def variation(self) -> RunVariation | None:
        """Run-to-run variation of this model and machine; None without repeated timings in the folder."""
        machine = self.digest.timing.machine
        return next((variation for variation in self._variations() if variation.machine == machine), None)

    @property
    def level(self) -> VariationLevel | None:
        """The variation of runs of this length; None if the folder has not measured it."""
        return None if self.variation is None else self.variation.at(self.digest.timing.seconds)


def records(runs_dir: Path) -> list[Record]:
    """Return every complete run under a folder, not loaded, with the folder's run-to-run variation."""
    run_records: list[Record] = []
    run_cache, store = RunCache(), DigestStore(runs_dir)

    @cache
    def variations() -> list[RunVariation]:
        store.fill([record.path for record in run_records])
        # a copy of a record has the same name, and would count as a timing without any variation
        records_by_name = {record.path.name: record for record in run_records if not record.error}
        return run_to_run_variation([record.digest.timing for record in records_by_name.values()])

    run_records += [Record(path, variations, run_cache, store) for path in find_runs(runs_dir)]
    return run_records


def load_records(run_dirs: Iterable[Path]) -> list[Record]:
    """Return the records of some folders, each once, with computed digests."""
    stores: dict[Path, DigestStore] = {}
    run_cache, loaded = RunCache(), []
    for run_dir in dict.fromkeys(run_dirs):
        if run_dir.parent not in stores:
            stores[run_dir.parent] = DigestStore(run_dir.parent)
        loaded.append(Record(run_dir, cache=run_cache, store=stores[run_dir.parent]))
    prepare_records(loaded)
    return loaded


def prepare_records(run_records: Iterable[Record]) -> None:
    """Compute the digests of all records in parallel, and store them in their folders."""
    by_store: dict[DigestStore, list[Path]] = {}
    for record in run_records:
        by_store.setdefault(record.store, []).append(record.path)
    for store, paths in by_store.items():
        store.fill(paths)
