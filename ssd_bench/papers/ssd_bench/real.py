"""Methods on instruction-tuned models: acceptance, and speed at the reference machine's costs and as measured."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from ssd_bench.papers.figures import forest, style
from ssd_bench.papers.figures import shared as common
from ssd_bench.papers.figures.shared import NotDrawable
from ssd_bench.papers.ours.cells import Replication, ShownCell
from ssd_bench.results.text import ABSENT, FROZEN, MEASURED, MODELLED, format_lossless, format_measured, format_percent

REAL, DISPUTE, REAL_MEASURED = "ssd_bench_real", "ssd_bench_real_dispute", "ssd_bench_real_measured"
"""Names of the experiments."""
SPEEDUPS = "speedup_modelled", "speedup_frozen"
"""Numbers of a summary: with and without search time."""
COLUMNS = 2
NOTE = (
    "Modelled: the work of the run at the costs of the reference machine, with this model's acceptance. Search frozen: "
    "the same without method overhead. Intervals: 95 % over prompts."
)
TABLE_NOTE = f"{NOTE} {MEASURED.capitalize()}: on the CPU of the run; {ABSENT} if other work disturbed it."
CAPTION = 0.7
"""Height of the caption, in inches."""


def table(replication: Replication) -> pd.DataFrame:
    """Return the table of every model, task, method and setting run, as texts, without disturbed measured speedups."""
    return pd.DataFrame([_row(cell) for cell in replication.readable_cells()])


def real(replication: Replication) -> Figure | NotDrawable:
    """Draw each method's modelled speedup by model and task, with and without searches."""
    drawn = [cell for cell in replication.readable_cells() if cell.summary.speedup_modelled.value is not None]
    if not drawn:
        return NotDrawable("No run has modelled times.")
    columns = min(COLUMNS, len({(cell["model"], cell["task"]) for cell in drawn}))
    figure, body = common.new_figure(style.PAGE, CAPTION + forest.height(drawn, columns))
    forest.draw(body, drawn, SPEEDUPS, ("modelled", FROZEN), columns)
    order = "Order: by the mean of the modelled speedups on the tasks with the most methods."
    return common.finish(figure, replication, drawn, NOTE, order)


def _row(cell: ShownCell) -> dict[str, str]:
    summary = cell.summary
    setting = f", {cell['setting']}" if cell["setting"] else ""
    return {
        "model": cell["model"],
        "task": cell["task"],
        "method": cell["method"] + setting,
        "n": str(summary.n_pairs),
        "M": format_measured(summary.M),
        "α": format_measured(summary.alpha, 3),
        MODELLED: format_measured(summary.speedup_modelled),
        FROZEN: format_measured(summary.speedup_frozen),
        MEASURED: ABSENT if cell.timing.contaminated else format_measured(summary.speedup),
        "skipped, of all sublayers": format_percent(summary.skip_ratio),
        "equal to AR": format_lossless(summary.row),
        "excluded": cell.exclusion or ABSENT,
    }
