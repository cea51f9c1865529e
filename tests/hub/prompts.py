"""A client process: prompts of tasks from the hub, compared with local files of the same items.

python -m tests.hub.prompts FOLDER    reads a JSON list of option lists from stdin, prints a JSON list of outcomes
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ssd_bench.compose.build import build
from ssd_bench.contract.task import Task
from ssd_bench.data import HubSource, LocalSource
from ssd_bench.errors import ConfigError
from tests.hub.layouts import local_rows
from tests.runs import composed


def outcome(options: list[str], folder: Path) -> str:
    """Return `equal`, or how a task's prompts differ or why there are none."""
    try:
        task: Task = build(composed(*options), "task")
        source, counts = HubSource(), []
        for template in ("plain", "chat"):
            for spec in task.files(template):
                folder.mkdir(parents=True, exist_ok=True)
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


if __name__ == "__main__":
    cases: list[list[str]] = json.load(sys.stdin)
    outcomes: list[Any] = [outcome(options, Path(sys.argv[1]) / str(i)) for i, options in enumerate(cases)]
    print(json.dumps(outcomes))
