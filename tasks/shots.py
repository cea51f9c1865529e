"""Demonstrations ahead of an item, shared by the task files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from ssd_bench.data.rows import usable
from ssd_bench.errors import ConfigError
from ssd_bench.settings import check_value
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
        group: a row's group, of which an item sees demonstrations; None: the row has none and no item sees it.
    """

    items: DataSpec
    hub: Mapping[str, Any]
    count: int
    text: Callable[[Row], str]
    differs: Mapping[str, Any] = field(default_factory=dict)
    group: Callable[[Row], str | None] = lambda row: ""

    def __post_init__(self) -> None:
        check_value("task.shots", ShotCount, self.count)

    @property
    def file(self) -> DataSpec:
        """What the demonstrations are drawn from."""
        return replace(self.items, name=f"{self.items.name}.fewshot", hub=self.hub, place=None, **self.differs)

    def draw(self, source: DataSource, items: Sequence[Row], seed: int) -> Callable[[Row], str]:
        """Return a function from an item to the text of all its demonstrations.

        Rows are read in their order until an item has enough of its group, so a train split is not read as a whole.

        Args:
            items: all rows of the task, not only the evaluated ones: the demonstrations do not depend on the limit.
        """
        key = self.items.fields[0]
        excluded = {str(row[name]).strip() for row in items for name in (key, "id") if name in row}
        waiting = iter(shuffled(source.rows(self.file), seed))
        drawn: dict[str | None, list[Row]] = {}

        @cache
        def demonstrations(group: str | None) -> str:
            rows = drawn.setdefault(group, [])
            while len(rows) < self.count:
                if (row := next(waiting, None)) is None:
                    which = f"demonstrations of {self.file.name}{f' for {group}' if group else ''}"
                    allowed = f"at most {len(rows)}, the {which} that are not test items"
                    raise ConfigError("task.shots", self.count, allowed)
                if not any(name in row and str(row[name]).strip() in excluded for name in (key, "id")):
                    drawn.setdefault(self.group(row), []).append(row)
            return "".join(self.text(usable(row)) for row in rows[: self.count])

        return lambda item: demonstrations(self.group(item))


def in_one_line(text: str) -> str:
    """The text without its line breaks; nothing takes their place, as in KNN-SSD's demonstrations."""
    return text.replace("\n", "")
