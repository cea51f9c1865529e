"""SWIFT's figures: sparsity alone, the search over time, its settings, other models, and layer sets."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ssd_bench.papers.figures import cases, layers, streams, style, subjects
from ssd_bench.papers.figures import shared as common
from ssd_bench.papers.figures.shared import NotDrawable
from ssd_bench.papers.ours.cells import Replication, ShownCell
from ssd_bench.papers.ours.values import method_steps, search_origin, search_time
from ssd_bench.papers.printed.reported import Number
from ssd_bench.records.reader import Run
from ssd_bench.results.definitions import main_set
from ssd_bench.results.prompt_table import PromptTable

STEPS = (0, 64, 128, 512)
"""Search steps of the sets in Figure 12."""
SHORT_NAMES = {"layer skipping + top-k drafts": "top-k"}
"""Short names of Figure 2a's methods, for labels next to a panel."""


def figure2a(replication: Replication) -> Figure | NotDrawable:
    """Draw uniform skipping's acceptance and speedup by task, with ten candidates per position and with one."""
    drawn = replication.shown_cells()
    tasks, methods = (common.unique(cell[axis] for cell in drawn) for axis in ("task", "method"))
    figure, body = common.new_figure(style.PAGE, 2.6)
    panels = body.subplots(1, 2)
    for axes, name in zip(panels, ("alpha", "speedup"), strict=True):
        series = {m: [common.find_value(drawn, name, task=t, method=m) for t in tasks] for m in methods}
        common.draw_bars(axes, tasks, series, streams.AXES[name])
        for method in methods:
            reported = common.paper_numbers(replication, name, method=method)
            reported = [n for n in reported if n.settings.get("skip_set") == "uniform"]
            common.draw_paper_numbers(
                axes, reported, marker=style.mark(method, 0).marker, name=SHORT_NAMES.get(method, method)
            )
    common.draw_level(panels[1])
    note = f"Every second block is skipped; no search runs. {common.INTERVALS} Paper's values: over all three tasks."
    return common.finish(figure, replication, drawn, note)


