"""Demonstrations ahead of an item, shared by the task files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ssd_bench.errors import ConfigError
from ssd_bench.task import DataSource, DataSpec
from tasks.selection import Row, checked_count, shuffled


@dataclass(frozen=True)
class Shots:
    """The demonstrations of a `plain` prompt (base models), the same for all items.

    They are the first rows of their file after a shuffle with the run's seed, as in the released code of KNN-SSD and
    ConfLayers, less any that are items: whose first field or id an item has.

    Attributes:
        items: the file of the items; that of the demonstrations has the same fields, and `.fewshot` after its name.
        hub: `datasets.load_dataset` arguments of the demonstrations.
        count: how many of them.
        text: a row as a demonstration.
    """

    items: DataSpec
    hub: Mapping[str, str]
    count: int
    text: Callable[[Row], str]

    def __post_init__(self) -> None:
        checked_count("shots", self.count, 0)

    @property
    def file(self) -> DataSpec:
        """What the demonstrations are drawn from."""
        return replace(self.items, name=f"{self.items.name}.fewshot", hub=self.hub)

    def draw(self, source: DataSource, items: Sequence[Row], seed: int) -> str:
        """The text of all demonstrations.

        Args:
            items: all rows of the task, not only the evaluated ones: the demonstrations do not depend on the limit.
        """
        key = self.items.fields[0]
        asked = {row[key].strip() for row in items} | {row["id"] for row in items}
        rows = shuffled(source.rows(self.file), seed)
        pool = [row for row in rows if row[key].strip() not in asked and row["id"] not in asked]
        if len(pool) < self.count:
            allowed = f"at most {len(pool)}, the demonstrations of {self.file.name} that are not test items"
            raise ConfigError("task.shots", self.count, allowed)
        return "".join(map(self.text, pool[: self.count]))


def in_one_line(text: str) -> str:
    """The text without its line breaks; nothing takes their place, as in KNN-SSD's demonstrations."""
    return text.replace("\n", "")
