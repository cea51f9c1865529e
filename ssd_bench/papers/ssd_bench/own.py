"""Tables of this project's own experiments, and each of them as a Markdown document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from ssd_bench import tables
from ssd_bench.metrics.text import REHEARSAL
from ssd_bench.papers.cells import Replication
from ssd_bench.papers.ssd_bench import del_home, families, figures, windows


@dataclass(frozen=True)
class OwnTable:
    """Table of one of this project's own experiments.

    Attributes:
        experiment: name of the experiment.
        title: heading, without the model.
        table: returns the table as texts; without rows if no run can be shown.
        note: returns sentences on the meaning of the numbers and the criterion of a verdict.
    """

    experiment: str
    title: str
    table: Callable[[Replication], pd.DataFrame]
    note: Callable[[], str]

    @property
    def not_run(self) -> str:
        """Sentence for a folder without runs of the experiment."""
        return f"Not run yet: python -m ssd_bench -m experiment={self.experiment} makes it."

    def document(self, replication: Replication) -> str:
        """Return the table as Markdown: title, command, rows, note, and remarks on the scale and on missing runs."""
        frame = self.table(replication)
        parts = [f"# {self.title}"]
        if any(cell.model_ran.toy for cell in replication.recorded_cells()):
            parts.append(f"**A {REHEARSAL}.**")
        parts += [f"    {replication.command}", tables.markdown(frame) if len(frame) else "No run can be shown yet."]
        parts += [self.note(), *(f"- {line}" for line in remarks(replication))]
        return "\n\n".join(parts) + "\n"


def remarks(replication: Replication) -> list[str]:
    """Return what the scale changes, runs whose timings are unreliable, and how many runs are missing."""
    runs = {cell.path: cell for cell in replication.recorded_cells() if cell.record and not cell.record.error}
    lines, noisy = [*replication.notes], sum(cell.timing.contaminated for cell in runs.values())
    if noisy:
        lines.append(
            f"A busy machine spoiled {noisy} of {len(runs)} runs, as their records say: not their α, M and layer sets."
        )
    if missing := sum(cell.record is None for cell in replication.cells):
        lines.append(f"{missing} of {len(replication.cells)} cells have no run.")
    return lines


OWN = (
    OwnTable(figures.COMPARISON, "All methods on one model", figures.table, figures.note),
    OwnTable(families.FAMILIES, "Families of drafts", families.table, families.note),
    OwnTable(windows.WINDOWS, "Windows of the cache and layer sets", windows.table, windows.note),
    OwnTable(
        del_home.DEL_HOME, "Is DEL's gain that of weights trained for early exits?", del_home.table, del_home.note
    ),
)
"""Tables of this project's experiments, in the order of the page."""
