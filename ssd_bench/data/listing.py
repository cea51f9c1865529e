"""Table of all tasks with their files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ssd_bench import tables
from ssd_bench.compose.build import task_named, task_names
from ssd_bench.contract.task import DataSpec
from ssd_bench.data.local import SampleSource
from ssd_bench.errors import ConfigError

COLUMNS = ("task", "file", "fields", "hub: path, name, split, revision", "rows", "new tokens", "metric", "samples")
WIDTHS = (None, None, 36, 44, None, None, 28, None)


def show() -> None:
    """Print one line per file of a task with the template `plain`, which reads all files.

    Raises:
        ConfigError: a task's settings are invalid; the other tasks are printed.
    """
    import pandas as pd  # imported here: other commands for data start without it

    lines, faults = [], []
    for name in task_names():
        try:
            task = task_named(name)
        except ConfigError as error:
            faults.append(f"{name}: {error}")
            continue
        cells = [name, task.max_new_tokens, task.metric]
        for spec in task.files("plain"):
            shown, tokens, metric = cells
            lines.append((shown, f"{spec.name}.jsonl", _fields(spec), *_hub(spec.hub), tokens, metric, _samples(spec)))
            cells = [""] * 3
    print(tables.terminal(pd.DataFrame(lines, columns=list(COLUMNS)), wrap=WIDTHS))
    print(
        "\nEvery row also has an id. [f]: a list of texts; (f): may be missing or empty; samples: rows of data=sample."
    )
    if faults:
        raise ConfigError("conf/task", [fault.partition(":")[0] for fault in faults], reason="; ".join(faults))


def _fields(spec: DataSpec) -> str:
    marks = dict.fromkeys(spec.lists, "[{}]") | dict.fromkeys(spec.singles, "[{0}] or {0}")
    required = [marks.get(field, "{}").format(field) for field in spec.fields]
    return ", ".join([*required, *(f"({field})" for field in spec.optional)])


def _hub(hub: Mapping[str, Any]) -> tuple[str, str]:
    if not hub:
        return "none", ""
    name = hub.get("name")
    names = "+".join(map(str, name)) if isinstance(name, list) else str(name)
    revision = re.sub(r"^([0-9a-f]{12})[0-9a-f]{28}$", r"\1", str(hub.get("revision")))
    return f"{hub.get('path')} {names} {hub.get('split')} @{revision}", str(hub.get("rows") or "any")


def _samples(spec: DataSpec) -> str:
    try:
        return str(sum(1 for _ in SampleSource().scan(spec)))
    except ConfigError:
        return "no"
