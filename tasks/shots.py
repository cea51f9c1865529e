"""Demonstrations ahead of an item, shared by the task files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from ssd_bench.errors import ConfigError
from ssd_bench.settings import checked
from ssd_bench.task import DataSource, DataSpec
from tasks.selection import Row, shuffled
from tasks.settings import ShotCount


@dataclass(frozen=True)
class Shots:
    """The demonstrations of a `plain` prompt (base models), the same for all items, or for all of one group.

    They are the first rows of their file after a shuffle with the run's seed, as in the released code of KNN-SSD and
    ConfLayers, less any that are items: whose first field or id an item has.

    Attributes:
        items: the file of the items; that of the demonstrations has `.fewshot` after its name.
        hub: `datasets.load_dataset` arguments of the demonstrations; {}: the hub has none.
        count: how many of them.
        text: a row as a demonstration.
        differs: what else of the file's `DataSpec` is not as that of the items; its first field is.
        group: a row's group; an item sees demonstrations of its own.
    """

    items: DataSpec
    hub: Mapping[str, Any]
    count: int
    text: Callable[[Row], str]
    differs: Mapping[str, Any] = field(default_factory=dict)
    group: Callable[[Row], str] = lambda row: ""

    def __post_init__(self) -> None:
        checked("task.shots", ShotCount, self.count)

    @property
    def file(self) -> DataSpec:
        """What the demonstrations are drawn from."""
        return replace(self.items, name=f"{self.items.name}.fewshot", hub=self.hub, **self.differs)

    def draw(self, source: DataSource, items: Sequence[Row], seed: int) -> Callable[[Row], str]:
        """From an item to the text of all its demonstrations.

        Args:
            items: all rows of the task, not only the evaluated ones: the demonstrations do not depend on the limit.
        """
        key = self.items.fields[0]
        asked = {row[key].strip() for row in items} | {row["id"] for row in items}
        rows = shuffled(source.rows(self.file), seed)
        pool = [row for row in rows if row[key].strip() not in asked and row["id"] not in asked]

        @cache
        def shown(group: str) -> str:
            own = [row for row in pool if self.group(row) == group]
            if len(own) < self.count:
                which = f"demonstrations of {self.file.name}{f' for {group}' if group else ''}"
                raise ConfigError("task.shots", self.count, f"at most {len(own)}, the {which} that are not test items")
            return "".join(map(self.text, own[: self.count]))

        return lambda item: shown(self.group(item))


def in_one_line(text: str) -> str:
    """The text without its line breaks; nothing takes their place, as in KNN-SSD's demonstrations."""
    return text.replace("\n", "")
