"""Records and indices behind the papers' exhibits, made up for tests of tables, verdicts and the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ssd_bench.papers import grid, index, reported, select
from ssd_bench.papers.cells import Replication, replications
from tests import synthetic

STREAMS = ("stream", "stream_swift", "stream_shift")
MINIATURE = {"name": "miniature", "rehearsal": True}


def make(folder: Path, name: str, accept: float = 0.7, prompts: int = 6, hf: bool = False, **changes: Any) -> str:
    """A record, with Hugging Face's arm if `hf`; returns the name of its folder."""
    units = [synthetic.unit(i, accept=accept) for i in range(prompts)]
    units = [synthetic.with_hf(one, slower=3 + i) for i, one in enumerate(units)] if hf else units
    synthetic.write_run(folder / name, units, **{"run_id": name, "model": MINIATURE} | changes)
    return name


def make_stream(folder: Path, name: str) -> str:
    parts, units = select.parts_of(name), []
    for i in range(2 * len(parts)):
        units.append(synthetic.unit(i, accept=0.3 + 0.1 * (i // 2)))
        for record in units[-1]:
            record.prompt.domain = parts[i // 2]
    synthetic.write_run(folder / name, units, run_id=name, model=MINIATURE)
    return name


def make_code(folder: Path, repeats: int = 10) -> str:
    units = [synthetic.unit(i, repeat) for i in range(4) for repeat in range(repeats)]
    synthetic.write_run(folder / "code", units, run_id="code", model=MINIATURE, task={"metric": "pass@1"})
    path = folder / "code" / "run.json"
    header = json.loads(path.read_text(encoding="utf-8")) | {"scores": {"ar": {}, "method": {}}}
    path.write_text(json.dumps(header), encoding="utf-8")
    return "code"


def indexed(folder: Path, experiment: str, scale: str, run: Callable[[grid.Job], str | None]) -> None:
    """An index in which each job has the run that `run` names; an error where that begins with a bang."""
    cells = []
    for job in grid.load(experiment).jobs:
        made = run(job) or ""
        error = made[1:] if made.startswith("!") else None
        cells.append(index.Line(dict(job.labels), list(job.overrides), None if error else made or None, error))
    index.write(folder, experiment, scale, cells)


def number(name: str) -> reported.Number:
    return next(one for one in reported.numbers() if one.id == name)


def make_all(folder: Path) -> list[Replication]:
    """Every experiment at scale mini, all its cells made; a few records stand behind them."""
    make(folder, "plain")
    make_code(folder)
    for stream in STREAMS:
        make_stream(folder, stream)
    for name in grid.names():
        indexed(folder, name, "mini", lambda job: record_of(grid.choice(job.overrides, "task")))
    return replications(folder)


def record_of(task: str) -> str:
    return {"humaneval": "code"}.get(task, task if task in STREAMS else "plain")
