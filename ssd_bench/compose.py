"""Parts of a run made from the configs in `conf/`, also for programs whose command line is not Hydra's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ssd_bench.command import CONF
from ssd_bench.errors import ConfigError
from ssd_bench.task import Task


def task_names() -> list[str]:
    """Every choice of `task=`."""
    return sorted(path.stem for path in (CONF / "task").glob("*.yaml"))


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
    """The object of a config group.

    Raises:
        ConfigError: the object's own, or one that says why it cannot be made.
    """
    try:
        return instantiate(cfg[group])
    except InstantiationException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ConfigError):  # Hydra wraps it once per level of nesting
            cause = cause.__cause__
        if cause is not None:
            raise cause from None
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise ConfigError(group, cfg[group].get("_target_"), reason) from error


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
