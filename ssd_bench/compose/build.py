"""Construction of a run's parts (method, task, data source, model) from `conf/`, without Hydra's command line."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
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
from ssd_bench.errors import NOT_GIVEN, ConfigError, one_line
from ssd_bench.model.checkpoint import ModelSource
from ssd_bench.plug_ins import plug_in_of
from ssd_bench.settings import arguments, check_value

KINDS = {"method": Method, "task": Task, "calibrate": Task, "data": DataSource, "model": ModelSource}
"""Config group -> class or protocol of its `_target_`."""

SECTIONS = {"calibrate": "task"}
"""Config group -> prefix of options in error messages, if not the group's name: `task.shots` for `calibrate.shots`."""

TARGET = "_target_"
AR = "methods.ar.AR"
"""The only class that may be named "ar", which means plain decoding in tables."""
HYDRA_KEYS = (TARGET, "_convert_")
"""Keys that Hydra reads; its `_args_`, `_partial_` and `_recursive_` are refused, as they change the checked object."""


def task_names() -> list[str]:
    """Return every choice of `task=`."""
    return choices("task")


@cache
def task_named(choice: str) -> Task:
    """Make a task by its name in `conf/task`, or NAME:VARIANT.

    Raises:
        ConfigError: an invalid task, variant or setting.
    """
    return build(_compose_task(choice), "task")


def task_settings(choice: str) -> dict[str, Any]:
    """Return a task's config as plain values; argument as in `task_named`."""
    return OmegaConf.to_container(_compose_task(choice).task, resolve=True)  # type: ignore[return-value]


def build(cfg: DictConfig, group: str) -> Any:
    """Make the object of a group's config.

    Raises:
        ConfigError: `_target_` is not a class of the group's kind, a setting is invalid, or the constructor fails.
    """
    settings = cfg.get(group, NOT_GIVEN)
    if not isinstance(settings, DictConfig):
        raise ConfigError(group, settings, f"one of {', '.join(choices('task' if group == 'calibrate' else group))}")
    _check_target(group, OmegaConf.to_container(settings, resolve=True), KINDS[group])
    try:
        part = instantiate(cfg[group])
    except InstantiationException as error:
        cause: BaseException | None = error
        # Hydra wraps the constructor's error once per level of nesting
        while cause is not None and not isinstance(cause, ConfigError):
            cause = cause.__cause__
        if cause is not None:
            raise cause.within(SECTIONS.get(group, group), _failed_path(error, group)) from None
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise ConfigError(group, settings.get(TARGET), reason=reason) from error
    _check_object(group, settings.get(TARGET), part)
    return part


def _failed_path(error: InstantiationException, group: str) -> str:
    """Return the config path of the failed object: a group, or a task of a stream."""
    # Hydra adds a line `full_key: PATH` per level of nesting; the longest path is that of the innermost object
    paths = re.findall(r"^full_key: (\S+)$", str(error), re.MULTILINE)
    return max((path for path in paths if path.startswith(f"{group}.parts.")), key=len, default=group)


def _check_object(group: str, target: Any, part: Any) -> None:
    """Refuse an object that lacks an attribute of its kind, and a method that tables would take for AR."""
    kind = KINDS[group]
    if kind is not ModelSource:  # the other kinds are protocols: a class that fits may still not set their attributes
        types = get_type_hints(kind)
        attributes = [*types, *(name for name, member in vars(kind).items() if isinstance(member, property))]
        if missing := [name for name in attributes if not hasattr(part, name)]:
            expected = f"{group}.{TARGET} to name the class of a {kind.__name__}; its objects lack {', '.join(missing)}"
            raise ConfigError(group, target, expected)
        for name, attribute_type in types.items():
            check_value(f"{group}.{name}", attribute_type, getattr(part, name))
    if group == "method" and part.name == "ar" and f"{type(part).__module__}.{type(part).__qualname__}" != AR:
        raise ConfigError("method.name", "ar", f"another name: ar is the name of plain decoding ({AR}) in tables")


def _check_target(path: str, config: Any, kind: type | None = None) -> None:
    """Refuse a `_target_` that is not a class of the right kind, and unknown settings.

    Args:
        kind: class or protocol to fit; None for a nested object: a task or a dataclass of settings.
    """
    target = config.get(TARGET)
    kind_text = "a task or of settings" if kind is None else f"a {kind.__name__}"
    expected = f"{path}.{TARGET} to name the class of {kind_text}"
    module, _, name = target.rpartition(".") if isinstance(target, str) else ("", "", "")
    if not module:
        raise ConfigError(path, target, f"{expected}, as module.Class")
    try:
        cls = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # importing a module may raise anything
        package = module.partition(".")[0]
        absent = isinstance(error, ModuleNotFoundError) and error.name == package
        advice = f": put the folder that holds {package} on PYTHONPATH" if absent else ""
        plug_in = plug_in_of(target)
        owner = f"; it belongs to the plug-in {plug_in}" if plug_in else ""
        fault = one_line(error) if isinstance(error, SystemExit) else error
        raise ConfigError(path, target, f"{expected} ({fault}{advice}{owner})") from error
    valid = _fits_kind(cls, kind) if kind is not None else _fits_kind(cls, Task) or is_dataclass(cls)
    if not valid:
        if kind is not None and kind is not ModelSource and isinstance(cls, type):
            expected += f"; {name} lacks {', '.join(_missing_functions(cls, kind))}"
        raise ConfigError(path, target, expected)
    settings = arguments(path, cls, {name: value for name, value in config.items() if name not in HYDRA_KEYS})
    # other classes are not checked here: their constructors may convert YAML values before types have to fit
    if cls.__module__.startswith("ssd_bench."):
        for name, parameter in inspect.signature(cls, eval_str=True).parameters.items():
            if name in settings:
                check_value(f"{path}.{name}", parameter.annotation, settings[name])
    for nested_path, table in _nested_targets(path, settings):
        _check_target(nested_path, table)


def _nested_targets(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield path and table of every outermost object in a value (a table with `_target_`)."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, entry in entries:
        if isinstance(entry, dict) and TARGET in entry:
            yield f"{path}.{name}", entry
        else:
            yield from _nested_targets(f"{path}.{name}", entry)


def _fits_kind(cls: Any, kind: type) -> bool:
    """Return whether `cls` is a class with the protocol's functions, or a subclass of `ModelSource`."""
    if not isinstance(cls, type):
        return False
    return issubclass(cls, kind) if kind is ModelSource else not _missing_functions(cls, kind)


def _missing_functions(cls: type, kind: type) -> list[str]:
    functions = [name for name, member in vars(kind).items() if inspect.isfunction(member) and not name.startswith("_")]
    return [name for name in functions if not callable(getattr(cls, name, None))]


def _compose_task(choice: str) -> DictConfig:
    """Compose the default config with another task."""
    name, colon, variant = choice.partition(":")
    if name not in task_names():
        raise ConfigError("task", name, f"one of {', '.join(task_names())}")
    GlobalHydra.instance().clear()  # Hydra refuses to be initialised twice in a process
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
            cfg = compose("config", overrides=[f"task={name}"])
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError("task", name, reason=" ".join(str(error).split())[:300]) from error
    if colon:
        if "variant" not in cfg.task:
            raise ConfigError("task.variant", variant, f"null: {name} has no variants")
        cfg.task.variant = variant
    return cfg