def figure6(replication: Replication) -> Figure | NotDrawable:
    """Draw matchness and speedup during the search, and shares of the decode time."""
    cell = replication.shown_cells()[0]
    rows = streams.stream_rows(cell.run)
    if rows.empty:
        return NotDrawable("The run has no baseline, so its speedup is unknown.")
    if (reason := subjects.no_course([cell])) is not None:
        return reason
    figure, body = common.new_figure(style.PAGE, 3.0)
    grid = body.add_gridspec(2, 2, width_ratios=[2, 1])
    top, bottom, right = (body.add_subplot(grid[place]) for place in ((0, 0), (1, 0), (slice(None), 1)))
    x, best = _matchness_points(cell.run)
    top.step([*x, len(rows)], [*best, best[-1]], where="post", color=style.MARKS[0].colour)
    top.plot(x[0], best[0], marker="o", color=style.MARKS[0].colour)
    spans = {
        "start of first instance": (0.0, 0.5),
        "during first instance": (0.5, 1.0),
        "termination": (len(rows) - 1.0, len(rows) + 0.5),
    }
    for number in common.paper_numbers(replication, "matchness"):
        common.draw_paper_numbers(top, [number], spans[number.settings["point"]])
    top.set_ylabel("best matchness")
    top.set_ylim(0, 1.05)
    top.tick_params(labelbottom=False)
    speedups = streams.row_values(rows, "speedup")
    dots: dict[str, Any] = {"marker": "o", "markersize": 3, "markerfacecolor": "none", "color": "black"}
    bottom.plot(rows.index, speedups, linestyle="", label="instance", **dots)
    bottom.plot(rows.index, streams.cumulative_speedups(rows), color=style.MARKS[0].colour, label="all so far")
    common.draw_paper_numbers(bottom, common.paper_numbers(replication, "speedup"), (1, len(rows) + 0.5))
    common.draw_level(bottom)
    bottom.set_ylabel("speedup,\ndecode (×)")
    bottom.set_xlabel("instances")
    for axes in (top, bottom):
        axes.set_xlim(0, len(rows) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _draw_breakdown(right, cell.run, common.paper_numbers(replication, "overhead_pct"))
    note = (
        "Matchness: best set so far, as measured by the search. Right: shares of the method's decode time. The paper's "
        "speedup: mean over instances after the search."
    )
    return common.finish(figure, replication, [cell], note)


def _matchness_points(run: Run) -> tuple[list[float], list[float]]:
    """Return the stream positions (in instances) of recorded matchness values, and the values."""
    steps = method_steps(run)
    keys = ["repeat", "prompt_index"]
    done = steps.groupby(keys)["emitted"].cumsum() / steps.groupby(keys)["emitted"].transform("sum")
    positions = steps.groupby(keys).ngroup() + done
    events = steps["est_alpha"].notna()
    return positions[events].tolist(), steps.loc[events, "est_alpha"].tolist()


def _draw_breakdown(axes: Axes, run: Run, reported: list[Number]) -> None:
    names = {"draft": "drafting", "verify": "verification", "policy": "search", "other": "other"}
    table = PromptTable(run.prompts)
    for i, (name, (colour, hatch)) in enumerate(style.ACCOUNTS.items()):
        share = 100 * max(table.value(f"{name}_share") or 0.0, 0.0)
        axes.barh(i, share, 0.7, color=colour, hatch=hatch, edgecolor="black", linewidth=0.5)
        text = axes.annotate(f"{share:.1f} %", (share, i), (3, 0), textcoords="offset points", va="center")
        if name == "policy" and reported:
            axes.annotate(f"paper {reported[0].printed} %", (1, 0.5), (5, 0), text, va="center", **style.GREY_TEXT)
    axes.set_yticks(range(len(names)), list(names.values()))
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of decode time (%)")


def figure8a(replication: Replication) -> Figure | NotDrawable:
    """Draw the speedup over instances for settings of S and β."""
    drawn = replication.shown_cells()
    points = subjects.setting_points(drawn)
    if (reason := subjects.no_course(drawn) or subjects.no_difference(points, "S and β")) is not None:
        return reason
    figure, body = common.new_figure(style.COLUMN, 2.9)
    axes = body.subplots()
    streams.draw_speedup_so_far(axes, {common.pretty(cell["setting"]): cell for cell in drawn})
    axes.set_ylabel("speedup, decode, so far (×)")
    note = f"S: limit of search steps; every β-th candidate comes from Bayesian optimisation. {streams.SO_FAR}"
    return common.finish(figure, replication, drawn, note)


def figure8b(replication: Replication) -> Figure | NotDrawable:
    """Draw each model's speedup by skip ratio, and the best speedup by model size."""
    drawn = replication.shown_cells()
    if (reason := subjects.one_model(drawn, by_size=True)) is not None:
        return reason
    models = common.unique(cell["model"] for cell in drawn)
    figure, body = common.new_figure(style.PAGE, 2.7)
    panels = body.subplots(1, 2)
    best: list[tuple[float, ShownCell]] = []
    for i, model in enumerate(models):
        of_model = sorted((cell for cell in drawn if cell["model"] == model), key=lambda cell: float(cell.setting("r")))
        ratios = [float(cell.setting("r")) for cell in of_model]
        numbers = [common.plot_value(cell, "speedup") for cell in of_model]
        common.draw_line(panels[0], ratios, numbers, style.MARKS[i], model)
        defined = [(n.value, cell) for n, cell in zip(numbers, of_model) if n.value is not None and not n.exclusion]
        best += [max(defined, key=lambda pair: pair[0])] if defined else []
    common.draw_level(panels[0])
    panels[0].set_xticks(sorted({float(cell.setting("r")) for cell in drawn}))
    panels[0].set_xlabel("requested skip ratio r")
    panels[0].set_ylabel("speedup, decode (×)")
    _draw_scaling(panels[1], best, models)
    note = f"{common.INTERVALS} Right: speedup of each model at its best r, which labels the point."
    return common.finish(figure, replication, drawn, note)


def _draw_scaling(axes: Axes, best: list[tuple[float, ShownCell]], models: list[str]) -> None:
    for value, cell in best:
        billions = _billions(cell)
        number, mark = cell.summary.speedup, style.MARKS[models.index(cell["model"])]
        common.draw_point(axes, billions, number, color=mark.colour, marker=mark.marker)
        axes.annotate(f"r = {cell.setting('r')}", (billions, value), (5, 3), textcoords="offset points")
    sizes = sorted({_billions(cell) for _, cell in best})
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:.3g}" for size in sizes])
    axes.minorticks_off()
    axes.margins(x=0.25, y=0.15)
    axes.set_xlabel("parameters (billions)")
    axes.set_ylabel("best speedup, decode (×)")


