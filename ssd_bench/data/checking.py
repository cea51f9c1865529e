"""A check of a folder's JSONL files against the tasks that read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from omegaconf import OmegaConf

from ssd_bench.compose.build import build, task_named, task_names, task_settings
from ssd_bench.contract.task import DataSpec, Task
from ssd_bench.data.local import LocalSource
from ssd_bench.data.rows import faults_of
from ssd_bench.errors import ConfigError
from ssd_bench.model.template import TEMPLATES
from ssd_bench.paths import local_path

MOST = 20  # most printed faults of a file


class Folder:
    """A folder of JSONL files with the number of printed problems; files are read once for tasks with equal fields."""

    def __init__(self, root: Path) -> None:
        self.source, self.problems = LocalSource(root), 0
        self._sound: dict[str, bool] = {}

    def is_sound(self, spec: DataSpec) -> bool:
        """Return whether all rows are usable; the first call prints their number and faults."""
        key = repr(replace(spec, hub={}, place=None))
        if key not in self._sound:
            self._sound[key] = self._examine(spec)
        return self._sound[key]

    def report(self, problem: object) -> None:
        """Print and count a problem."""
        self.problems += 1
        print(f"  PROBLEM {problem}")

    def _examine(self, spec: DataSpec) -> bool:
        rows, faults = 0, 0
        try:
            for _, row in self.source.scan(spec):
                rows += 1
                for fault in faults_of(row):
                    faults += 1
                    if faults <= MOST:
                        self.report(fault)
        except ConfigError as error:
            faults += 1
            self.report(error)
        if faults > MOST:
            self.report(f"{spec.name}.jsonl has {faults - MOST} more")
        print(f"  {spec.name}.jsonl: {rows} rows, {faults} problems")
        return not faults


def check(root: str, choices: Sequence[str]) -> None:
    """Print the content and all problems of a folder's files.

    Args:
        root: the folder, or one file of prompts, which is checked as `task=jsonl task.path=FILE` reads it.
        choices: tasks, as for `task_named`, whose files must all exist; empty: every task, with its existing files.

    Raises:
        ConfigError: no such folder, or there was a problem.
    """
    path = local_path("DIR", root)
    if path.suffix == ".jsonl" and path.is_file() and not choices:
        folder = Folder(path.parent)
        task: Task = build(OmegaConf.create({"task": task_settings("jsonl") | {"path": str(path)}}), "task")
        print(task.name)
        _check_task(folder, task, task.files("plain"), named=True)
        _refuse_problems(folder, root)
        return
    if not path.is_dir():
        expected = "an existing folder of JSONL files, or one file NAME.jsonl of prompts, without a TASK"
        raise ConfigError("DIR", root, expected)
    folder, absent, read = Folder(path), [], set[str]()
    for choice in choices or task_names():
        try:
            task = task_named(choice)
        except ConfigError as error:
            print(choice)
            folder.report(error)
            continue
        files = {spec.name: spec for template in TEMPLATES for spec in task.files(template)}
        read |= files.keys()
        present = {name: spec for name, spec in files.items() if (path / f"{name}.jsonl").exists()}
        missing = [f"{name}.jsonl" for name in files if name not in present]
        if missing:
            absent.append(f"{choice}: {', '.join(missing)}")
        if present or choices:
            print(choice)
            _check_task(folder, task, list(present.values()), named=bool(choices))
            for name in missing if choices else []:
                folder.report(f"{path / name} is missing")
    if not choices:
        unread = sorted(file.name for file in path.glob("*.jsonl") if file.stem not in read)
        print("files that no task reads: " + (", ".join(unread) or "none"))
        print("tasks that lack files: " + ("; ".join(absent) or "none"))
    _refuse_problems(folder, root)


def _refuse_problems(folder: Folder, root: str) -> None:
    if folder.problems:
        raise ConfigError("DIR", root, "files without problems", f"{folder.problems} problems are listed above")


def _check_task(folder: Folder, task: Task, present: Sequence[DataSpec], named: bool) -> None:
    """Check a task's files, then build its prompts, which runs the task's own checks.

    Too few rows for an option of the task (`task.items` of a stream) are a problem only if the user named the task.
    """
    sound = {spec.name for spec in present if folder.is_sound(spec)}
    for template in TEMPLATES:
        lacking = [f"{spec.name}.jsonl" for spec in task.files(template) if spec.name not in sound]
        if lacking:
            print(f"  {template}: no prompts; missing or with problems: {', '.join(lacking)}")
            continue
        try:
            print(f"  {template}: {len(task.prompts(folder.source, template, None, 0))} prompts")
        except ConfigError as error:
            if named or not error.field.startswith("task."):
                folder.report(f"{template}: {error}")
            else:
                print(f"  {template}: no prompts; {error}")
