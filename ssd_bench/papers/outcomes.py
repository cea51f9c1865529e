"""What came of each job of a sweep: one small file a job, beside the records.

A job writes its own file and no other, so any number of processes and sweeps may share a folder of runs; which cell has
which run is then read from the files that are there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ssd_bench.papers.grid import key_of
from ssd_bench.records.files import write_atomic
from ssd_bench.records.provenance import DEFAULT_EXCLUDE

FOLDER = ".outcomes"


@dataclass(frozen=True)
class Outcome:
    """The end of a job.

    Attributes:
        run: name of the record's folder; None: there is no record that counts.
        error: why it failed; None: it is done.
        code: exit code of the job as a program of its own: 0 done; 2 input that cannot work; 1 anything else.
    """

    run: str | None = None
    error: str | None = None
    code: int = 0


def write(runs_dir: Path, overrides: Sequence[str], outcome: Outcome) -> None:
    """Note what came of a job, in place of what came of it before."""
    path = _path(runs_dir, overrides)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps({"overrides": list(overrides), **asdict(outcome)}, ensure_ascii=False).encode())


def read(runs_dir: Path, overrides: Sequence[str]) -> Outcome:
    """What came of a job; an empty outcome if that is not known, or its record is not there any more."""
    try:
        content = json.loads(_path(runs_dir, overrides).read_bytes())
        found = Outcome(content["run"], content["error"], content["code"])
    except (OSError, ValueError, TypeError, KeyError):
        return Outcome()
    return found if found.run is None or (runs_dir / found.run / "run.json").is_file() else Outcome()


def _path(runs_dir: Path, overrides: Sequence[str]) -> Path:
    """By what determines the record: the same job told to repeat it, or with its folder moved, is the same."""
    kept = [override for override in overrides if key_of(override).partition(".")[0] not in DEFAULT_EXCLUDE]
    return runs_dir / FOLDER / f"{hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:20]}.json"
