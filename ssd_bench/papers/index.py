"""What came of each job of a sweep, a small file a job, and which run is which cell's, a file an experiment and scale.

A job writes its own file and no other, so any number of processes and sweeps may share a folder of runs; which cell has
which run is then read from the files that are there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ssd_bench.errors import ConfigError
from ssd_bench.papers.grid import key_of
from ssd_bench.records.files import write_atomic
from ssd_bench.records.lease import Lease, LeaseHeld, abandoned_leases, hold_lease
from ssd_bench.records.pack import unpacked_folder
from ssd_bench.records.provenance import DEFAULT_EXCLUDE

FOLDER, OUTCOMES, ASKED, BEGUN = "replication", ".outcomes", ".jobs", ".begun"
HELD = 75  # EX_TEMPFAIL of sysexits.h


@dataclass(frozen=True)
class Outcome:
    """The end of a job.

    Attributes:
        run: name of the record's folder; None: there is no record that counts.
        error: why it failed; None: it is done.
        code: exit code of the job as a program of its own: 0 done; 2 input that cannot work; `HELD` another process
            works on it; 1 anything else.
    """

    run: str | None = None
    error: str | None = None
    code: int = 0

    @property
    def known(self) -> bool:
        """Whether the job has ended at all."""
        return self.run is not None or self.error is not None


@dataclass(frozen=True)
class Line:
    """One job of an experiment and what came of it, as the index has it.

    Attributes:
        labels: axis -> the paper's own name.
        overrides: of the run, after its scale.
        run: name of the record's folder; None: it failed, or was not run yet.
        error: why it failed.
    """

    labels: dict[str, str]
    overrides: list[str]
    run: str | None = None
    error: str | None = None


def refresh(
    runs_dir: Path, experiment: str, scale: str, jobs: Sequence[tuple[Mapping[str, str], Sequence[str]]]
) -> Path:
    """Write the index of an experiment at a scale from what came of its jobs, whoever ran them.

    Args:
        jobs: labels and overrides of every cell.

    Raises:
        ConfigError: the folder cannot be written.
    """
    try:
        with hold_lease(runs_dir / FOLDER):  # so that no older reading is written over a newer one
            ends = [outcome(runs_dir, overrides) for _, overrides in jobs]
            cells = [
                Line(dict(labels), list(overrides), end.run, end.error)
                for (labels, overrides), end in zip(jobs, ends, strict=True)
            ]
            return write(runs_dir, experiment, scale, cells)
    except OSError as error:
        raise ConfigError("runs_dir", str(runs_dir), f"a directory that can be written ({error})") from error


def write(runs_dir: Path, experiment: str, scale: str, cells: Sequence[Line]) -> Path:
    """Write the index of an experiment at a scale, replacing an older one."""
    path = runs_dir / FOLDER / f"{experiment}.{scale}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"experiment": experiment, "scale": scale, "cells": [asdict(cell) for cell in cells]}
    write_atomic(path, json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n")
    return path


def read(path: Path) -> tuple[str, str, list[Line]]:
    """Experiment, scale and cells of an index.

    Raises:
        ConfigError: the file is damaged.
    """
    try:
        content = json.loads(path.read_bytes())
        return content["experiment"], content["scale"], [Line(**cell) for cell in content["cells"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError("runs_dir", str(path), f"an index of an experiment; the file is damaged ({error})") from error


def find(runs_dir: Path) -> list[Path]:
    """All indices under a folder of runs."""
    return sorted(unpacked_folder(runs_dir).rglob(f"{FOLDER}/*.json"))


def ask(runs_dir: Path, jobs: Sequence[Sequence[str]], sweep: str) -> None:
    """Note what a sweep asks for."""
    path = runs_dir / OUTCOMES / f"{sweep}{ASKED}"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps([list(job) for job in jobs], ensure_ascii=False).encode())


def asked(runs_dir: Path) -> Iterator[tuple[list[str], Outcome, bool]]:
    """Every job that sweeps asked for, once: its overrides, what came of it, and whether it has begun and not ended."""
    seen = set()
    flying = {path.name.partition(".")[0] for path in (runs_dir / OUTCOMES).glob(f"*{BEGUN}")}
    for path in sorted((runs_dir / OUTCOMES).glob(f"*{ASKED}"), key=lambda path: path.stat().st_mtime):
        try:
            jobs = [[str(one) for one in job] for job in json.loads(path.read_bytes())]
        except (OSError, ValueError, TypeError):
            continue  # of a sweep that is just beginning, or damaged
        for job in jobs:
            if (own := _path(runs_dir, job)) not in seen:
                seen.add(own)
                yield job, outcome(runs_dir, job), own.stem in flying


@contextmanager
def under_way(runs_dir: Path, overrides: Sequence[str], sweep: str) -> Iterator[None]:
    """A job of a sweep, from when it begins till it has ended or its process has."""
    path = _begun(runs_dir, overrides, sweep)
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        with suppress(LeaseHeld):  # of a node that may be lost, which `lost` finds out
            held.enter_context(Lease(path.parent, wait=False, name=path.name))
        yield


def lost(runs_dir: Path, jobs: Iterable[Sequence[str]], sweep: str) -> list[Sequence[str]]:
    """Those whose process ended before they had; it may take `lease.SILENT` seconds to know of one on another node."""
    leases = {_begun(runs_dir, job, sweep): job for job in jobs}
    found = abandoned_leases(leases)
    return [job for path, job in leases.items() if path in found]


def note(runs_dir: Path, overrides: Sequence[str], outcome: Outcome, sweep: str = "") -> None:
    """Note what came of a job, in place of what came of it before."""
    path = _path(runs_dir, overrides)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"overrides": list(overrides), **asdict(outcome), "sweep": sweep}
    write_atomic(path, json.dumps(content, ensure_ascii=False).encode())


def outcome(runs_dir: Path, overrides: Sequence[str], sweep: str | None = None) -> Outcome:
    """What came of a job; an empty outcome if that is not known, or its record is not there any more.

    Args:
        sweep: the one that it ended in; None: any.
    """
    try:
        content = json.loads(_path(runs_dir, overrides).read_bytes())
        found = Outcome(content["run"], content["error"], content["code"])
    except (OSError, ValueError, TypeError, KeyError):
        return Outcome()
    if sweep is not None and content.get("sweep") != sweep:
        return Outcome()
    return found if found.run is None or (runs_dir / found.run / "run.json").is_file() else Outcome()


def identity(overrides: Sequence[str]) -> tuple[str, ...]:
    """What determines the record: the same job told to repeat it, or with its folder moved, is the same."""
    return tuple(override for override in overrides if key_of(override).partition(".")[0] not in DEFAULT_EXCLUDE)


def _path(runs_dir: Path, overrides: Sequence[str]) -> Path:
    return runs_dir / OUTCOMES / f"{hashlib.sha256(json.dumps(identity(overrides)).encode()).hexdigest()[:20]}.json"


def _begun(runs_dir: Path, overrides: Sequence[str], sweep: str) -> Path:
    path = _path(runs_dir, overrides)
    return path.with_name(f"{path.stem}.{sweep}{BEGUN}")
