"""Parts of a run made from the configs in `conf/`, also for programs whose command line is not Hydra's."""

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

from ssd_bench.command import CONF, choices
from ssd_bench.core.method import Method
from ssd_bench.errors import ConfigError
from ssd_bench.model.checkpoint import ModelSource
from ssd_bench.settings import arguments, checked
from ssd_bench.task import DataSource, Task

KINDS = {"method": Method, "task": Task, "calibrate": Task, "data": DataSource, "model": ModelSource}
"""Group -> what its `_target_` has to be."""

SECTIONS = {"calibrate": "task"}
"""Group -> how its objects call it in messages, where that is another name."""

TARGET = "_target_"
AR = "methods.ar.AR"
"""The one class that may be called ar, which tables take for plain decoding."""
HYDRAS = (TARGET, "_convert_")
"""What Hydra itself reads of a table; `_args_`, `_partial_` and `_recursive_` would make something else of a part."""


def task_names() -> list[str]:
    """Every choice of `task=`."""
    return choices("task")


@cache
def task_named(name: str, variant: str | None = None) -> Task:
    """A task with its default settings, or those of one of its variants.

    Raises:
        ConfigError: there is no such task or variant, or its settings cannot work.
    """
    return built(_composed(name, variant), "task")


def task_settings(name: str, variant: str | None = None) -> dict[str, Any]:
    """What the task's config holds; as `task_named`."""
    return OmegaConf.to_container(_composed(name, variant).task, resolve=True)  # type: ignore[return-value]


@dataclass(frozen=True)
class TaskChoice:
    """A task of `conf/task`, with its default settings or those of a variant."""

    name: str
    variant: str | None = None

    @classmethod
    def parsed(cls, text: str) -> TaskChoice:
        """Of NAME or NAME:VARIANT."""
        name, colon, variant = text.partition(":")
        return cls(name, variant if colon else None)

    def __str__(self) -> str:
        return self.name if self.variant is None else f"{self.name}:{self.variant}"

    def task(self) -> Task:
        """The task itself.

        Raises:
            ConfigError: there is no such task or variant, or its settings cannot work.
        """
        return task_named(self.name, self.variant)

    def settings(self) -> dict[str, Any]:
        """The task's config; as `task`."""
        return task_settings(self.name, self.variant)


def built(cfg: DictConfig, group: str) -> Any:
    """The object of a config group; nothing but a class of the group's kind is called for it.

    Raises:
        ConfigError: the object's own, or one that says why it cannot be made.
    """
    given = cfg.get(group)
    if not isinstance(given, DictConfig):
        raise ConfigError(group, given, f"one of {', '.join(choices('task' if group == 'calibrate' else group))}")
    _examine(group, OmegaConf.to_container(given, resolve=True), KINDS[group])
    try:
        made = instantiate(cfg[group])
    except InstantiationException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ConfigError):  # Hydra wraps it once per level of nesting
            cause = cause.__cause__
        if cause is not None:
            raise cause.within(SECTIONS.get(group, group), _place(error, group)) from None
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise ConfigError(group, given.get(TARGET), reason) from error
    _examine_made(group, given.get(TARGET), made)
    return made


def _place(error: InstantiationException, group: str) -> str:
    """Return where the part is in the config that could not be made: the group, or a part within it."""
    places = re.findall(r"^full_key: (\S+)$", str(error), re.MULTILINE)
    return max((place for place in places if place.startswith(f"{group}.parts.")), key=len, default=group)


def _examine_made(group: str, named: Any, made: Any) -> None:
    """Refuse an object without what its kind has beside functions, and a method that tables would take for AR."""
    kind = KINDS[group]
    if kind is not ModelSource:
        types = get_type_hints(kind)
        asked = [*types, *(name for name, member in vars(kind).items() if isinstance(member, property))]
        if lacking := [name for name in asked if not hasattr(made, name)]:
            allowed = f"{group}.{TARGET} has to name the class of a {kind.__name__}; what it makes lacks"
            raise ConfigError(group, named, f"{allowed} {', '.join(lacking)}")
        for name, one in types.items():
            checked(f"{group}.{name}", one, getattr(made, name))
    if group == "method" and made.name == "ar" and f"{type(made).__module__}.{type(made).__qualname__}" != AR:
        raise ConfigError("method.name", "ar", f"any other name: tables take ar for plain decoding, which is {AR}")


def _examine(place: str, given: Any, kind: type | None = None) -> None:
    """Refuse what Hydra would call that is no class of this kind, and settings that it does not take.

    Args:
        kind: None for what a part holds: a task, or a class of settings.
    """
    named = given.get(TARGET)
    what = "a task or of settings" if kind is None else f"a {kind.__name__}"
    allowed = f"{place}.{TARGET} has to name the class of {what}"
    module, _, name = named.rpartition(".") if isinstance(named, str) else ("", "", "")
    if not module:
        raise ConfigError(place, named, f"{allowed}, as module.Class")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever a module raises that is imported
        package = module.partition(".")[0]
        absent = isinstance(error, ModuleNotFoundError) and error.name == package
        where = f": the folder that {package} is in has to be on PYTHONPATH" if absent else ""
        raise ConfigError(place, named, f"{allowed} ({error}{where})") from error
    if not (_is(found, Task) or is_dataclass(found) if kind is None else _is(found, kind)):
        if kind is not None and kind is not ModelSource and isinstance(found, type):
            allowed += f"; {name} lacks {', '.join(_lacks(found, kind))}"
        raise ConfigError(place, named, allowed)
    settings = arguments(place, found, {name: value for name, value in given.items() if name not in HYDRAS})
    if found.__module__.startswith("ssd_bench."):  # which say what YAML holds; another class may convert it
        for name, one in inspect.signature(found, eval_str=True).parameters.items():
            if name in settings:
                checked(f"{place}.{name}", one.annotation, settings[name])
    for where, held in _held(place, settings):
        _examine(where, held)


def _held(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The tables in a value of which Hydra would make an object, without those within them."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        if isinstance(part, dict) and TARGET in part:
            yield f"{place}.{name}", part
        else:
            yield from _held(f"{place}.{name}", part)


def _is(found: Any, kind: type) -> bool:
    """Whether it is a class of this kind; one that has the functions of a protocol is."""
    if not isinstance(found, type) or kind is ModelSource:
        return isinstance(found, type) and issubclass(found, kind)
    return not _lacks(found, kind)


def _lacks(found: type, kind: type) -> list[str]:
    """The functions of a protocol that a class does not have."""
    asked = [name for name, member in vars(kind).items() if inspect.isfunction(member) and not name.startswith("_")]
    return [name for name in asked if not callable(getattr(found, name, None))]


def _composed(name: str, variant: str | None) -> DictConfig:
    if name not in task_names():
        raise ConfigError("task", name, f"one of {', '.join(task_names())}")
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
            cfg = compose("config", overrides=[f"task={name}"])
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError("task", name, " ".join(str(error).split())[:300]) from error
    if variant is not None:
        if "variant" not in cfg.task:
            raise ConfigError("task.variant", variant, f"{name} has no variants")
        cfg.task.variant = variant
    return cfg
