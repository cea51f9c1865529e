"""Windows of the cache and skipped attentions: acceptance and cost of a drafted token, by window and layer set."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd
from matplotlib.figure import Figure

from ssd_bench.cost.tpt import tpt
from ssd_bench.papers.figures import shared as common
from ssd_bench.papers.figures import style
from ssd_bench.papers.figures.shared import NotDrawable
from ssd_bench.papers.ours.cells import Replication, ShownCell
from ssd_bench.results.quantity import Measured
from ssd_bench.results.text import ABSENT, format_measured, format_number

WINDOWS = "ssd_bench_windows"
"""Name of the experiment."""
LONGEST = 10
"""Longest draft in the predicted speedup, as in KnapSpec (section 3.5)."""
PANELS: Mapping[str, Callable[[ShownCell], Measured]] = {
    "accepted per drafted token (α)": lambda cell: cell.summary.alpha,
    "cost of a drafted token (c)": lambda cell: cell.summary.draft_cost,
    "predicted speedup (×)": lambda cell: Measured(predicted_speedup(cell)),
}
"""Labels of the panels, and their numbers."""
NOTE = (
    "While drafting, attentions read the first 4 positions and the recent ones. c: time of a drafted token relative to "
    "AR's time per token, both measured. Predicted speedup: KnapSpec's Eq. 4 with this c, the conditional α, the best "
    f"draft length up to {LONGEST}, and verifications as long as an AR step. Skipping attentions pays more than a "
    'window alone if its line exceeds the highest point of "all sublayers".'
)


def windows(replication: Replication) -> Figure | NotDrawable:
    """Draw α, c and the predicted speedup against the window, a line per layer set."""
    cells = replication.readable_cells()
    if not cells:
        return NotDrawable("No run drafted with layers.")
    widths = common.unique(cell.setting("recent") for cell in cells)
    figure, body = common.new_figure(style.PAGE, 3.4)
    panels = body.subplots(1, len(PANELS))
    for axes, (label, quantity) in zip(panels, PANELS.items(), strict=True):
        for position, layer_set in enumerate(common.unique(cell["method"] for cell in cells)):
            numbers = {cell.setting("recent"): cell for cell in cells if cell["method"] == layer_set}
            x = [float(widths.index(width)) for width in numbers]
            y = [common.plot_value(cell, quantity(cell)) for cell in numbers.values()]
            common.draw_line(axes, x, y, style.MARKS[position % len(style.MARKS)], layer_set)
        axes.set_xticks(range(len(widths)), widths)
        axes.set_xlabel("recent positions read")
        axes.set_ylabel(label)
    common.draw_level(panels[2])
    return common.finish(figure, replication, cells, NOTE, common.INTERVALS)


def table(replication: Replication) -> pd.DataFrame:
    """Return the figure's numbers as texts: the model that ran, and α, c and predicted speedup of every run."""
    rows = [
        {
            "model": cell.model_ran.text,
            "task": cell["task"],
            "layer set": cell["method"],
            "recent positions": cell.setting("recent"),
            "α": format_measured(cell.summary.alpha, 3),
            "α, conditional": format_number(cell.summary.alpha_conditional, 3),
            "c": format_measured(cell.summary.draft_cost, 3),
            "speedup, predicted": format_number(predicted_speedup(cell), 2),
            "excluded": cell.exclusion or ABSENT,
        }
        for cell in replication.readable_cells()
    ]
    return pd.DataFrame(rows)


def predicted_speedup(cell: ShownCell) -> float | None:
    """Return the highest speedup by Eq. 4 over all draft lengths; None if acceptance or cost is undefined."""
    acceptance, cost = cell.summary.alpha_conditional, cell.summary.draft_cost.value
    if acceptance is None or cost is None:
        return None
    return max(tpt(acceptance, length, cost, 1.0) / 1000 for length in range(1, LONGEST + 1))
