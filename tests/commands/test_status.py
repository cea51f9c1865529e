"""The state of a folder's runs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from ssd_bench.commands import status
from ssd_bench.commands.status import look, render
from ssd_bench.lease import Lease
from ssd_bench.papers.runs import index
from ssd_bench.papers.runs.index import Outcome
from ssd_bench.records.writer import RunWriter
from tests.runs import program
from tests.synthetic import header, unit, with_work, write_record


def begun(folder: Path, prompts: int, seconds: float) -> int:
    """A run of 8 prompts, some done in so many seconds; returns the tokens after the first."""
    with RunWriter(folder, header(domains=["toy"] * 8)) as writer:
        for number in range(prompts):
            writer.add(number, 0, with_work(unit(number)), None)
    parts = sorted((folder / "parts").iterdir())
    for number, part in enumerate(parts):
        when = time.time() + seconds * (number + 1)
        os.utime(part, (when, when))
    found = [json.loads(part.read_bytes())["prompts"]["new_tokens"] for part in parts[1:]]
    return sum(map(sum, found))


def test_every_state_has_its_line(tmp_path: Path) -> None:
    write_record(tmp_path / "finished", [unit(0)])
    begun(tmp_path / "stopped", 2, 1)
    tokens = begun(tmp_path / "running", 3, 90)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{", encoding="utf-8")
    jobs = [["task=a"], ["task=b"], ["task=c"], ["task=d", f"runs_dir={tmp_path}"]]
    index.note_request(tmp_path, jobs, "one")
    index.note_request(tmp_path, jobs[1:], "two")
    index.note_outcome(tmp_path, jobs[0], Outcome(run="finished"))
    index.note_outcome(tmp_path, jobs[1], Outcome(error="no memory\nat all", code=1))
    with Lease(tmp_path / "running"), index.mark_running(tmp_path, jobs[2], "one"):
        lines = {(line.state, line.name): line for line in look(tmp_path)}
        text = render(list(lines.values()))
    runs = {("done", "finished"), ("stopped", "stopped"), ("running", "running"), ("failed", "broken")}
    assert set(lines) == runs | {("failed", "task=b"), ("waiting", "task=d")}
    running = lines["running", "running"]
    assert running.prompts == "3 of 8" and float(running.speed) == pytest.approx(tokens / 180, abs=0.06)
    assert f"process {os.getpid()} on" in running.more and "8 minutes left" in running.more
    assert lines["failed", "task=b"].more == "no memory"
    assert text.startswith("1 done, 1 running, 2 failed, 1 stopped, 1 waiting")


def test_it_watches_until_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path / "running", 1, 1)
    lease = Lease(tmp_path / "running")
    monkeypatch.setattr(status.time, "sleep", lambda _: lease.close())
    end = program("status", f"runs_dir={tmp_path}", "watch=true")
    assert end.returncode == 0 and "1 running" in end.stdout
    assert end.stdout.index("1 running") < end.stdout.index("1 stopped")


@pytest.mark.parametrize("option", ["runs_dir=nowhere", "watch=maybe", "nonsense=1"])
def test_bad_options_are_named(option: str) -> None:
    end = program("status", option)
    assert end.returncode == 2 and option.partition("=")[0] in end.stderr
