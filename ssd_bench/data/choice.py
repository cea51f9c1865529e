"""Which task a command line means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ssd_bench.compose import task_named, task_settings
from ssd_bench.task import Task


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
