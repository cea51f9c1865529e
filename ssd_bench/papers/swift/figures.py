"""SWIFT's figures: what sparsity alone gives, the search over time, its settings, other models, and its layer sets."""

from __future__ import annotations

import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ssd_bench import metrics, style
from ssd_bench.metrics import Measured
from ssd_bench.papers import figures_cases as cases
from ssd_bench.papers import figures_layers as layers
from ssd_bench.papers import figures_shared as common
from ssd_bench.papers.cells import Cell, Replication
from ssd_bench.papers.figures_shared import Cannot
from ssd_bench.records import search_store
from ssd_bench.records.reader import Run

STEPS = (0, 64, 128, 512)
"""Search steps whose sets Figure 12 shows."""


def figure2a(replication: Replication) -> Figure | Cannot:
    """Acceptance and speedup of uniform skipping, with ten candidates a position and with one, by task."""
    drawn = common.cells(replication)
    tasks, methods = (common.unique(cell[axis] for cell in drawn) for axis in ("task", "method"))
    found = {(cell["task"], cell["method"]): cell.summary for cell in drawn}
    figure, body = common.page(style.PAGE, 2.6)
    panels = body.subplots(1, 2)
    for axes, name in zip(panels, ("alpha", "speedup"), strict=True):
        series = {m: [_measured(found.get((t, m)), name) for t in tasks] for m in methods}
        common.bars(axes, tasks, series, common.QUANTITIES[name][0])
    common.level(panels[1])
    common.legend(body, panels[0], 2)
    note = (
        f"Every second block is skipped, without a search. {common.INTERVALS} Paper: α over 0.90 and speedup 1.22 on "
        "average with ten candidates, at most 1.01 with one."
    )
    return common.finish(figure, replication, drawn, note)


def _measured(summary: dict[str, object] | None, name: str) -> Measured | None:
    return None if summary is None else common.measured(summary, name)


def figure6(replication: Replication) -> Figure | Cannot:
    """Matchness and speedup while the search goes on, and where the time goes."""
    cell = common.cells(replication)[0]
    rows = common.stream(cell.run)
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
    top.set_ylabel("best matchness")
    top.set_ylim(0, 1.05)
    top.tick_params(labelbottom=False)
    own = [common.of_rows(rows.loc[[i]], "speedup") for i in rows.index]
    bottom.plot(rows.index, own, linestyle="", marker="o", markersize=3, color="#888888", label="instance")
    bottom.plot(rows.index, common.cumulative(rows), color=style.MARKS[0].colour, label="all so far")
    common.level(bottom)
    bottom.set_ylabel("speedup over\nAR (×)")
    bottom.set_xlabel("instances")
    for axes in (top, bottom):
        axes.set_xlim(0, len(rows) + 0.5)
        common.whole(axes)
    _breakdown(right, cell.run)
    common.legend(body, bottom, 2)
    note = (
        "Matchness: of the best set so far, as the search measured it. Right: shares of the method's decode time. "
        "Paper: matchness from 0.45 to 0.98, 1.53× by instance after the search, search 0.8 % of the time."
    )
    return common.finish(figure, replication, [cell], note)


def _matchness(run: Run) -> tuple[list[float], list[float]]:
    """Where in the stream, in instances, the search stated what matchness."""
    steps = metrics.of_arm(run.steps, "method").sort_values(["repeat", "prompt_index", "step"])
    keys = ["repeat", "prompt_index"]
    done = steps.groupby(keys)["emitted"].cumsum() / steps.groupby(keys)["emitted"].transform("sum")
    positions = steps.groupby(keys).ngroup() + done
    events = steps["est_alpha"].notna()
    return positions[events].tolist(), steps.loc[events, "est_alpha"].tolist()


def _breakdown(axes: Axes, run: Run) -> None:
    names = {"draft": "drafting", "verify": "verification", "policy": "search", "other": "other"}
    shares = metrics.accounts(metrics.of_arm(run.prompts, "method"))
    for i, (name, (colour, hatch)) in enumerate(style.ACCOUNTS.items()):
        share = 100 * max(shares[name] or 0.0, 0.0)
        axes.barh(i, share, 0.7, color=colour, hatch=hatch, edgecolor="black", linewidth=0.5)
        axes.annotate(f"{share:.1f} %", (share, i), (3, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(names)), list(names.values()))
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.margins(x=0.25)
    axes.set_xlabel("share of decode time (%)")


