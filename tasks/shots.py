"""Items with demonstrations ahead of them, shared by the task files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ssd_bench.errors import ConfigError
from ssd_bench.task import DataSource, DataSpec, Prompt
from tasks.selection import checked_count, checked_template, first, shuffled

Row = dict[str, str]


@dataclass(frozen=True)
class FewShot:
    """Items in a seeded shuffle; ahead of each a `plain` prompt (base models) has the same demonstrations, `chat` none.

    The demonstrations are the first rows of their file after a shuffle with the run's seed, as in the released code of
    KNN-SSD and ConfLayers, less any that are items.

    Attributes:
        items: the file of the items.
        demonstrations: the file that the demonstrations are drawn from.
        shots: how many of them.
        key: the field that tells whether a demonstration is also an item.
    """

    items: DataSpec
    demonstrations: DataSpec
    shots: int
    key: str

    def __post_init__(self) -> None:
        checked_count("shots", self.shots, 0)

    def files(self, template: str) -> tuple[DataSpec, ...]:
        """The file of the items, and that of the demonstrations where the template has any."""
        few = checked_template(template) == "plain" and self.shots > 0
        return (self.items, self.demonstrations) if few else (self.items,)

    def prompts(
        self,
        source: DataSource,
        template: str,
        limit: int | None,
        seed: int,
        demonstration: Callable[[Row], str],
        prompt: Callable[[Row, str], Prompt],
    ) -> list[Prompt]:
        """The first `limit` items of a shuffle with the run's seed (KNN-SSD and ConfLayers code).

        Args:
            demonstration: a row as a demonstration.
            prompt: a row as a prompt, given the text of all demonstrations.
        """
        few = self.demonstrations in self.files(template)
        items = source.rows(self.items)
        shots = "".join(map(demonstration, self._draw(source, items, seed))) if few else ""
        return [prompt(row, shots) for row in first(shuffled(items, seed), limit)]

    def _draw(self, source: DataSource, items: list[Row], seed: int) -> list[Row]:
        # Checked against every item, not only the first `limit`, so that the demonstrations do not depend on it.
        asked = {row[self.key].strip() for row in items} | {row["id"] for row in items}
        rows = shuffled(source.rows(self.demonstrations), seed)
        pool = [row for row in rows if row[self.key].strip() not in asked and row["id"] not in asked]
        if len(pool) < self.shots:
            allowed = f"at most {len(pool)}, the demonstrations of {self.demonstrations.name} that are not test items"
            raise ConfigError("task.shots", self.shots, allowed)
        return pool[: self.shots]


def in_one_line(text: str) -> str:
    """The text without its line breaks; nothing takes their place, as in KNN-SSD's demonstrations."""
    return text.replace("\n", "")
