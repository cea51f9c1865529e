"""Best draft of every kind by task: skipped sublayers, a window, rounded weights, products, and a router."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from ssd_bench.contract.layer_set import BITS
from ssd_bench.papers.figures import shared as common
from ssd_bench.papers.figures import style
from ssd_bench.papers.figures.shared import NotDrawable, PlotValue
from ssd_bench.papers.ours.cells import Replication, ShownCell
from ssd_bench.results.definitions import steps_of

DRAFTS = "ssd_bench_drafts"
"""Name of the experiment."""
MEASURED = "speedup"
PANELS = {MEASURED: "measured", "speedup_modelled": "modelled"}
"""Numbers of a summary, and names of their panels."""
LAYERS, ROUTER, TEXT = "layers", "router", "copied text"
"""Kinds of runs that skip layers, that choose between layers and copied text at every step, and without layers."""
LEAST = 0.05
"""Least share of drafted tokens for a layer set to count."""


def drafts(replication: Replication) -> Figure | NotDrawable:
    """Draw each task's highest speedup of every kind of draft, measured and modelled."""
    drafting = [(cell, kind) for cell in replication.readable_cells() if (kind := kind_of(cell))]
    if not drafting:
        return NotDrawable("No run drafted with layers.")
    cells = [cell for cell, _ in drafting]
    kinds = sorted({kind for _, kind in drafting}, key=lambda kind: (kind == ROUTER, kind.count("+"), kind))
    marks = {kind: style.MARKS[i % len(style.MARKS)] for i, kind in enumerate(kinds)}
    tasks = common.unique(cell["task"] for cell in cells)
    figure, body = common.new_figure(style.PAGE, 5.0)
    best_numbers = {number: best_of_each(drafting, number) for number in PANELS}
    shown = {number: best for number, best in best_numbers.items() if best}
    panels = body.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (number, best) in zip(panels, shown.items(), strict=True):
        series = {kind: [best.get((task, kind)) for task in tasks] for kind in kinds}
        common.draw_bars(axes, tasks, series, f"speedup, {PANELS[number]}", marks)
        common.draw_level(axes)
    note = (
        "Each bar is the fastest run of its kind on the task, chosen by its own speedup, which flatters kinds with "
        "more runs; a router chooses between kinds and copies of earlier text at every step. Measured: on this "
        "machine; modelled: the same work at the costs of the reference machine, where 8-bit products were not "
        "measured."
    )
    return common.finish(figure, replication, cells, note, common.INTERVALS)


def kind_of(cell: ShownCell) -> str:
    """Return what drafts leave out: layers, window, 8 or 4 bits, or several; "" if nothing; or `ROUTER` or `TEXT`.

    Sets that drafted less than `LEAST` of the tokens do not count.
    """
    steps = steps_of(cell.run)
    drafted = steps.groupby("layer_set_id", dropna=False)["draft_len"].sum()
    main = drafted[drafted > LEAST * drafted.sum()].index
    if main.isna().any():
        return TEXT if drafted.index.isna().all() else ROUTER
    parts = dict.fromkeys((LAYERS, "window", *(f"{bits} bits" for bits in BITS)), False)
    for set_id in map(int, main):
        layer_set = cell.run.layer_set(set_id)
        parts[LAYERS] |= bool(layer_set.skipped)
        parts["window"] |= bool(layer_set.window)
        parts |= {f"{bits} bits": True for bits in layer_set.bits.values()}
    return " + ".join(name for name, changed in parts.items() if changed)


def best_of_each(drafting: Sequence[tuple[ShownCell, str]], number: str) -> Mapping[tuple[str, str], PlotValue]:
    """Return task and kind -> the highest value of a number that is not excluded, else of excluded ones."""
    best: dict[tuple[str, str], PlotValue] = {}
    for cell, kind in drafting:
        shown, key = common.plot_value(cell, number), (cell["task"], kind)
        if shown.value is not None and (key not in best or _rank(shown) > _rank(best[key])):
            best[key] = shown
    return best


def _rank(number: PlotValue) -> tuple[bool, float]:
    return not number.exclusion, number.value or 0.0
