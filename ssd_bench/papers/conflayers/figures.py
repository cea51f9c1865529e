"""ConfLayers' figures: other domains, speedup during the search, windows, λ, confidences by block, sets by round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ssd_bench.metrics import Measured
from ssd_bench.papers.figures import layers, streams, style
from ssd_bench.papers.figures import shared as common
from ssd_bench.papers.figures.shared import NotDrawable, PlotValue
from ssd_bench.papers.ours.cells import Replication, ShownCell
from ssd_bench.papers.ours.values import inner_skip_ratio

ROUNDS = (0, 3, 4, 7)
"""Search rounds of the sets in Figure 9."""
SIGNALS = "confidences.npz"
"""File in a record's folder: `block` [b]; `confidence`, `gradient`, `window`, `threshold` [rounds, b] of the search."""
FROZEN_TASK = "CNN/DM"
"""Task whose set Figure 4 uses, unchanged, on the other tasks."""


def figure4(replication: Replication) -> Figure | NotDrawable:
    """Draw speedup and acceptance with the set found on CNN/DM, next to those with a set found on each task."""
    drawn = replication.shown_cells()
    frozen = [cell for cell in drawn if cell.setting("skip_set") != cell["task"]]
    tasks = common.unique(cell["task"] for cell in drawn if cell not in frozen)
    if not frozen or not tasks:
        return NotDrawable(
            "This figure needs the run on the stream and the runs on single tasks; one of the two kinds is missing."
        )
    figure, body = common.new_figure(style.PAGE, 2.9)
    panels = body.subplots(1, 2)
    for axes, name in zip(panels, ("speedup", "alpha"), strict=True):
        series: dict[str, list[PlotValue | None]] = {}
        marks: dict[str, style.Mark] = {}
        for method in common.unique(cell["method"] for cell in drawn):
            by_task = {cell["task"]: cell for cell in drawn if cell["method"] == method and cell not in frozen}
            kept = next((cell for cell in frozen if cell["method"] == method), None)
            mark = style.mark(method, 0)
            marks[_series_label(method, "")] = replace(mark, hatch="")
            marks[_series_label(method, FROZEN_TASK)] = replace(mark, hatch="////")
            series[_series_label(method, "")] = [_cell_value(by_task.get(task), name) for task in tasks]
            series[_series_label(method, FROZEN_TASK)] = [_task_value(kept, task, name) for task in tasks]
        places = common.draw_bars(axes, tasks, series, streams.QUANTITIES[name][0], marks)
        # numbers of a single task first: a number of several tasks is drawn only at bars without a number of that task
        for number in sorted(common.paper_numbers(replication, name), key=lambda number: number.task.count(",")):
            label = _series_label(number.method, FROZEN_TASK if number.settings["skip_set"] == FROZEN_TASK else "")
            for task in number.task.split(", "):
                if (task, label) in places:
                    common.draw_paper_numbers(axes, [number], places.pop((task, label)))
    common.draw_level(panels[0])
    common.draw_legend(body)
    return common.finish(figure, replication, drawn, common.INTERVALS)


def _series_label(method: str, task: str) -> str:
    return f"{method}, set found on {task or 'the same task'}"


def _cell_value(cell: ShownCell | None, name: str) -> PlotValue | None:
    return None if cell is None else common.plot_value(cell, name)


def _task_value(cell: ShownCell | None, task: str, name: str) -> PlotValue | None:
    """Return a number of a task's part of a stream; None if the cell or the task is missing."""
    rows = [row for row in ([] if cell is None else cell.domains) if streams.domain_title(row.domain) == task]
    return common.plot_value(cell, rows[0].number(name)) if cell is not None and rows else None


def figure5(replication: Replication) -> Figure | NotDrawable:
    """Draw the speedup so far, prompt by prompt, and the prompt at which the search stopped."""
    reported = common.paper_numbers(replication, "speedup")

    def bound(axes: Axes, name: str, lines: Iterable[str]) -> None:
        """Draw the paper's numbers, which do not name their task, in the panels of both tasks."""
        common.draw_paper_numbers(axes, reported)

    return _draw_panels(replication, "task", "method", bound)


def figure6(replication: Replication) -> Figure | NotDrawable:
    """Draw the speedup so far with windows of a constant width and with the adaptive window."""
    reported = common.paper_numbers(replication, "speedup")

    def ends(axes: Axes, model: str, lines: Iterable[str]) -> None:
        """Draw the values of the paper's bars after the last prompt."""
        of_model = [number for number in reported if number.model == common.paper_model(replication, model)]
        last = axes.dataLim.x1
        for i, label in enumerate(lines):
            of_window = [number for number in of_model if common.pretty(f"window={number.settings['window']}") == label]
            start = last * (1.05 + 0.1 * i)
            common.draw_paper_numbers(axes, of_window, (start, start + 0.08 * last), style.mark(label, i).marker)
        axes.set_xticks([tick for tick in axes.get_xticks() if 1 <= tick <= last])

    return _draw_panels(replication, "model", "setting", ends)


