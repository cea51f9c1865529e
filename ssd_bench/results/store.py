"""Cache for a folder of runs: digests in one file, tables of the most recently used runs in memory.

Digests that cannot be read or written are computed again, with the same numbers.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ssd_bench import conf, paths, plug_ins, settings
from ssd_bench.contract import generation, layer_set, window
from ssd_bench.cost import latency, machine, reference, tpt, work
from ssd_bench.engine import load
from ssd_bench.errors import ConfigError
from ssd_bench.paths import write_atomic
from ssd_bench.records import consistency, fault, files, header, reader, schema, typed, work_faults
from ssd_bench.records.files import open_regular
from ssd_bench.records.reader import Run, load_run
from ssd_bench.records.schema import SCHEMAS
from ssd_bench.results.digest import Digest
from tasks.scoring import passk, rouge, scorer

FILE = ".summaries.parquet"
FILES = ("run.json", *(f"{name}.parquet" for name in SCHEMAS))
COLUMNS = pa.schema([(name, pa.string()) for name in ("run", "stamp", "digest")])
CODE = (
    *sorted(path for path in Path(__file__).parent.iterdir() if path.suffix in (".py", ".yaml")),
    *(Path(str(module.__file__)) for module in (conf, generation, layer_set, load, paths, plug_ins, settings, window)),
    *(Path(str(module.__file__)) for module in (latency, machine, reference, tpt, work)),
    *(
        Path(str(module.__file__))
        for module in (consistency, fault, files, header, reader, schema, typed, work_faults, passk, rouge, scorer)
    ),
)
"""Code that computes a digest. Any change in it invalidates all digests."""
COSTS = tuple(sorted(reference.COSTS.glob("*/*.yaml")))
"""Costs of reference machines for modelled numbers; a change invalidates all digests, too."""
PACKAGES = ("numpy", "pandas", "pyarrow", "scipy", "rouge-score")
WRITE_EVERY_S = 10.0
"""Seconds between writes of the file in a long pass."""
FEW = 16
"""Number of runs below which more processes cost more than they save."""
IN_MEMORY = 32 * 2**20
"""Bytes of files whose tables are kept; about eight times as much in memory."""


class RunCache:
    """Tables of the most recently used runs, at least one, whose files fit into `capacity` bytes."""

    def __init__(self, capacity: int = IN_MEMORY) -> None:
        self._capacity, self._runs = capacity, dict[object, tuple[Run, int]]()

    def run(self, key: object, path: Path) -> Run:
        """Return a run by its key in this cache, from memory or read from `path`.

        Raises:
            ConfigError: as `load_run`.
        """
        entry = self._runs.pop(key, None)
        if entry is None:
            run = load_run(path)
            entry = run, sum((path / name).stat().st_size for name in FILES)
            while self._runs and self._capacity < entry[1] + sum(size for _, size in self._runs.values()):
                del self._runs[next(iter(self._runs))]
        self._runs[key] = entry
        return entry[0]


class DigestStore:
    """Digests of the runs in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entries = _read(folder / FILE)

    def digest(self, run_dir: Path, run: Callable[[], Run]) -> Digest:
        """Return a run's digest, stored or computed."""
        stored = self._digest(run_dir)
        if stored is not None:
            return stored
        stamp, digest = _stamp(run_dir), Digest.of(run())
        self._entries[self._name(run_dir)] = stamp, digest.text
        return digest

    def fill(self, run_dirs: Sequence[Path]) -> None:
        """Compute the missing digests of these runs, with one process per core, and write them to the file.

        They are written from time to time, so that a stopped pass can continue. Unreadable runs are left out.
        """
        missing = [run_dir for run_dir in dict.fromkeys(run_dirs) if self._digest(run_dir) is None]
        written, unwritten = time.monotonic(), 0
        try:
            for run_dir, entry in zip(missing, _digests(missing)):
                if entry is not None:
                    self._entries[self._name(run_dir)], unwritten = entry, unwritten + 1
                if unwritten and time.monotonic() - written >= WRITE_EVERY_S:
                    self._write()
                    written, unwritten = time.monotonic(), 0
        finally:
            if unwritten:
                self._write()

    def _name(self, run_dir: Path) -> str:
        return Path(os.path.relpath(run_dir, self._folder)).as_posix()

    def _digest(self, run_dir: Path) -> Digest | None:
        stamp, text = self._entries.get(self._name(run_dir), ("", ""))
        if not stamp or stamp != _stamp(run_dir):
            return None
        try:
            return Digest.read(text)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def _write(self) -> None:
        entries = sorted((name, *entry) for name, entry in self._entries.items() if (self._folder / name).is_dir())
        names, stamps, texts = (list(column) for column in zip(*entries)) if entries else ([], [], [])
        metadata = {"version": _version(), "sha256": _sum([names, stamps, texts])}
        content = io.BytesIO()
        # a folder without write permission, a full disk, or names that are not text must not stop the caller
        with suppress(OSError, ValueError):
            table = pa.table([names, stamps, texts], COLUMNS.with_metadata(metadata))
            pq.write_table(table, content, compression="zstd")
            write_atomic(self._folder / FILE, content.getvalue())


def _read(file: Path) -> dict[str, tuple[str, str]]:
    """Return run -> (stamp, digest); empty if the file is damaged or from other code."""
    try:
        with open_regular(file) as source:
            table = pq.read_table(source, partitioning=None, use_threads=False)
        names, stamps, texts = columns = [table[name].to_pylist() for name in ("run", "stamp", "digest")]
        stored, expected = table.schema.metadata or {}, {"version": _version(), "sha256": _sum(columns)}
    except (OSError, KeyError, ValueError, pa.ArrowException):
        return {}
    valid = all(stored.get(key.encode()) == value.encode() for key, value in expected.items())
    return dict(zip(names, zip(stamps, texts))) if valid else {}


def _sum(columns: Sequence[Sequence[object]]) -> str:
    return hashlib.sha256(repr(columns).encode(errors="replace")).hexdigest()


@cache
def _version() -> str:
    digest = hashlib.sha256(repr([(name, version(name)) for name in PACKAGES]).encode())
    for file in (*CODE, *COSTS):
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _stamp(run_dir: Path) -> str:
    """Return sizes and modification times of a record's files; "" if one is missing."""
    try:
        stats = [os.stat(run_dir / name) for name in FILES]
    except OSError:
        return ""
    return json.dumps([[stat.st_size, stat.st_mtime_ns] for stat in stats])


def _digests(run_dirs: Sequence[Path]) -> Iterator[tuple[str, str] | None]:
    """Yield stamp and digest of each run; None if unreadable."""
    workers = len(os.sched_getaffinity(0))
    if workers < 2 or len(run_dirs) < FEW:
        yield from map(_digest_of, run_dirs)
        return
    with get_context("fork").Pool(workers) as pool:
        yield from pool.imap(_digest_of, run_dirs, chunksize=4)


def _digest_of(run_dir: Path) -> tuple[str, str] | None:
    stamp = _stamp(run_dir)  # taken before reading, so that a change during reading is detected
    try:
        return stamp, Digest.of(load_run(run_dir)).text
    except ConfigError:
        return None
