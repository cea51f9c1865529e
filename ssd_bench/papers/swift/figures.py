"""SWIFT's figures: what sparsity alone gives, the search over time, its settings, other models, and its layer sets."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ssd_bench import metrics, style
from ssd_bench.papers import figures_cases as cases
from ssd_bench.papers import figures_layers as layers
from ssd_bench.papers import figures_shared as common
from ssd_bench.papers import figures_streams as streams
from ssd_bench.papers.cells import Cell, Replication
from ssd_bench.papers.figures_shared import Cannot, Shown
from ssd_bench.papers.reported import Number
from ssd_bench.papers.values import search_made, search_time
from ssd_bench.records.reader import Run

STEPS = (0, 64, 128, 512)
"""Search steps whose sets Figure 12 shows."""
SHORT = {"layer skipping + top-k drafts": "top-k", "Self-SD": "Self-SD"}
"""What Figure 2a's methods are called beside a panel."""


def figure2a(replication: Replication) -> Figure | Cannot:
    """Acceptance and speedup of uniform skipping, with ten candidates a position and with one, by task."""
    drawn = common.cells(replication)
    tasks, methods = (common.unique(cell[axis] for cell in drawn) for axis in ("task", "method"))
    figure, body = common.page(style.PAGE, 2.6)
    panels = body.subplots(1, 2)
    for axes, name in zip(panels, ("alpha", "speedup"), strict=True):
        series = {m: [_of(drawn, name, task=t, method=m) for t in tasks] for m in methods}
        common.bars(axes, tasks, series, streams.QUANTITIES[name][0])
        for method in methods:
            own = common.reported(replication, name, method=method)
            own = [n for n in own if n.settings.get("skip_set") == "uniform"]
            common.theirs(axes, own, marker=style.mark(method, 0).marker, name=SHORT.get(method, method))
    common.level(panels[1])
    common.legend(body)
    note = f"Every second block is skipped, without a search. {common.INTERVALS} The paper's are of the three tasks."
    return common.finish(figure, replication, drawn, note)


def _of(drawn: list[Cell], name: str, **labels: str) -> Shown | None:
    """A number of the cell with these labels, if it is there."""
    found = (cell for cell in drawn if all(cell[axis] == label for axis, label in labels.items()))
    return next((common.shown(cell, name) for cell in found), None)


def figure6(replication: Replication) -> Figure | Cannot:
    """Matchness and speedup while the search goes on, and where the time goes."""
    cell = common.cells(replication)[0]
    rows = streams.stream(cell.run)
    if rows.empty:
        return Cannot("Its run has no baseline, so there is no speedup.")
    figure, body = common.page(style.PAGE, 3.0)
    grid = body.add_gridspec(2, 2, width_ratios=[2, 1])
    top, bottom, right = (body.add_subplot(grid[place]) for place in ((0, 0), (1, 0), (slice(None), 1)))
    x, best = _matchness(cell.run)
    if len(x):
        top.step([*x, len(rows)], [*best, best[-1]], where="post", color=style.MARKS[0].colour)
        top.plot(x[0], best[0], marker="o", color=style.MARKS[0].colour)
    else:
        top.text(0.5, 0.5, "no candidate was scored:\noutputs shorter than the window", transform=top.transAxes,
                 ha="center", va="center")  # fmt: skip
    spans = {
        "start of first instance": (0.0, 0.5), "during first instance": (0.5, 1.0),
        "termination": (len(rows) - 1.0, len(rows) + 0.5),
    }  # fmt: skip
    for number in common.reported(replication, "matchness"):
        common.theirs(top, [number], spans[number.settings["point"]])
    top.set_ylabel("best matchness")
    top.set_ylim(0, 1.05)
    top.tick_params(labelbottom=False)
    own = streams.each(rows, "speedup")
    bottom.plot(rows.index, own, linestyle="", marker="o", markersize=3, markerfacecolor="none", color="black",
                label="instance")  # fmt: skip
    bottom.plot(rows.index, streams.cumulative(rows), color=style.MARKS[0].colour, label="all so far")
    common.theirs(bottom, common.reported(replication, "speedup"), (1, len(rows) + 0.5))
    common.level(bottom)
    bottom.set_ylabel("speedup,\ndecode (×)")
    bottom.set_xlabel("instances")
    for axes in (top, bottom):
        axes.set_xlim(0, len(rows) + 0.5)
        common.whole(axes)
    _breakdown(right, cell.run, common.reported(replication, "overhead_pct"))
    common.legend(body)
    note = (
        "Matchness: of the best set so far, as the search measured it. Right: shares of the method's decode time. The "
        "paper's speedup: mean by instance after the search."
    )
    return common.finish(figure, replication, [cell], note)