def _draw_panels(
    replication: Replication, axis: str, series: str, draw_reference: Callable[[Axes, str, Iterable[str]], None]
) -> Figure:
    """Draw the speedup so far, with a panel for each name of `axis` and a curve for each name of `series`.

    Args:
        draw_reference: draws the paper's numbers into a panel (axes, its name, labels of its curves).
    """
    drawn = replication.shown_cells()
    names = common.unique(cell[axis] for cell in drawn)
    figure, body = common.new_figure(style.COLUMN if len(names) == 1 else style.PAGE, 2.9)
    panels = body.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for axes, name in zip(panels, names, strict=True):
        lines = {common.pretty(cell[series]): cell for cell in drawn if cell[axis] == name}
        streams.draw_speedup_so_far(axes, lines, {label: streams.last_change(cell) for label, cell in lines.items()})
        draw_reference(axes, name, lines)
        axes.set_title(name, loc="left")
    panels[0].set_ylabel("speedup, decode, so far (×)")
    common.draw_legend(body)
    note = (
        "Speedup: ratio of totals over the prompts so far. Star: last prompt in which the layer set changed or a "
        "search result was recorded; afterwards the set is constant."
    )
    return common.finish(figure, replication, drawn, note)


def figure7(replication: Replication) -> Figure | NotDrawable:
    """Draw speedup and skip ratio over λ."""
    drawn = replication.shown_cells()
    models = common.unique(cell["model"] for cell in drawn)
    figure, body = common.new_figure(style.COLUMN if len(models) == 1 else style.PAGE, 3.7)
    panels = body.subplots(2, len(models), squeeze=False, sharex="col", sharey="row")
    for (upper, lower), model in zip(panels.T, models, strict=True):
        of_model = sorted((c for c in drawn if c["model"] == model), key=lambda cell: float(cell.setting("lambda")))
        x = [float(cell.setting("lambda")) for cell in of_model]
        common.draw_line(upper, x, [common.plot_value(cell, "speedup") for cell in of_model], style.MARKS[0], "speedup")
        common.draw_level(upper)
        ratios = [common.plot_value(cell, Measured(inner_skip_ratio(cell))) for cell in of_model]
        common.draw_line(lower, x, ratios, style.MARKS[1], "skip ratio")
        paper_model = common.paper_model(replication, model)
        common.draw_paper_numbers(lower, common.paper_numbers(replication, "skip_ratio", model=paper_model))
        lower.set_ylim(0, 1)
        lower.set_xticks(x)
        lower.set_xlabel("λ")
        upper.set_title(model, loc="left")
    panels[0, 0].set_ylabel("speedup,\ndecode (×)")
    panels[1, 0].set_ylabel("skip ratio r")
    common.draw_legend(body)
    note = (
        f"{common.INTERVALS} r: skipped share of the sublayers between the first and the last block, as in the paper, "
        "whose range of r is that of its highest speedup, at λ = 0.2."
    )
    return common.finish(figure, replication, drawn, note)


def figure8(replication: Replication) -> Figure | NotDrawable:
    """Draw confidence, gradient, window and threshold of each block, if a run stored them."""
    drawn = replication.shown_cells()
    cell = next((cell for cell in drawn if (cell.path / SIGNALS).is_file()), None)
    if cell is None:
        return NotDrawable(
            "No run stored confidences. A run computes none if every output is shorter than the context window, and "
            "older runs did not store them."
        )
    with np.load(cell.path / SIGNALS) as file:
        arrays = {name: file[name] for name in ("block", "confidence", "gradient", "window", "threshold")}
    figure, body = common.new_figure(style.PAGE, 3.4)
    top, bottom = body.subplots(2, 1, sharex=True)
    for axes, names in ((top, ("confidence", "threshold")), (bottom, ("gradient",))):
        for name in names:
            mark = style.MARKS[("confidence", "threshold", "gradient").index(name)]
            axes.plot(
                arrays["block"], arrays[name][0], color=mark.colour, marker=mark.marker, linestyle=mark.line, label=name
            )
    window = bottom.twinx()
    window.step(arrays["block"], arrays["window"][0], where="mid", color="black", label="window (right)")
    window.spines["right"].set_visible(True)
    window.set_ylabel("window (blocks)")
    window.set_ylim(bottom=0)
    top.set_ylabel("confidence")
    bottom.set_ylabel("rescaled gradient")
    bottom.set_xlabel("block (from 0)")
    common.draw_legend(body)
    note = "First search round of the run; a block is skipped if its confidence is below its threshold."
    return common.finish(figure, replication, [cell], note)


def figure9(replication: Replication) -> Figure | NotDrawable:
    """Draw the sets of search rounds 0, 3, 4 and 7, as far as the run went, with the tokens accepted in them."""
    cell = replication.shown_cells()[0]
    rounds = layers.set_sequence(cell.run)
    if rounds.empty:
        return NotDrawable(common.BY_LAYERS)
    last = int(rounds.index[-1])
    reported = {
        int(n.settings["search_round"]): f" (paper {n.printed})"
        for n in common.paper_numbers(replication, "n_accepted")
    }
    panels = []
    for i in sorted({i for i in ROUNDS if i <= last} | {last}):
        ids, steps, accepted = (rounds[name].tolist()[i] for name in ("layer_set_id", "steps", "accepted"))
        layer_set = cell.run.layer_set(ids)
        title = f"round {i}: {layers.skip_counts(layer_set)}; {accepted:.2f} accepted{reported.get(i, '')}, {steps} "
        title += "step" if steps == 1 else "steps"
        panels.append(layers.Panel(title, layer_set, bool(cell.exclusion)))
    figure, body = common.new_figure(layers.map_width(panels), layers.map_height(len(panels)))
    layers.draw_maps(body, [panels])
    note = "Above each map: skipped attentions + MLPs of all sublayers; mean accepted tokens; number of draft steps. "
    note += f"A round ends when another set drafts; this run has {last + 1} round{'s' if last else ''}."
    if last < ROUNDS[-1]:
        note += f" Rounds of the paper that the run did not reach: {', '.join(str(i) for i in ROUNDS if i > last)}."
    return common.finish(figure, replication, [cell], note)
