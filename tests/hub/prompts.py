"""Prompts of tasks from the hub, compared with local files of the same items."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from ssd_bench.compose.build import build
from ssd_bench.contract.task import Task
from ssd_bench.data import HubSource, LocalSource
from ssd_bench.errors import ConfigError
from tests.hub.layouts import local_rows
from tests.runs import composed


def outcomes(cases: list[list[str]]) -> list[str]:
    """Return an outcome for each list of options."""
    with TemporaryDirectory() as folder:
        return [outcome(options, Path(folder, str(i))) for i, options in enumerate(cases)]


def outcome(options: list[str], folder: Path) -> str:
    """Return `equal`, or how a task's prompts differ or why there are none."""
    folder.mkdir()
    try:
        task: Task = build(composed(*options), "task")
        source, counts = HubSource(), []
        for template in ("plain", "chat"):
            for spec in task.files(template):
                rows = local_rows(spec.name, spec.hub["split"]) if spec.hub else []
                text = "".join(json.dumps(row) + "\n" for row in rows)
                (folder / f"{spec.name}.jsonl").write_text(text, encoding="utf-8")
            prompts, expected = (task.prompts(origin, template, None, 5) for origin in (source, LocalSource(folder)))
            if list(prompts) != list(expected):
                pairs = [(a, b) for a, b in zip(prompts, expected) if a != b]
                return f"{template}: {len(prompts)} and {len(expected)} prompts, first difference {pairs[:1]}"
            counts.append(len(prompts))
        fingerprints = [source.fingerprint(spec) for spec in task.files("plain")]
        return f"equal {counts[0]} {' '.join(fingerprints)}"
    except ConfigError as error:
        return str(error)
