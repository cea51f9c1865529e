"""Options of a run, checked before anything is opened: names, types, and classes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from ssd_bench.compose.build import KINDS, TARGET, build
from ssd_bench.contract.method import Method
from ssd_bench.contract.optional import Calibrated
from ssd_bench.contract.task import DataSource, Sourced, Task
from ssd_bench.data.local import SampleSource
from ssd_bench.engine.sampling import Decoding
from ssd_bench.errors import NOT_GIVEN, ConfigError, shortened
from ssd_bench.model.checkpoint import ModelSource
from ssd_bench.model.template import TEMPLATES, Template
from ssd_bench.paths import LONGEST_NAME, local_path
from ssd_bench.quoting import unresolved
from ssd_bench.records.schema import arms_of
from ssd_bench.run.hardware import Options
from ssd_bench.run.tracking import Tracking
from ssd_bench.settings import GIVEN, Count, Fits, Range, Whole, arguments, check_value

Name = Annotated[str, Fits("a text without /, for the name of a folder", re.compile(r"[^/\0]+").fullmatch)]
Part = Annotated[str, Fits("NUMBER/OF, such as 3/8 for the third of eight", lambda text: _is_part(text))]
LONGEST_NAMES = LONGEST_NAME - 20  # bytes; the name of a record's folder ends with digits of the run's key
MOST_REPEATS = 10_000  # the work items of a run are listed in memory
OPTIONS = {
    "limit": Count | None,
    "repeats": Annotated[int, Range(1, MOST_REPEATS)],
    "seed": Whole,
    "force": bool,
    "runs_dir": str,
    "variant": str | None,
    "baseline": Any,
}
TABLES: dict[str, type] = {"decode": Decoding, "hardware": Options, "wandb": Tracking}
KNOWN = (*OPTIONS, *TABLES, *KINDS, "dry", "minutes", "retry", "shard")


def resolve(cfg: DictConfig) -> dict[str, Any]:
    """Return a config as plain values, with every option checked.

    Raises:
        ConfigError: an unknown option, or a value of a wrong type.
    """
    try:
        config: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        name = str(error.full_key or "option")
        if not isinstance(error, MissingMandatoryValue):
            raise unresolved(cfg, name, error) from error
        forms = f": {' or '.join(f'model.template={form}' for form in TEMPLATES)}"
        raise ConfigError(name, NOT_GIVEN, reason=GIVEN + (forms if name == "model.template.form" else "")) from error
    _check(config)
    if isinstance(model := config.get("model"), dict) and "template" in model:
        model["template"] = asdict(Template.of(model["template"]))  # recorded in full, whichever way it was written
    return config


PROMPT_FILE = "a file NAME.jsonl with a prompt a line; or data=local data.root=DIR, which reads DIR/jsonl.jsonl"


@dataclass(frozen=True)
class Parts:
    """Objects of a config; none has opened anything.

    Attributes:
        source: rows for tasks without their own.
        calibration_task: the task whose prompts the method calibrates on; usually `task` itself.
    """

    method: Method
    task: Task
    source: DataSource
    model: ModelSource
    calibration_task: Task

    @classmethod
    def of(cls, cfg: DictConfig) -> Parts:
        """Make the objects.

        Raises:
            ConfigError: an invalid setting, or a class of the wrong kind.
        """
        method, task, source, model = (build(cfg, group) for group in ("method", "task", "data", "model"))
        names = {"model": model.name, "method": method.name, "task": task.name}  # in the name of the record's folder
        for group, name in names.items():
            check_value(f"{group}.name", Name, name)
        if (length := sum(len(name.encode()) for name in names.values())) > LONGEST_NAMES:
            group = max(names, key=lambda group: len(names[group]))
            expected = f"a shorter name: model, method and task have {length} bytes of at most {LONGEST_NAMES} together"
            raise ConfigError(f"{group}.name", shortened(names[group]), expected)
        has_own_source = isinstance(task, Sourced) and task.source is not None
        if has_own_source and not isinstance(source, SampleSource):
            expected = f"sample, the default: task={task.name} reads a file of its own"
            raise ConfigError("data", cfg.data[TARGET], expected)
        parts = cls(method, task, source, model, build(cfg, "calibrate") if "calibrate" in cfg else task)
        for place, reader in parts._tasks():
            # a task of a user's file: the sample rows would be meaningless
            if isinstance(reader, Sourced) and reader.source is None and isinstance(source, SampleSource):
                raise ConfigError(f"{place}.path", NOT_GIVEN, PROMPT_FILE)
        if parts.calibration_task is not task and not isinstance(method, Calibrated):
            expected = f"no task: method={method.name} does not calibrate"
            raise ConfigError("task@calibrate", parts.calibration_task.name, expected)
        return parts

    def _tasks(self) -> Iterator[tuple[str, Task]]:
        """Yield the tasks and their parts, with the option of each."""
        tasks = {"task": self.task}
        if self.calibration_task is not self.task:
            tasks["calibrate"] = self.calibration_task
        for place, task in tasks.items():
            yield place, task
            yield from ((f"{place}.parts.{name}", part) for name, part in getattr(task, "parts", {}).items())

    def systems(self) -> dict[str, str]:
        """Return the system messages of the tasks and of their parts, by option."""
        messages = {f"{place}.system": getattr(task, "system", None) for place, task in self._tasks()}
        return {option: system for option, system in messages.items() if system is not None}

    def source_of(self, task: Task) -> DataSource:
        """Return a task's own data source, or the run's."""
        task_source = task.source if isinstance(task, Sourced) else None
        return task_source or self.source


def _check(config: dict[str, Any]) -> None:
    for name in config:
        if name not in KNOWN:
            raise ConfigError(name, config[name], reason=f"there is no such option; the options are {', '.join(KNOWN)}")
    for name, kind in OPTIONS.items():
        if name not in config:
            raise ConfigError(name, NOT_GIVEN, reason=GIVEN)
        check_value(name, kind, config[name])
    path = local_path("runs_dir", config["runs_dir"])
    if not os.path.isdir(next(ancestor for ancestor in (path, *path.parents) if os.path.exists(ancestor))):
        raise ConfigError("runs_dir", config["runs_dir"], "a folder")
    for name, table in TABLES.items():
        table(**arguments(name, table, config.get(name, NOT_GIVEN)))
    if not _has_variant(config):
        raise ConfigError("variant", config["variant"], "null: this task has no named prompt formats")
    arms_of(config["baseline"])
    check_value("shard", Part | None, config.get("shard"))  # older configs lack it
    for name, where in (("minutes", "of experiments (-m experiment=NAME)"), ("retry", "(-m)")):
        if config.get(name) is not None:
            raise ConfigError(name, config[name], f"null except in a sweep {where}")


def _has_variant(config: dict[str, Any]) -> bool:
    task = config.get("task")
    options = task if isinstance(task, dict) else {}
    parts = options.get("parts")
    tables = (options, *parts.values()) if isinstance(parts, dict) else (options,)
    return config["variant"] is None or any("variant" in part for part in tables if isinstance(part, dict))


def _is_part(text: str) -> bool:
    match = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text)
    return match is not None and int(match[1]) <= int(match[2])
