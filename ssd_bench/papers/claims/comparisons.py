"""Comparisons of a claim: the cells of its two sides, grouped by the labels that both sides must share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ssd_bench.papers.claims.claims import PARTS, STATISTIC, Claim, has_labels
from ssd_bench.papers.ours import select
from ssd_bench.papers.ours.cells import Cell
from ssd_bench.papers.runs import grid


@dataclass(frozen=True)
class Side:
    """Cells that together give one number.

    Attributes:
        cells: several only for a statistic that pools all methods.
        part: as in `statistics.take_sample`.
    """

    cells: tuple[Cell, ...]
    part: Mapping[str, str]
    statistic: str

    @property
    def identity(self) -> tuple[object, ...]:
        """Key equal for sides of the same drafts and accepted tokens."""
        return tuple(cell.timing.trace for cell in self.cells), tuple(self.part.items()), self.statistic

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the first cell, and the part of its run."""
        return (*self.cells[0].labels.values(), *self.part.values()) if self.cells else ()

    @property
    def name(self) -> str:
        return cell_name(self.cells[0])


@dataclass(frozen=True)
class ClaimComparison:
    """Sides equal in all labels except those named by the claim's sides.

    Attributes:
        references: sides to compare with, the best of which counts; empty for a value.
        seed: 0; for the same comparison with another seed of its runs, 1, 2, ...
    """

    subject: Side
    references: tuple[Side, ...]
    seed: int = 0

    @property
    def labels(self) -> tuple[tuple[str, ...], ...]:
        return tuple(side.labels for side in self.sides)

    @property
    def sides(self) -> tuple[Side, ...]:
        return (self.subject, *self.references)

    @property
    def identity(self) -> tuple[object, ...]:
        """Key equal for comparisons of the same drafts and accepted tokens on all sides."""
        return tuple(side.identity for side in self.sides)

    @property
    def cells(self) -> list[Cell]:
        return [cell for side in self.sides for cell in side.cells]


def comparisons(claim: Claim, cells: Sequence[Cell]) -> Iterator[ClaimComparison]:
    """Yield every comparison of the claim, whether run or not."""
    # an axis that one side names and the other does not is the same on both
    over = {axis: labels for axis, labels in claim.of.items() if axis in grid.AXES} | dict(claim.over)
    counted = [cell for cell in cells if has_labels(cell.labels, claim.cells)]
    subject_cells = [cell for cell in counted if has_labels(cell.labels, claim.of)]
    reference_cells = [cell for cell in counted if has_labels(cell.labels, over)] if claim.over else []
    (reference_statistic,) = claim.over.get(STATISTIC, [claim.statistic])
    subjects = _sides(claim, claim.of, subject_cells, reference_cells, claim.statistic)
    references = _sides(claim, over, reference_cells, subject_cells, reference_statistic)
    for shared_labels, sides in subjects.items():
        if not claim.over or shared_labels in references:
            yield from (ClaimComparison(side, tuple(references.get(shared_labels, ()))) for side in sides)


def _sides(
    claim: Claim,
    side: Mapping[str, Sequence[str]],
    cells: Sequence[Cell],
    opposite_cells: Sequence[Cell],
    statistic: str,
) -> dict[tuple[str, ...], list[Side]]:
    """Return a claim's sides by the labels that both share; split a stream if the opposite cells are on its parts."""
    named = [axis for axis in grid.AXES if axis in claim.of or axis in claim.over]
    pooled = ["method"] if claim.is_pooled else []
    shared = [axis for axis in grid.AXES if axis not in (*named, *pooled)]
    # by labels on axes where both sides are equal, labels on axes that they name, and part of a stream
    groups: dict[tuple[tuple[str, ...], tuple[str, ...], str], list[Cell]] = {}
    for cell in cells:
        for task, stream_part in _split(cell, {opposite["task"] for opposite in opposite_cells}).items():
            labels = {**cell.labels, "task": task}
            key = tuple(labels[axis] for axis in shared), tuple(labels[axis] for axis in named), stream_part
            groups.setdefault(key, []).append(cell)
    part = {axis: labels[0] for axis, labels in side.items() if axis in PARTS}
    sides: dict[tuple[str, ...], list[Side]] = {}
    for (shared_labels, _, stream_part), members in groups.items():
        run_part = part | ({"part": stream_part} if stream_part else {})
        cell_groups = [tuple(members)] if claim.is_pooled else [(cell,) for cell in members]
        sides.setdefault(shared_labels, []).extend(Side(side_cells, run_part, statistic) for side_cells in cell_groups)
    return sides


def _split(cell: Cell, tasks: set[str]) -> dict[str, str]:
    """Return task -> part of the cell's stream, split into the other side's `tasks`; "" for the whole run."""
    parts = select.stream_parts(grid.choice(cell.overrides, "task"))
    if not parts or not tasks or cell["task"] in tasks:
        return {cell["task"]: ""}
    choices = select.task_choices()
    return {task: choices[task] for task in sorted(tasks) if choices.get(task) in parts}


def cell_name(cell: Cell) -> str:
    return ", ".join(filter(None, (cell["task"], cell["method"], cell["setting"])))