def _matchness(run: Run) -> tuple[list[float], list[float]]:
    """Where in the stream, in instances, the search stated what matchness."""
    steps = metrics.arm_rows(run.steps, "method").sort_values(["repeat", "prompt_index", "step"])
    keys = ["repeat", "prompt_index"]
    done = steps.groupby(keys)["emitted"].cumsum() / steps.groupby(keys)["emitted"].transform("sum")
    positions = steps.groupby(keys).ngroup() + done
    events = steps["est_alpha"].notna()
    return positions[events].tolist(), steps.loc[events, "est_alpha"].tolist()


def _breakdown(axes: Axes, run: Run, theirs: list[Number]) -> None:
    names = {"draft": "drafting", "verify": "verification", "policy": "search", "other": "other"}
    shares = metrics.decode_time_shares(metrics.arm_rows(run.prompts, "method"))
    for i, (name, (colour, hatch)) in enumerate(style.ACCOUNTS.items()):
        share = 100 * max(shares[name] or 0.0, 0.0)
        axes.barh(i, share, 0.7, color=colour, hatch=hatch, edgecolor="black", linewidth=0.5)
        text = axes.annotate(f"{share:.1f} %", (share, i), (3, 0), textcoords="offset points", va="center")
        if name == "policy" and theirs:
            axes.annotate(f"paper {theirs[0].printed} %", (1, 0.5), (5, 0), text, "offset points", va="center",
                          fontsize=style.SMALL, color=style.FAINT)  # fmt: skip
    axes.set_yticks(range(len(names)), list(names.values()))
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of decode time (%)")


def figure7(replication: Replication) -> Figure | Cannot:
    """Speedup and acceptance rate along a stream of five tasks."""
    return streams.along(replication, ("speedup", "alpha"))


def figure8a(replication: Replication) -> Figure | Cannot:
    """Speedup over instances for settings of S and β."""
    drawn = common.cells(replication)
    figure, body = common.page(style.COLUMN, 2.9)
    axes = body.subplots()
    streams.so_far(axes, {common.pretty(cell["setting"]): cell for cell in drawn})
    axes.set_ylabel("speedup, decode, so far (×)")
    common.legend(body)
    note = "S: search steps at most; β: every β-th candidate is Bayesian. A ratio of totals over the prompts so far."
    return common.finish(figure, replication, drawn, note)


def figure8b(replication: Replication) -> Figure | Cannot:
    """Speedup by skip ratio for each model, and with several models the best of each over their sizes."""
    drawn = common.cells(replication)
    models = common.unique(cell["model"] for cell in drawn)
    width = style.COLUMN if len(models) == 1 else style.PAGE
    figure, body = common.page(width, 2.7)
    panels = body.subplots(1, 1 if len(models) == 1 else 2, squeeze=False)[0]
    best: list[tuple[float, Cell]] = []
    for i, model in enumerate(models):
        own = sorted((cell for cell in drawn if cell["model"] == model), key=lambda cell: float(cell.setting("r")))
        ratios, numbers = [float(cell.setting("r")) for cell in own], [common.shown(cell, "speedup") for cell in own]
        common.line(panels[0], ratios, numbers, style.MARKS[i], model)
        defined = [(n.value, cell) for n, cell in zip(numbers, own) if n.value is not None and not n.void]
        best += [max(defined, key=lambda pair: pair[0])] if defined else []
    common.level(panels[0])
    panels[0].set_xticks(sorted({float(cell.setting("r")) for cell in drawn}))
    panels[0].set_xlabel("requested skip ratio r")
    panels[0].set_ylabel("speedup, decode (×)")
    note = common.INTERVALS
    if len(models) == 1:
        note += f" Every model is {models[0]} here, so that nothing can be said of model size."
    else:
        _scaling(panels[1], best, models)
        note += " Right: of each model the best r, which is written beside it."
    common.legend(body)
    return common.finish(figure, replication, drawn, note)