def _billions(cell: ShownCell) -> float:
    return (cell.header.model.n_params or 0) / 1e9


def figure9(replication: Replication) -> Figure | NotDrawable:
    """Draw the speedup of other backbones and their tuned variants, by task."""
    drawn = replication.shown_cells()
    if (reason := subjects.one_model(drawn)) is not None:
        return reason
    tasks, models = (common.unique(cell[axis] for cell in drawn) for axis in ("task", "model"))
    figure, body = common.new_figure(style.PAGE, 2.8)
    axes = body.subplots()
    series = {m: [common.find_value(drawn, "speedup", task=t, model=m) for t in tasks] for m in models}
    common.draw_bars(axes, tasks, series, "speedup, decode (×)")
    common.draw_paper_numbers(axes, common.paper_numbers(replication, "speedup"))
    common.draw_level(axes)
    n_models = len(common.unique(cell["model"] for cell in replication.cells))
    note = common.INTERVALS
    if len(models) < n_models and replication.scale != "paper":
        note += f" At this scale {len(models)} models replace the paper's {n_models} models."
    return common.finish(figure, replication, drawn, note)


def figure10(replication: Replication) -> Figure | NotDrawable:
    """Draw the sets found by Self-SD on each task."""
    drawn = replication.shown_cells()
    panels = [
        layers.Panel.of(cell.setting("skip_set"), main_set(cell.run), "no drafts with layers", bool(cell.exclusion))
        for cell in drawn
    ]
    figure, body = common.new_figure(layers.map_width(panels), layers.map_height(len(panels)))
    layers.draw_maps(body, [panels])
    note = "Layer set that drafts in each run; it was searched on the named task."
    return common.finish(figure, replication, drawn, note)


def figure11(replication: Replication) -> Figure | NotDrawable:
    """Draw Self-SD's speedup over its search time, compared with SWIFT."""
    drawn = replication.shown_cells()
    timed = [(seconds, cell) for cell in drawn if (seconds := search_time(cell.run)) is not None]
    if not timed:
        return NotDrawable("No run searched, so there are no search times.")
    for method in common.unique(cell["method"] for _, cell in timed):
        if (reason := subjects.no_course([cell for _, cell in timed if cell["method"] == method])) is not None:
            return reason
    figure, body = common.new_figure(style.COLUMN, 2.9)
    axes = body.subplots()
    for method in common.unique(cell["method"] for _, cell in timed):
        searches = sorted((pair for pair in timed if pair[1]["method"] == method), key=lambda pair: pair[0])
        _draw_searches(axes, searches, method)
    _draw_paper_searches(axes, replication)
    common.draw_level(axes)
    axes.set_xscale("log")
    axes.margins(x=0.1, y=0.2)
    axes.set_xlabel("search time (s)")
    axes.set_ylabel("speedup, decode (×)")
    without = [cell for cell in drawn if all(cell is not timed_cell for _, timed_cell in timed)]
    note = (
        "Numbers: iterations of Self-SD's search. Hollow: the run read the search from the store, or continued it; the "
        f"time is that of the whole search. Only times of filled points are comparable. {common.INTERVALS}"
    )
    if without:
        note += f" Without a search: {', '.join(common.unique(cell['method'] for cell in without))}."
    return common.finish(figure, replication, drawn, note)