def figure7(replication: Replication) -> Figure | Cannot:
    """Speedup and acceptance rate along a stream of five tasks."""
    return common.along(replication, ("speedup", "alpha"))


def figure8a(replication: Replication) -> Figure | Cannot:
    """Speedup over instances for settings of S and β."""
    drawn = common.cells(replication)
    figure, body = common.page(style.COLUMN, 3.2)
    axes = body.subplots()
    common.so_far(axes, {_setting(cell): cell for cell in drawn})
    axes.set_ylabel("speedup so far (×)")
    common.legend(body, axes, 2)
    note = "S: search steps at most; β: every β-th candidate is Bayesian. A ratio of totals over the prompts so far."
    return common.finish(figure, replication, drawn, note)


def _setting(cell: Cell) -> str:
    return cell["setting"].replace("beta", "β").replace("lambda", "λ").replace(";", ", ").replace("=", " = ")


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
        numbers = [common.measured(cell.summary, "speedup") for cell in own]
        common.line(panels[0], [float(cell.setting("r")) for cell in own], numbers, style.MARKS[i], model)
        defined = [(n.value, cell) for n, cell in zip(numbers, own) if n.value is not None]
        best += [max(defined, key=lambda pair: pair[0])] if defined else []
    common.level(panels[0])
    panels[0].set_xlabel("requested skip ratio r")
    panels[0].set_ylabel("speedup over AR (×)")
    note = common.INTERVALS
    if len(models) == 1:
        note += f" Every model is {models[0]} here, so that nothing can be said of model size."
    else:
        _scaling(panels[1], best)
        note += " Right: of each model the best r, which is written beside it."
    common.legend(body, panels[0], 3)
    return common.finish(figure, replication, drawn, note)


def _scaling(axes: Axes, best: list[tuple[float, Cell]]) -> None:
    for i, (value, cell) in enumerate(best):
        billions = float(cell.run.header["model"]["n_params"]) / 1e9
        number, own = common.measured(cell.summary, "speedup"), style.MARKS[i]
        axes.errorbar(billions, value, yerr=common.error(number), color=own.colour, marker=own.marker, capsize=2)
        axes.annotate(f"r = {cell.setting('r')}", (billions, value), (5, 3), textcoords="offset points")
    sizes = sorted({float(cell.run.header["model"]["n_params"]) / 1e9 for _, cell in best})
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:.3g}" for size in sizes])
    axes.minorticks_off()
    axes.margins(x=0.25, y=0.15)
    axes.set_xlabel("parameters (billions)")
    axes.set_ylabel("best speedup over AR (×)")


def figure9(replication: Replication) -> Figure | Cannot:
    """Speedup of other backbones and their tuned variants, by task."""
    drawn = common.cells(replication)
    tasks, models = (common.unique(cell[axis] for cell in drawn) for axis in ("task", "model"))
    found = {(cell["task"], cell["model"]): cell.summary for cell in drawn}
    figure, body = common.page(style.PAGE, 2.8)
    axes = body.subplots()
    series = {m: [_measured(found.get((t, m)), "speedup") for t in tasks] for m in models}
    common.bars(axes, tasks, series, "speedup over AR (×)")
    common.level(axes)
    common.legend(body, axes, 4)
    asked = len(common.unique(cell["model"] for cell in replication.cells))
    note = f"{common.INTERVALS} Paper: 1.26 to 1.54."
    if len(models) < asked and replication.scale != "paper":
        note += f" Its {asked} models are one here."
    return common.finish(figure, replication, drawn, note)


def figure10(replication: Replication) -> Figure | Cannot:
    """The sets that Self-SD found on each task."""
    drawn = common.cells(replication)
    panels = []
    for cell in drawn:
        found = layers.main_set(cell.run)
        text = "no layers drafted" if found is None else layers.counts(found)
        panels.append(layers.Panel(f"{cell.setting('skip_set')}: {text}", found))
    figure, body = common.page(layers.width(panels), layers.height(len(panels)))
    layers.maps(body, [panels])
    return common.finish(figure, replication, drawn, "The set that drafts in each run, searched on the named task.")


