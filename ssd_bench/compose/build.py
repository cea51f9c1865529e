"""Objects made from the configs in `conf/`: the parts of a run, also for programs without Hydra's command line."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import Any, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ssd_bench.conf import CONF, choices
from ssd_bench.contract.method import Method
from ssd_bench.contract.task import DataSource, Task
from ssd_bench.errors import ConfigError
from ssd_bench.model.checkpoint import ModelSource
from ssd_bench.settings import arguments, check_value

KINDS = {"method": Method, "task": Task, "calibrate": Task, "data": DataSource, "model": ModelSource}
"""Config group -> the class or protocol that its `_target_` must fit."""

SECTIONS = {"calibrate": "task"}
"""Config group -> name of the section in its objects' messages, if it differs."""

TARGET = "_target_"
AR = "methods.ar.AR"
"""Only class whose name may be ar: tables take that name for plain decoding."""
HYDRA_KEYS = (TARGET, "_convert_")
"""Keys that Hydra itself reads; `_args_`, `_partial_` and `_recursive_` are refused, as they change what is made."""


def task_names() -> list[str]:
    """Return every choice of `task=`."""
    return choices("task")


@cache
def task_named(name: str, variant: str | None = None) -> Task:
    """Make a task with its default settings, or with those of a variant.

    Raises:
        ConfigError: an unknown task or variant, or settings that cannot work.
    """
    return build(_compose_task(name, variant), "task")


def task_settings(name: str, variant: str | None = None) -> dict[str, Any]:
    """Return the config of a task as plain values; arguments and errors as of `task_named`."""
    return OmegaConf.to_container(_compose_task(name, variant).task, resolve=True)  # type: ignore[return-value]


@dataclass(frozen=True)
class TaskChoice:
    """Name of a task in `conf/task`, and of a variant."""

    name: str
    variant: str | None = None

    @classmethod
    def parse(cls, text: str) -> TaskChoice:
        """Parse NAME or NAME:VARIANT."""
        name, colon, variant = text.partition(":")
        return cls(name, variant if colon else None)

    def __str__(self) -> str:
        return self.name if self.variant is None else f"{self.name}:{self.variant}"

    def task(self) -> Task:
        """Make the task.

        Raises:
            ConfigError: an unknown task or variant, or settings that cannot work.
        """
        return task_named(self.name, self.variant)

    def settings(self) -> dict[str, Any]:
        """Return the task's config as plain values; errors as of `task`."""
        return task_settings(self.name, self.variant)


def build(cfg: DictConfig, group: str) -> Any:
    """Make the object of a config group; refuse a `_target_` that is no class of the group's kind.

    Raises:
        ConfigError: raised by the object, or says why it cannot be made.
    """
    settings = cfg.get(group)
    if not isinstance(settings, DictConfig):
        raise ConfigError(group, settings, f"one of {', '.join(choices('task' if group == 'calibrate' else group))}")
    _check_target(group, OmegaConf.to_container(settings, resolve=True), KINDS[group])
    try:
        part = instantiate(cfg[group])
    except InstantiationException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ConfigError):  # Hydra wraps it once per level of nesting
            cause = cause.__cause__
        if cause is not None:
            raise cause.within(SECTIONS.get(group, group), _place(error, group)) from None
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise ConfigError(group, settings.get(TARGET), reason=reason) from error
    _check_part(group, settings.get(TARGET), part)
    return part


def _place(error: InstantiationException, group: str) -> str:
    """Return the config path of the part that could not be made: the group, or a part within it."""
    places = re.findall(r"^full_key: (\S+)$", str(error), re.MULTILINE)
    return max((place for place in places if place.startswith(f"{group}.parts.")), key=len, default=group)


