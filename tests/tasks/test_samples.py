"""Generated samples: every task takes its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ssd_bench.compose.build import task_named, task_names
from ssd_bench.data import SampleSource
from ssd_bench.model.template import TEMPLATES
from tasks.stream import Stream

ITEMS = 60  # of a task


def test_every_task_takes_its_samples() -> None:
    for name in task_names():
        if not isinstance(task := task_named(name), Stream):  # streams take their parts' samples
            for template in TEMPLATES:
                assert len(task.prompts(SampleSource(), template, None, 0)) == ITEMS, name


def test_long_samples_are_long_and_fractions_occur_in_math() -> None:
    folder = SampleSource().root
    assert folder is not None
    for name, field in (("govreport", "report"), ("pg19", "text"), ("booksum", "chapter")):
        assert min(len(row[field].split()) for row in _rows(folder / f"{name}.jsonl")) >= 300
    assert sum("frac" in row["answer"] for row in _rows(folder / "math500.jsonl")) >= 5


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
