"""Tables of this project's experiments, also as Markdown documents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from ssd_bench import tables
from ssd_bench.papers.ours.cells import Replication
from ssd_bench.papers.ssd_bench import figures, real, windows
from ssd_bench.results.text import TOY_RUN


@dataclass(frozen=True)
class OwnTable:
    """Table of one of our experiments.

    Attributes:
        title: heading, without the model.
        table: returns the table as texts, perhaps without rows.
        note: sentences on the numbers' meaning and a verdict's criterion.
    """

    experiment: str
    title: str
    table: Callable[[Replication], pd.DataFrame]
    note: str

    @property
    def not_run(self) -> str:
        return f"Not run yet. Command: python -m ssd_bench -m experiment={self.experiment}"

    def document(self, replication: Replication) -> str:
        """Return the table as Markdown: title, command, rows, note, and remarks on scale and missing runs."""
        frame = self.table(replication)
        parts = [f"# {self.title}"]
        if any(cell.model_ran.toy for cell in replication.recorded_cells()):
            parts.append(f"**A {TOY_RUN}.**")
        parts += [f"    {replication.command}", tables.markdown(frame) if len(frame) else "No results yet."]
        parts += [self.note, *(f"- {line}" for line in remarks(replication))]
        return "\n\n".join(parts) + "\n"

    def latex(self, replication: Replication) -> str:
        """Return the table as LaTeX, with models and note in its caption."""
        toy = any(cell.model_ran.toy for cell in replication.recorded_cells())
        caption = [f"{self.title}, {replication.models_ran}.", f"{TOY_RUN}." if toy else "", self.note]
        label = f"tab:{self.experiment}-{replication.scale}".replace("_", "-")
        return tables.latex(self.table(replication), " ".join(filter(None, caption)), label)


def remarks(replication: Replication) -> list[str]:
    """Return sentences on the scale's changes, and on numbers of unreliable timings and missing runs."""
    runs = {cell.path: cell for cell in replication.cells if cell.is_readable}
    lines, noisy = [*replication.notes], sum(cell.timing.contaminated for cell in runs.values())
    if noisy:
        lines.append(
            f"{noisy} of {len(runs)} runs have unreliable timings, as their records say; their α, M and layer sets are "
            "not affected."
        )
    if missing := sum(cell.record is None for cell in replication.cells):
        lines.append(f"{missing} of {len(replication.cells)} runs are missing.")
    return lines


OWN = (
    OwnTable(real.REAL, "Methods on instruction-tuned models", real.table, real.TABLE_NOTE),
    OwnTable(real.REAL_MEASURED, "Rounded and copying drafts, measured", real.table, real.TABLE_NOTE),
    OwnTable(real.DISPUTE, "SWIFT against ConfLayers", real.table, real.TABLE_NOTE),
    OwnTable(figures.COMPARISON, "All methods on one model", figures.table, figures.NOTE),
    OwnTable(windows.WINDOWS, "Windows of the cache and layer sets", windows.table, windows.NOTE),
)
"""Our experiments' tables, in page order."""