def _scaling(axes: Axes, best: list[tuple[float, Cell]], models: list[str]) -> None:
    for value, cell in best:
        billions = float(cell.header["model"]["n_params"]) / 1e9
        number, own = common.measured(cell.summary, "speedup"), style.MARKS[models.index(cell["model"])]
        axes.errorbar(billions, value, yerr=common.error(number), color=own.colour, marker=own.marker, capsize=2)
        axes.annotate(f"r = {cell.setting('r')}", (billions, value), (5, 3), textcoords="offset points")
    sizes = sorted({float(cell.header["model"]["n_params"]) / 1e9 for _, cell in best})
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:.3g}" for size in sizes])
    axes.minorticks_off()
    axes.margins(x=0.25, y=0.15)
    axes.set_xlabel("parameters (billions)")
    axes.set_ylabel("best speedup, decode (×)")


def figure9(replication: Replication) -> Figure | Cannot:
    """Speedup of other backbones and their tuned variants, by task."""
    drawn = common.cells(replication)
    tasks, models = (common.unique(cell[axis] for cell in drawn) for axis in ("task", "model"))
    figure, body = common.page(style.COLUMN if len(models) == 1 else style.PAGE, 2.8)
    axes = body.subplots()
    series = {m: [_of(drawn, "speedup", task=t, model=m) for t in tasks] for m in models}
    common.bars(axes, tasks, series, "speedup, decode (×)")
    common.theirs(axes, common.reported(replication, "speedup"))
    common.level(axes)
    common.legend(body)
    asked = len(common.unique(cell["model"] for cell in replication.cells))
    note = common.INTERVALS
    if len(models) < asked and replication.scale != "paper":
        note += f" Its {asked} models are one here."
    return common.finish(figure, replication, drawn, note)


def figure10(replication: Replication) -> Figure | Cannot:
    """The sets that Self-SD found on each task."""
    drawn = common.cells(replication)
    panels = []
    for cell in drawn:
        found = metrics.main_set(cell.run)
        text = "no layers drafted" if found is None else layers.counts(found)
        panels.append(layers.Panel(f"{cell.setting('skip_set')}: {text}", found, bool(cell.void)))
    figure, body = common.page(layers.width(panels), layers.height(len(panels)))
    layers.maps(body, [panels])
    return common.finish(figure, replication, drawn, "The set that drafts in each run, searched on the named task.")


def figure11(replication: Replication) -> Figure | Cannot:
    """Speedup of Self-SD over the time of its search, beside SWIFT."""
    drawn = common.cells(replication)
    timed = [(seconds, cell) for cell in drawn if (seconds := search_time(cell.run)) is not None]
    if not timed:
        return Cannot("None of its runs has searched, so that no search has a time.")
    figure, body = common.page(style.COLUMN, 2.9)
    axes = body.subplots()
    for method in common.unique(cell["method"] for _, cell in timed):
        own = sorted((pair for pair in timed if pair[1]["method"] == method), key=lambda pair: pair[0])
        _draw_searches(axes, own, method)
    _draw_theirs(axes, replication)
    common.level(axes)
    axes.set_xscale("log")
    axes.margins(x=0.1, y=0.2)
    axes.set_xlabel("time of the search (s)")
    axes.set_ylabel("speedup, decode (×)")
    common.legend(body)
    without = [cell for cell in drawn if all(cell is not other for _, other in timed)]
    note = (
        "Numbers: iterations of Self-SD's search. Hollow: a search that the run read from the store, or continued from "
        f"there, with the time of all of it; only times of searches that were run compare. {common.INTERVALS}"
    )
    if without:
        note += f" Without a search: {', '.join(common.unique(cell['method'] for cell in without))}."
    return common.finish(figure, replication, drawn, note)


