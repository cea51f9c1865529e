"""`python -m ssd_bench status [runs_dir=runs] [watch=true]`: what the runs of a folder are at.

  runs_dir=DIR   that sweeps and runs write to, from any machine
  watch=true     look again every 5 seconds, until nothing runs or waits

Running: where, since when, prompts done, tokens/s over all arms, and when it will be done if it goes on like this.
Failed: the first line of the error; `retry=failed` in the command of the sweep repeats those.
Stopped: begun, and nobody works on it; its command goes on with it. Waiting: asked for by a sweep, and not begun.
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
from ssd_bench.command import options, tool
from ssd_bench.dry import spell
from ssd_bench.errors import ConfigError
from ssd_bench.papers import index
from ssd_bench.paths import local_path
from ssd_bench.records.files import read_header
from ssd_bench.records.lease import NAME, has_expired, holder
from ssd_bench.records.pack import unpacked_folder
from ssd_bench.records.writer import FAILED

EVERY = 5.0  # seconds between looks
ORDER = ("running", "failed", "stopped", "waiting")
WIDTHS = (None, 60, None, None, 70)


@dataclass(frozen=True)
class Line:
    """A run, or a job that is none yet.

    Attributes:
        state: done or one of `ORDER`.
        what: its name, or its overrides.
        prompts: done of all, where that is known.
        speed: tokens/s, where something was done.
        more: where and until when, or why not.
    """

    state: str
    what: str
    prompts: str = ""
    speed: str = ""
    more: str = ""


def look(runs_dir: Path) -> list[Line]:
    """Every run and every job of a folder.

    Raises:
        ConfigError: there is no such folder.
    """
    if not unpacked_folder(runs_dir).is_dir():
        raise ConfigError("runs_dir", str(runs_dir), "a folder of runs")
    runs = [_run(path.parent) for path in sorted(runs_dir.rglob("run.json")) if ".discarded" not in path.parts]
    return [line for line in runs if line is not None] + list(_jobs(runs_dir))


def _run(folder: Path) -> Line | None:
    try:
        header = read_header(folder)
    except ConfigError as error:
        return Line("failed", folder.name, more=str(error))
    if header.get("status") == "complete":
        return Line("done", folder.name)
    lease = folder / NAME
    owner = holder(lease)
    parts = sorted(((path.stat().st_mtime, path) for path in folder.glob("parts/*.json")), key=lambda one: one[0])
    total = len(header.get("domains", ())) * int(header.get("config", {}).get("repeats", 1))
    prompts = f"{len(parts)} of {total}"
    if owner is None or has_expired(lease, owner):
        failed = header.get("status") == FAILED
        return Line("failed" if failed else "stopped", folder.name, prompts, more=str(header.get("error", "")))
    begun = [path for path in parts if path[0] >= _since(owner.since)]
    speed, left = _pace(begun, total - len(parts))
    more = f"{owner}" + (f", {spell(left / 3600)} left" if left is not None else "")
    return Line("running", folder.name, prompts, speed, more)


def _since(text: str) -> float:
    return pd.Timestamp(text).timestamp()


def _pace(parts: Sequence[tuple[float, Path]], left: int) -> tuple[str, float | None]:
    """Tokens/s and seconds left, by the prompts after the first one: what was before it may be another's work."""
    if len(parts) < 2 or (took := parts[-1][0] - parts[0][0]) <= 0:
        return "", None
    tokens = sum(sum(_new_tokens(path)) for _, path in parts[1:])
    return f"{tokens / took:.1f}", took / (len(parts) - 1) * left


def _new_tokens(path: Path) -> list[int]:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        return [int(n) for n in found["prompts"]["new_tokens"]]
    except (OSError, ValueError, TypeError, KeyError):
        return []  # just being merged, or damaged


def _jobs(runs_dir: Path) -> Iterator[Line]:
    """Those of sweeps that failed or were not begun."""
    for overrides, end, flying in index.asked(runs_dir):
        what = " ".join(one for one in overrides if not one.startswith("runs_dir="))
        if end.error is not None and end.code != index.HELD:
            yield Line("failed", what, more=next(iter(end.error.splitlines()), ""))
        elif not end.known and not flying:
            yield Line("waiting", what)


def shown(lines: Sequence[Line]) -> str:
    """The numbers of all, and a table of those that are not done."""
    count = {state: sum(line.state == state for line in lines) for state in ("done", *ORDER)}
    head = ", ".join(f"{number} {state}" for state, number in count.items() if number) or "no runs here"
    rows = [vars(line).values() for state in ORDER for line in lines if line.state == state]
    if not rows:
        return head
    header = ["", "run", "prompts", "tokens/s", "where, or why not"]
    return f"{head}\n\n{tables.terminal(pd.DataFrame(rows, columns=header), header[2:4], WIDTHS)}"


def _work(arguments: Sequence[str]) -> None:
    given = options(arguments, ("runs_dir", "watch"))
    runs_dir, watch = local_path("runs_dir", given.get("runs_dir", "runs")), given.get("watch", "false")
    if watch not in ("true", "false"):
        raise ConfigError("watch", watch, "true or false")
    while True:
        lines = look(runs_dir)
        print(shown(lines), flush=True)
        if watch == "false" or not any(line.state in ("running", "waiting") for line in lines):
            return
        time.sleep(EVERY)
        print()


def main(arguments: Sequence[str]) -> int:
    """The command `status`; returns the exit code."""
    return tool(_work, __doc__, arguments)
