"""What is kept of the runs of a folder: of all of them their digests, in one file there, and of a few their tables.

The file is a convenience: whatever cannot be read from it or written to it is worked out again, with the same numbers.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ssd_bench.core import layer_set, load, window
from ssd_bench.cost import tpt
from ssd_bench.errors import ConfigError
from ssd_bench.metrics.summary import Digest
from ssd_bench.records import consistency, files, reader, schema
from ssd_bench.records.files import open_regular, write_atomic
from ssd_bench.records.reader import Run, load_run
from ssd_bench.records.schema import SCHEMAS
from tasks.scoring import passk

FILE = ".summaries.parquet"
COLUMNS = pa.schema([(name, pa.string()) for name in ("run", "run_id", "stamp", "digest")])
CODE = (
    *sorted(Path(__file__).parent.glob("*.py")),
    *(Path(str(module.__file__)) for module in (layer_set, load, tpt, window)),
    *(Path(str(module.__file__)) for module in (consistency, files, reader, schema, passk)),
    Path(__file__).parents[1] / "rouge.py",
)
"""What a digest is made by: where one of these has changed, none counts any more."""
PACKAGES = ("numpy", "pandas", "pyarrow", "scipy", "rouge-score")
FEW = 16
"""Runs that are digested before further processes would have started."""
IN_MEMORY = 32 * 2**20
"""Bytes of the files whose tables are kept in memory, where they take some eight times as much."""


class RunCache:
    """The tables of the runs that were asked for last, as many as fit, one at least.

    Args:
        room: bytes of their files.
    """

    def __init__(self, room: int = IN_MEMORY) -> None:
        self._room, self._runs = room, dict[object, tuple[Run, int]]()

    def __contains__(self, key: object) -> bool:
        return key in self._runs

    def run(self, key: object, path: Path) -> Run:
        """A run, read unless it is still here.

        Args:
            key: by which it is known again.

        Raises:
            ConfigError: as `load_run`.
        """
        found = self._runs.pop(key, None)
        if found is None:
            run = load_run(path)
            found = run, sum((path / name).stat().st_size for name in _names())
            while self._runs and self._room < found[1] + sum(size for _, size in self._runs.values()):
                del self._runs[next(iter(self._runs))]
        self._runs[key] = found
        return found[0]


class DigestStore:
    """The digests of a folder's runs.

    Args:
        folder: that the runs are in, and the file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept = _read(folder / FILE)

    def has(self, run_dir: Path) -> bool:
        """Whether the digest of a run is here, of its record as it is now."""
        return self._digest(run_dir) is not None

    def digest(self, run_dir: Path, run: Callable[[], Run]) -> Digest:
        """The digest of a run, from here or worked out.

        Args:
            run: reads it.
        """
        found = self._digest(run_dir)
        if found is None:
            stamp, found = _stamp(run_dir), Digest.of(run())
            self._kept[self._name(run_dir)] = stamp, found.text
        return found

    def fill(self, run_dirs: Sequence[Path]) -> None:
        """Work out what is lacking of these runs, by one process a core, and write it to the file.

        Those that cannot be read are left out.
        """
        lacking = [run_dir for run_dir in dict.fromkeys(run_dirs) if not self.has(run_dir)]
        found = dict(zip(map(self._name, lacking), _digested(lacking)))
        self._kept |= {name: kept for name, kept in found.items() if kept is not None}
        if any(found.values()):
            self._write()

    def _name(self, run_dir: Path) -> str:
        return Path(os.path.relpath(run_dir, self._folder)).as_posix()

    def _digest(self, run_dir: Path) -> Digest | None:
        stamp, text = self._kept.get(self._name(run_dir), ("", ""))
        if not stamp or stamp != _stamp(run_dir):
            return None
        try:
            return Digest.read(text)
        except (ValueError, TypeError, KeyError):
            return None

    def _write(self) -> None:
        kept = sorted((name, *rest) for name, rest in self._kept.items() if (self._folder / name).is_dir())
        names, stamps, texts = (list(column) for column in zip(*kept)) if kept else ([], [], [])
        ids = [str(Digest.read(text).summary["run_id"]) for text in texts]
        known = {"version": _version(), "sha256": _sum([names, stamps, texts])}
        content = io.BytesIO()
        with suppress(OSError, ValueError):  # somebody else's folder, a full disk, names that are no text
            table = pa.table([names, ids, stamps, texts], COLUMNS.with_metadata(known))
            pq.write_table(table, content, compression="zstd")
            write_atomic(self._folder / FILE, content.getvalue())


def _read(file: Path) -> dict[str, tuple[str, str]]:
    """By run its stamp and digest; none where the file is of other code or damaged."""
    try:
        with open_regular(file) as source:
            table = pq.read_table(source, partitioning=None, use_threads=False)
        names, stamps, texts = columns = [table[name].to_pylist() for name in ("run", "stamp", "digest")]
        told, found = table.schema.metadata or {}, {"version": _version(), "sha256": _sum(columns)}
    except (OSError, KeyError, ValueError, pa.ArrowException):
        return {}
    whole = all(told.get(key.encode()) == value.encode() for key, value in found.items())
    return dict(zip(names, zip(stamps, texts))) if whole else {}


def _sum(columns: Sequence[Sequence[object]]) -> str:
    return hashlib.sha256(repr(columns).encode(errors="replace")).hexdigest()


@cache
def _version() -> str:
    """Of the code by which digests are made, and the packages that it takes."""
    digest = hashlib.sha256(repr([(name, version(name)) for name in PACKAGES]).encode())
    for file in CODE:
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _names() -> Iterator[str]:
    yield "run.json"
    yield from (f"{name}.parquet" for name in SCHEMAS)


def _stamp(run_dir: Path) -> str:
    """By what a change of a record is known: sizes and times of its files; "" where one is not there."""
    try:
        found = [os.stat(run_dir / name) for name in _names()]
    except OSError:
        return ""
    return json.dumps([[one.st_size, one.st_mtime_ns] for one in found])


def _digested(run_dirs: Sequence[Path]) -> Iterable[tuple[str, str] | None]:
    """Stamp and digest of each run, None of one that cannot be read."""
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if workers < 2 or len(run_dirs) < FEW:
        return [_one(run_dir) for run_dir in run_dirs]
    with get_context("fork").Pool(workers) as pool:
        return pool.map(_one, run_dirs, chunksize=4)


def _one(run_dir: Path) -> tuple[str, str] | None:
    stamp = _stamp(run_dir)  # before it is read: one that changes meanwhile does not count
    try:
        return stamp, Digest.of(load_run(run_dir)).text
    except ConfigError:
        return None
