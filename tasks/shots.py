"""Demonstrations ahead of an item."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from ssd_bench.contract.task import DataSource, DataSpec
from ssd_bench.data.rows import Row, usable
from ssd_bench.errors import ConfigError
from ssd_bench.settings import check_value
from tasks.selection import shuffled
from tasks.settings import ShotCount


@dataclass(frozen=True)
class Shots:
    """Demonstrations of a `plain` prompt (base models), the same for all items or all of one group.

    They are the first rows of their file after a shuffle with the run's seed, as in the released code of KNN-SSD and
    ConfLayers. Rows with an item's first field or id are left out.

    Attributes:
        items: file of the items; the demonstrations' has the same name followed by `.fewshot`.
        hub: `datasets.load_dataset` arguments; {}: none on the hub.
        differs: fields of the file's `DataSpec` that differ from the items'; the first of `fields` must not.
        group: row -> its group, for items of the same group; None: the row is unused.
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
        return replace(self.items, name=f"{self.items.name}.fewshot", hub=self.hub, place=None, **self.differs)

    def draw(self, source: DataSource, items: Sequence[Row], seed: int) -> Callable[[Row], str]:
        """Return a function from an item to the text of its demonstrations.

        Rows are read in order until an item's group has enough, so that a train split is not read as a whole.

        Args:
            items: all rows of the task, so that demonstrations do not depend on the limit.
        """
        key = self.items.fields[0]
        excluded = {str(row[name]).strip() for row in items for name in (key, "id") if name in row}
        remaining = shuffled(source.rows(self.file), seed)
        drawn: dict[str | None, list[Row]] = {}

        @cache
        def demonstrations(group: str | None) -> str:
            rows = drawn.setdefault(group, [])
            while len(rows) < self.count:
                if (row := next(remaining, None)) is None:
                    kind = f"demonstrations of {self.file.name}{f' for {group}' if group else ''}"
                    expected = f"at most {len(rows)}, the {kind} that are not test items"
                    raise ConfigError("task.shots", self.count, expected)
                if not any(name in row and str(row[name]).strip() in excluded for name in (key, "id")):
                    drawn.setdefault(self.group(row), []).append(row)
            return "".join(self.text(usable(row)) for row in rows[: self.count])

        return lambda item: demonstrations(self.group(item))


def in_one_line(text: str) -> str:
    """Remove line breaks, as in KNN-SSD's demonstrations."""
    return text.replace("\n", "")