def _draw_searches(axes: Axes, points: list[tuple[float, Cell]], method: str) -> None:
    """Points of a method by the time of their search, with their iterations."""
    own = style.mark(method, 0)
    axes.plot([], [], linestyle="", label=method, **common.points(own))
    for i, (seconds, cell) in enumerate(points):
        number = common.shown(cell, "speedup")
        if number.value is None:
            continue
        face = own.colour if search_made(cell.run) == "run" else "white"
        axes.errorbar(
            seconds, number.value, yerr=common.error(number), capsize=2, linestyle="",
            **common.points(own, number.void, face),
        )  # fmt: skip
        if number.void:
            common.explain_void(axes)
        options, below = cell.header["config"]["method"].get("search"), i % 2 == 1
        if options is not None:
            end = number.low if below else number.high
            axes.annotate(
                str(options["iterations"]), (seconds, end or number.value), (0, -3 if below else 3),
                textcoords="offset points", ha="center", va="top" if below else "bottom", fontsize=style.SMALL,
            )  # fmt: skip


def _draw_theirs(axes: Axes, replication: Replication) -> None:
    """The paper's pairs of a search's time and its speedup, with the markers of their methods."""
    times = {(n.method, n.setting): n for n in common.reported(replication, "optimization_latency_s")}
    for number in common.reported(replication, "speedup"):
        time = times.get((number.method, number.setting))
        if time is not None:
            axes.plot(
                time.value, number.value, linestyle="", color=style.FAINT, marker=style.mark(number.method, 0).marker,
                label=common.paper_label(number),
            )  # fmt: skip
            iterations = number.settings.get("iterations", "")
            axes.annotate(iterations, (time.value, number.value), (0, 4), textcoords="offset points", ha="center",
                          fontsize=style.SMALL, color=style.FAINT)  # fmt: skip


def figure12(replication: Replication) -> Figure | Cannot:
    """SWIFT's set after 0, 64, 128 and 512 search steps, as far as the run went."""
    cell = common.cells(replication)[0]
    ids, (_, scores) = _after_steps(cell.run), _matchness(cell.run)
    if ids.empty:
        return Cannot("No step of its run was drafted by layers.")
    last = int(ids.index[-1])
    panels = []
    for step in sorted({step for step in STEPS if step <= last} | {last}):
        found = cell.run.layer_set(int(ids[step]))
        scored = f", matchness {scores[step - 1]:.2f}" if 0 < step <= len(scores) else ""
        panels.append(layers.Panel(f"search step {step}: {layers.counts(found)}{scored}", found, bool(cell.void)))
    figure, body = common.page(layers.width(panels), layers.height(len(panels)))
    layers.maps(body, [panels])
    note = f"Above a map: attentions + MLPs skipped. A search step has a recorded matchness; this run has {last}."
    if last < STEPS[-1]:
        note += f" The paper's {', '.join(str(s) for s in STEPS if s > last)} were not reached."
    return common.finish(figure, replication, [cell], note)


def _after_steps(run: Run) -> pd.Series[int]:
    """Number of search steps -> id of the set that drafted next."""
    steps = metrics.arm_rows(run.steps, "method").sort_values(["repeat", "prompt_index", "step"])
    done = steps["est_alpha"].notna().astype(int).cumsum().shift(fill_value=0)
    drafted = steps["layer_set_id"].notna()
    ids = steps.loc[drafted, "layer_set_id"].astype(int).groupby(done[drafted]).first()
    full = np.arange(int(done.max()) + 1) if len(done) else np.arange(0)
    return ids.reindex(full).ffill().bfill().astype(int) if len(ids) else ids


figure2b = streams.transfer
table13 = table14 = cases.table