def _check_part(group: str, target: Any, part: Any) -> None:
    """Refuse an object that lacks an attribute of its kind, and a method that tables would take for AR."""
    kind = KINDS[group]
    if kind is not ModelSource:
        types = get_type_hints(kind)
        attributes = [*types, *(name for name, member in vars(kind).items() if isinstance(member, property))]
        if lacking := [name for name in attributes if not hasattr(part, name)]:
            expected = f"{group}.{TARGET} to name the class of a {kind.__name__}; its objects lack {', '.join(lacking)}"
            raise ConfigError(group, target, expected)
        for name, kind_of_attribute in types.items():
            check_value(f"{group}.{name}", kind_of_attribute, getattr(part, name))
    if group == "method" and part.name == "ar" and f"{type(part).__module__}.{type(part).__qualname__}" != AR:
        raise ConfigError("method.name", "ar", f"another name: ar is the name of plain decoding ({AR}) in tables")


def _check_target(place: str, config: Any, kind: type | None = None) -> None:
    """Refuse a `_target_` that is no class of this kind, and settings that the class does not take.

    Args:
        kind: None for an object within a part: a task, or a class of settings.
    """
    target = config.get(TARGET)
    kind_text = "a task or of settings" if kind is None else f"a {kind.__name__}"
    expected = f"{place}.{TARGET} to name the class of {kind_text}"
    module, _, name = target.rpartition(".") if isinstance(target, str) else ("", "", "")
    if not module:
        raise ConfigError(place, target, f"{expected}, as module.Class")
    try:
        cls = getattr(importlib.import_module(module), name)
    except Exception as error:  # importing a module may raise anything
        package = module.partition(".")[0]
        absent = isinstance(error, ModuleNotFoundError) and error.name == package
        location = f": put the folder that holds {package} on PYTHONPATH" if absent else ""
        raise ConfigError(place, target, f"{expected} ({error}{location})") from error
    if not (_is_class_of(cls, Task) or is_dataclass(cls) if kind is None else _is_class_of(cls, kind)):
        if kind is not None and kind is not ModelSource and isinstance(cls, type):
            expected += f"; {name} lacks {', '.join(_missing_functions(cls, kind))}"
        raise ConfigError(place, target, expected)
    settings = arguments(place, cls, {name: value for name, value in config.items() if name not in HYDRA_KEYS})
    if cls.__module__.startswith("ssd_bench."):  # its annotations describe YAML values; other classes may convert them
        for name, parameter in inspect.signature(cls, eval_str=True).parameters.items():
            if name in settings:
                check_value(f"{place}.{name}", parameter.annotation, settings[name])
    for location, table in _nested_targets(place, settings):
        _check_target(location, table)


def _nested_targets(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the outermost tables with a `_target_` in a value, of which Hydra would make objects."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        if isinstance(part, dict) and TARGET in part:
            yield f"{place}.{name}", part
        else:
            yield from _nested_targets(f"{place}.{name}", part)


def _is_class_of(cls: Any, kind: type) -> bool:
    """Return whether an object is a class of this kind: it has the functions of a protocol, or is a `ModelSource`."""
    if not isinstance(cls, type) or kind is ModelSource:
        return isinstance(cls, type) and issubclass(cls, kind)
    return not _missing_functions(cls, kind)


def _missing_functions(cls: type, kind: type) -> list[str]:
    """Return the names of the public functions of a protocol that a class lacks."""
    functions = [name for name, member in vars(kind).items() if inspect.isfunction(member) and not name.startswith("_")]
    return [name for name in functions if not callable(getattr(cls, name, None))]


def _compose_task(name: str, variant: str | None) -> DictConfig:
    """Compose the config with a task.

    Raises:
        ConfigError: an unknown task or variant.
    """
    if name not in task_names():
        raise ConfigError("task", name, f"one of {', '.join(task_names())}")
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
            cfg = compose("config", overrides=[f"task={name}"])
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError("task", name, reason=" ".join(str(error).split())[:300]) from error
    if variant is not None:
        if "variant" not in cfg.task:
            raise ConfigError("task.variant", variant, f"null: {name} has no variants")
        cfg.task.variant = variant
    return cfg
