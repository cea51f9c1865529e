"""Show the state of the runs in a folder: running, failed, stopped, waiting.

`python -m ssd_bench status [runs_dir=runs] [watch=true]`

  runs_dir=DIR   folder that sweeps and runs write to, from any machine
  watch=true     print the states every 5 seconds, until no run is running or waiting

Running: the process and its start, prompts done, tokens/s over all arms, and the time left at this speed.
Failed: the first line of the error; the sweep's command with `retry=failed` repeats these runs.
Stopped: the run has begun, but no process works on it; the same command resumes it.
Waiting: a run of a sweep that has not begun.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ssd_bench import tables
from ssd_bench.console import options, tool
from ssd_bench.errors import ConfigError
from ssd_bench.lease import NAME, has_expired, holder
from ssd_bench.papers.runs import index
from ssd_bench.paths import record_files, reference_hint
from ssd_bench.records.header import RunHeader
from ssd_bench.records.pack import records_folder
from ssd_bench.records.writer import FAILED
from ssd_bench.sweep.dry import spell

EVERY = 5.0  # seconds between two prints
ORDER = ("running", "failed", "stopped", "waiting")
WIDTHS = (None, 60, None, None, 70)


@dataclass(frozen=True)
class StatusLine:
    """State (done or one of `ORDER`) of a run, or of a job without a record, named by its overrides."""

    state: str
    name: str
    prompts: str = ""
    speed: str = ""
    more: str = ""


def look(runs_dir: Path) -> list[StatusLine]:
    """Return the state of every run, and of every failed or waiting job, of a folder."""
    headers = sorted(record_files(runs_dir, "run.json"))
    runs = [_run(path.parent) for path in headers if ".discarded" not in path.parts]
    return [line for line in runs if line is not None] + list(_jobs(runs_dir))


def _run(folder: Path) -> StatusLine | None:
    try:
        header = RunHeader.read(folder)
    except ConfigError as error:
        return StatusLine("failed", folder.name, more=str(error))
    if header.status == "complete":
        return StatusLine("done", folder.name)
    lease = folder / NAME
    owner = holder(lease)
    parts = sorted(((path.stat().st_mtime, path) for path in folder.glob("parts/*.json")), key=lambda part: part[0])
    total = len(header.domains) * int(header.config.get("repeats") or 1)
    prompts = f"{len(parts)} of {total}"
    if owner is None or has_expired(lease, owner):
        failed = header.status == FAILED
        return StatusLine("failed" if failed else "stopped", folder.name, prompts, more=header.error)
    since = pd.Timestamp(owner.since).timestamp()
    begun = [part for part in parts if part[0] >= since]
    speed, seconds_left = _pace(begun, total - len(parts))
    more = f"{owner}" + (f", {spell(seconds_left / 3600)} left" if seconds_left is not None else "")
    return StatusLine("running", folder.name, prompts, speed, more)


def _pace(parts: Sequence[tuple[float, Path]], pending: int) -> tuple[str, float | None]:
    """Return tokens/s and seconds left, by time stamps and files of the prompts after the first, in ascending order."""
    if len(parts) < 2 or (elapsed_s := parts[-1][0] - parts[0][0]) <= 0:
        return "", None
    tokens = sum(sum(_new_tokens(path)) for _, path in parts[1:])
    return f"{tokens / elapsed_s:.1f}", elapsed_s / (len(parts) - 1) * pending


def _new_tokens(path: Path) -> list[int]:
    try:
        part: dict[str, Any] = json.loads(path.read_bytes())
        return [int(n) for n in part["prompts"]["new_tokens"]]
    except (OSError, ValueError, TypeError, KeyError):
        return []  # damaged, or being merged into the record


def _jobs(runs_dir: Path) -> Iterator[StatusLine]:
    for overrides, end, flying in index.requested_jobs(runs_dir):
        job_text = " ".join(override for override in overrides if not override.startswith("runs_dir="))
        if end.error is not None and end.code != index.HELD:
            yield StatusLine("failed", job_text, more=next(iter(end.error.splitlines()), ""))
        elif not end.has_ended and not flying:
            yield StatusLine("waiting", job_text)


def render(lines: Sequence[StatusLine]) -> str:
    """Return counts by state, and a table of the runs that are not done."""
    counts = {state: sum(line.state == state for line in lines) for state in ("done", *ORDER)}
    summary = ", ".join(f"{number} {state}" for state, number in counts.items() if number) or "no runs"
    rows = [vars(line).values() for state in ORDER for line in lines if line.state == state]
    if not rows:
        return summary
    header = ["state", "run", "prompts", "tokens/s", "process or error"]
    return f"{summary}\n\n{tables.terminal(pd.DataFrame(rows, columns=header), header[2:4], WIDTHS)}"


@tool(__doc__)
def main(arguments: Sequence[str]) -> None:
    """Print the state of all runs."""
    values = options(arguments, ("runs_dir", "watch"))
    runs_dir, watch = records_folder("runs_dir", values.get("runs_dir", "runs")), values.get("watch", "false")
    if watch not in ("true", "false"):
        raise ConfigError("watch", watch, "true or false")
    while True:
        lines = look(runs_dir)
        print(render(lines) + ("" if lines else reference_hint(runs_dir)), flush=True)
        if watch == "false" or not any(line.state in ("running", "waiting") for line in lines):
            return
        time.sleep(EVERY)
        print()
