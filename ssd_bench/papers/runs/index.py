"""Outcomes of a sweep's jobs, a small file each, and each cell's run, one file per experiment and scale.

A job writes only its own file, so processes and sweeps may share a folder of runs. An experiment's index is derived
from these files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ssd_bench.errors import ConfigError
from ssd_bench.lease import Lease, LeaseHeld, abandoned_leases, hold_lease
from ssd_bench.papers.runs.grid import key_of
from ssd_bench.paths import record_files, write_atomic
from ssd_bench.records.provenance import DEFAULT_EXCLUDE

FOLDER, OUTCOMES, REQUESTED, RUNNING = "replication", ".outcomes", ".jobs", ".begun"
HELD = 75  # EX_TEMPFAIL of sysexits.h


@dataclass(frozen=True)
class Outcome:
    """End of a job.

    Attributes:
        run: name of the record's folder; None: no valid record.
        error: why it failed, or None.
        code: exit code: 0 done; 2 invalid input; `HELD` another process works on it; 1 any other error.
        warnings: kinds of warnings.
    """

    run: str | None = None
    error: str | None = None
    code: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def has_ended(self) -> bool:
        return self.run is not None or self.error is not None


@dataclass(frozen=True)
class IndexEntry:
    """Job of an experiment, with overrides at its scale, and its outcome, as stored in the index."""

    labels: dict[str, str]
    overrides: list[str]
    run: str | None = None
    error: str | None = None


def refresh(
    runs_dir: Path, experiment: str, scale: str, jobs: Sequence[tuple[Mapping[str, str], Sequence[str]]]
) -> Path:
    """Write an experiment's index at a scale from its jobs' outcomes, whichever process ran them.

    The jobs are every cell's labels and overrides.

    Raises:
        ConfigError: the folder cannot be written.
    """
    try:
        with hold_lease(runs_dir / FOLDER):  # an older index must not replace a newer one
            ends = [read_outcome(runs_dir, overrides) for _, overrides in jobs]
            cells = [
                IndexEntry(dict(labels), list(overrides), end.run, end.error)
                for (labels, overrides), end in zip(jobs, ends, strict=True)
            ]
            return write(runs_dir, experiment, scale, cells)
    except OSError as error:
        raise ConfigError("runs_dir", str(runs_dir), f"a directory that can be written ({error})") from error


def write(runs_dir: Path, experiment: str, scale: str, cells: Sequence[IndexEntry]) -> Path:
    """Write an experiment's index at a scale, replacing an older one."""
    path = runs_dir / FOLDER / f"{experiment}.{scale}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"experiment": experiment, "scale": scale, "cells": [asdict(cell) for cell in cells]}
    write_atomic(path, json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n")
    return path


def read(path: Path) -> tuple[str, str, list[IndexEntry]]:
    """Return experiment, scale and cells of an index, with outcomes noted since a sweep began and wrote it.

    Raises:
        ConfigError: the file is damaged.
    """
    try:
        content = json.loads(path.read_bytes())
        cells = [IndexEntry(**cell) for cell in content["cells"]]
        ends = [read_outcome(path.parent.parent, cell.overrides) for cell in cells]
        cells = [
            replace(cell, run=end.run, error=end.error) if end.has_ended else cell for cell, end in zip(cells, ends)
        ]
        return content["experiment"], content["scale"], cells
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError("runs_dir", str(path), f"an index of an experiment; the file is damaged ({error})") from error


def find(runs_dir: Path) -> list[Path]:
    """Return the paths of all indices under a folder of runs, as `record_files`."""
    return sorted(record_files(runs_dir, f"{FOLDER}/*.json"))


def note_request(runs_dir: Path, jobs: Sequence[Sequence[str]], sweep: str) -> None:
    """Note a sweep's requested jobs."""
    path = runs_dir / OUTCOMES / f"{sweep}{REQUESTED}"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps([list(job) for job in jobs], ensure_ascii=False).encode())


def requested_jobs(runs_dir: Path) -> Iterator[tuple[list[str], Outcome, bool]]:
    """Yield every requested job once: its overrides, its outcome, and whether it is running."""
    seen = set()
    running = {path.name.partition(".")[0] for path in (runs_dir / OUTCOMES).glob(f"*{RUNNING}")}
    for path in sorted((runs_dir / OUTCOMES).glob(f"*{REQUESTED}"), key=lambda path: path.stat().st_mtime):
        try:
            jobs = [[str(override) for override in job] for job in json.loads(path.read_bytes())]
        except (OSError, ValueError, TypeError):
            continue  # a sweep is writing the file now, or it is damaged
        for job in jobs:
            if (job_path := _outcome_path(runs_dir, job)) not in seen:
                seen.add(job_path)
                yield job, read_outcome(runs_dir, job), job_path.stem in running


@contextmanager
def mark_running(runs_dir: Path, overrides: Sequence[str], sweep: str) -> Iterator[None]:
    """Mark a sweep's job as running until the block or its process ends."""
    path = _running_path(runs_dir, overrides, sweep)
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        with suppress(LeaseHeld):  # held by a node that may be lost: `lost_jobs` finds out
            stack.enter_context(Lease(path.parent, wait=False, name=path.name))
        yield


def lost_jobs(runs_dir: Path, jobs: Iterable[Sequence[str]], sweep: str) -> list[Sequence[str]]:
    """Return the jobs whose process ended first; on another node, noticing may take `lease.SILENT` seconds."""
    leases = {_running_path(runs_dir, job, sweep): job for job in jobs}
    abandoned_paths = abandoned_leases(leases)
    return [job for path, job in leases.items() if path in abandoned_paths]


def note_outcome(runs_dir: Path, overrides: Sequence[str], outcome: Outcome, sweep: str = "") -> None:
    """Note a job's outcome, replacing an earlier one."""
    path = _outcome_path(runs_dir, overrides)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"overrides": list(overrides), **asdict(outcome), "sweep": sweep}
    write_atomic(path, json.dumps(content, ensure_ascii=False).encode())


def read_outcome(runs_dir: Path, overrides: Sequence[str], sweep: str | None = None) -> Outcome:
    """Return a job's outcome in a sweep (None: any); empty if it has not ended, or its record no longer exists."""
    try:
        content = json.loads(_outcome_path(runs_dir, overrides).read_bytes())
        outcome = Outcome(content["run"], content["error"], content["code"], tuple(content.get("warnings", ())))
    except (OSError, ValueError, TypeError, KeyError):
        return Outcome()
    if sweep is not None and content.get("sweep") != sweep:
        return Outcome()
    return outcome if outcome.run is None or (runs_dir / outcome.run / "run.json").is_file() else Outcome()


def job_identity(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the overrides that determine the record, without those that only repeat it or move its folder."""
    return tuple(override for override in overrides if key_of(override).partition(".")[0] not in DEFAULT_EXCLUDE)


def _outcome_path(runs_dir: Path, overrides: Sequence[str]) -> Path:
    return runs_dir / OUTCOMES / f"{hashlib.sha256(json.dumps(job_identity(overrides)).encode()).hexdigest()[:20]}.json"


def _running_path(runs_dir: Path, overrides: Sequence[str], sweep: str) -> Path:
    path = _outcome_path(runs_dir, overrides)
    return path.with_name(f"{path.stem}.{sweep}{RUNNING}")