def figure11(replication: Replication) -> Figure | Cannot:
    """Speedup of Self-SD over the time of its search, beside SWIFT."""
    drawn = common.cells(replication)
    figure, body = common.page(style.COLUMN, 2.9)
    axes = body.subplots()
    for method in common.unique(cell["method"] for cell in drawn):
        own = style.mark(method, 0)
        points = [(_latency(cell, replication), common.measured(cell.summary, "speedup"), cell)
                  for cell in drawn if cell["method"] == method]  # fmt: skip
        points = sorted((point for point in points if point[1].value is not None), key=lambda point: point[0])
        for i, (seconds, number, cell) in enumerate(points):
            axes.errorbar(
                seconds, number.value or 0.0, yerr=common.error(number), color=own.colour, marker=own.marker, capsize=2,
                linestyle="", label=None if i else method,
            )  # fmt: skip
            _name_point(axes, seconds, number, cell, below=i % 2 == 1)
    common.level(axes)
    axes.set_xscale("log")
    axes.margins(x=0.1, y=0.2)
    axes.set_xlabel("time of the search (s)")
    axes.set_ylabel("speedup over AR (×)")
    common.legend(body, axes, 2)
    note = (
        "Numbers: iterations of Self-SD's search, with the time of earlier runs that it continues; SWIFT: policy "
        f"time of its run. {common.INTERVALS} Paper: Self-SD 1.19 after 2898 s, SWIFT 1.56 after 116 s."
    )
    return common.finish(figure, replication, drawn, note)


def _name_point(axes: Axes, seconds: float, number: Measured, cell: Cell, below: bool) -> None:
    """Write the iterations of a run's search beside its point, if it had one."""
    options = cell.run.header["config"]["method"].get("search")
    if options is not None:
        at = number.low if below else number.high
        axes.annotate(
            str(options["iterations"]), (seconds, at or number.value or 0.0), (0, -3 if below else 3),
            textcoords="offset points", ha="center", va="top" if below else "bottom", fontsize=style.SMALL,
        )  # fmt: skip


def _latency(cell: Cell, replication: Replication) -> float:
    """Seconds of a run's search: on record beside the run, else of the run's own preparation or policy."""
    run, options = cell.run, cell.run.header["config"]["method"].get("search")
    if options is None:
        return float(metrics.of_arm(run.prompts, "method")["policy_ms"].sum()) / 1000
    count = max(1, len(options["init_sets"])) + int(options["iterations"])
    own = {"model": run.header["model"]["name"], "weights": run.header["model"]["weights"]}
    own |= {"task": run.header["task"]["name"], "dtype": run.header["model"]["dtype"]}
    folder = replication.runs_dir / "searches"
    for name in search_store.names(folder):
        artifact = search_store.load(folder / name)
        settings = artifact.header["settings"]
        same = all(artifact.header[key] == value for key, value in own.items())
        if same and all(options.get(key) == value for key, value in settings.items() if key in options):
            return artifact.within(count, float("inf")).seconds
    return float(run.header["prepare_ms"]) / 1000


def figure12(replication: Replication) -> Figure | Cannot:
    """SWIFT's set after 0, 64, 128 and 512 search steps, as far as the run went."""
    cell = common.cells(replication)[0]
    ids = _after_steps(cell.run)
    if ids.empty:
        return Cannot("No step of its run was drafted by layers.")
    last = int(ids.index[-1])
    panels = []
    for step in sorted({step for step in STEPS if step <= last} | {last}):
        found = cell.run.layer_set(int(ids[step]))
        panels.append(layers.Panel(f"search step {step}: {layers.counts(found)}", found))
    figure, body = common.page(layers.width(panels), layers.height(len(panels)))
    layers.maps(body, [panels])
    note = f"A search step is one with a recorded matchness, of which this run has {last}."
    if last < STEPS[-1]:
        note += f" The paper's {', '.join(str(s) for s in STEPS if s > last)} were not reached."
    return common.finish(figure, replication, [cell], textwrap.dedent(note))


def _after_steps(run: Run) -> pd.Series[int]:
    """Number of search steps -> id of the set that drafted next."""
    steps = metrics.of_arm(run.steps, "method").sort_values(["repeat", "prompt_index", "step"])
    done = steps["est_alpha"].notna().astype(int).cumsum().shift(fill_value=0)
    drafted = steps["layer_set_id"].notna()
    ids = steps.loc[drafted, "layer_set_id"].astype(int).groupby(done[drafted]).first()
    full = np.arange(int(done.max()) + 1) if len(done) else np.arange(0)
    return ids.reindex(full).ffill().bfill().astype(int) if len(ids) else ids


figure2b = common.transfer
table13 = table14 = cases.table