def _draw_searches(axes: Axes, points: list[tuple[float, ShownCell]], method: str) -> None:
    mark = style.mark(method, 0)
    axes.plot([], [], label=method, **common.point_style(mark))
    for i, (seconds, cell) in enumerate(points):
        number = common.plot_value(cell, "speedup")
        if number.value is None:
            continue
        face = mark.colour if search_origin(cell.run) == "run" else "white"
        common.draw_point(axes, seconds, number, **common.point_style(mark, number.exclusion, face))
        if number.exclusion:
            common.explain_excluded(axes)
        options, below = cell.header.options("method").get("search"), i % 2 == 1
        if options is not None:
            end, offset, side = (number.low, -3, "top") if below else (number.high, 3, "bottom")
            place = (seconds, end or number.value)
            axes.annotate(str(options["iterations"]), place, (0, offset), ha="center", va=side, **style.SMALL_TEXT)


def _draw_paper_searches(axes: Axes, replication: Replication) -> None:
    """Draw the paper's pairs of search time and speedup, with their methods' markers."""
    times = {(n.method, n.setting): n for n in common.paper_numbers(replication, "optimization_latency_s")}
    for number in common.paper_numbers(replication, "speedup"):
        time = times.get((number.method, number.setting))
        if time is not None:
            look: dict[str, Any] = {"color": style.FAINT, "marker": style.mark(number.method, 0).marker}
            axes.plot(time.value, number.value, linestyle="", label=common.paper_label(number), **look)
            iterations = number.settings.get("iterations", "")
            axes.annotate(iterations, (time.value, number.value), (0, 4), ha="center", **style.GREY_TEXT)


def figure12(replication: Replication) -> Figure | NotDrawable:
    """Draw SWIFT's set after 0, 64, 128 and 512 search steps, as far as the run went."""
    cell = replication.shown_cells()[0]
    if (reason := subjects.no_course([cell])) is not None:
        return reason
    ids, (_, scores) = _sets_after_steps(cell.run), _matchness_points(cell.run)
    if ids.empty:
        return NotDrawable(common.BY_LAYERS)
    last = int(ids.index[-1])
    panels = []
    for step in sorted({step for step in STEPS if step <= last} | {last}):
        layer_set = cell.run.layer_set(int(ids[step]))
        scored = f", matchness {scores[step - 1]:.2f}" if 0 < step <= len(scores) else ""
        title = f"search step {step}: {layers.skip_counts(layer_set)}{scored}"
        panels.append(layers.Panel(title, layer_set, bool(cell.exclusion)))
    figure, body = common.new_figure(layers.map_width(panels), layers.map_height(len(panels)))
    layers.draw_maps(body, [panels])
    note = (
        "Above each map: skipped attentions + MLPs of all sublayers. Search steps are steps with a recorded matchness; "
        f"this run has {last}."
    )
    if unreached := [str(step) for step in STEPS if step > last]:
        note += f" The paper's search steps that this run did not reach: {', '.join(unreached)}."
    return common.finish(figure, replication, [cell], note)


def _sets_after_steps(run: Run) -> pd.Series[int]:
    """Return search steps -> id of the set that drafted next."""
    steps = method_steps(run)
    done = steps["est_alpha"].notna().astype(int).cumsum().shift(fill_value=0)
    drafted = steps["layer_set_id"].notna()
    ids = steps.loc[drafted, "layer_set_id"].astype(int).groupby(done[drafted]).first()
    return ids.reindex(range(int(done.max()) + 1)).ffill().bfill().astype(int) if len(ids) else ids


figure2b = streams.transfer_figure
figure7 = partial(streams.stream_figure, quantities=("speedup", "alpha"))
table13 = table14 = cases.outputs_figure
