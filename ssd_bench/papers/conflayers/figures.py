"""ConfLayers' figures: other domains, speedup during search, windows, λ, confidences by block, sets by round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ssd_bench.papers.figures import layers, streams, style, subjects
from ssd_bench.papers.figures import shared as common
from ssd_bench.papers.figures.shared import NotDrawable, PlotValue
from ssd_bench.papers.ours.cells import Replication, ShownCell
from ssd_bench.papers.ours.values import inner_skip_ratio
from ssd_bench.results.quantity import Measured

ROUNDS = (0, 3, 4, 7)
"""Search rounds of the sets in Figure 9."""
BEST_LAMBDA = "0.2"
"""λ of the paper's highest speedup in Figure 7."""
SIGNALS = "confidences.npz"
"""File in a record's folder: the search's `block` [b]; `confidence`, `gradient`, `window`, `threshold` [rounds, b]."""
FROZEN_TASK = "CNN/DM"
"""Task whose set Figure 4 uses on the other tasks."""


def figure4(replication: Replication) -> Figure | NotDrawable:
    """Draw speedup and acceptance with CNN/DM's set, next to those with each task's own set."""
    drawn = replication.shown_cells()
    frozen = [cell for cell in drawn if cell.setting("skip_set") != cell["task"]]
    searched = [cell for cell in drawn if cell not in frozen]
    tasks = common.unique(cell["task"] for cell in searched)
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
            kept = next((cell for cell in frozen if cell["method"] == method), None)
            mark, labels = style.mark(method, 0), [_series_label(method, task) for task in ("", FROZEN_TASK)]
            marks |= {label: replace(mark, hatch=hatch) for label, hatch in zip(labels, ("", "////"))}
            series[labels[0]] = [common.find_value(searched, name, task=task, method=method) for task in tasks]
            series[labels[1]] = [streams.task_value(kept, task, name) if kept else None for task in tasks]
        places = common.draw_bars(axes, tasks, series, streams.AXES[name], marks)
        # numbers of a single task first: a number of several tasks is drawn only at bars without a number of that task
        for number in sorted(common.paper_numbers(replication, name), key=lambda number: number.task.count(",")):
            label = _series_label(number.method, FROZEN_TASK if number.settings["skip_set"] == FROZEN_TASK else "")
            for task in number.task.split(", "):
                if (task, label) in places:
                    common.draw_paper_numbers(axes, [number], places.pop((task, label)))
    common.draw_level(panels[0])
    return common.finish(figure, replication, drawn, common.INTERVALS)


def _series_label(method: str, task: str) -> str:
    return f"{method}, set found on {task or 'the same task'}"


def figure5(replication: Replication) -> Figure | NotDrawable:
    """Draw the speedup so far, prompt by prompt, and the prompt at which the search stopped."""
    reported = common.paper_numbers(replication, "speedup")  # they do not name their task
    return _draw_panels(replication, "task", "method", lambda axes, *_: common.draw_paper_numbers(axes, reported))


def figure6(replication: Replication) -> Figure | NotDrawable:
    """Draw the speedup so far with constant windows and the adaptive window."""
    drawn = replication.shown_cells()
    if (reason := subjects.no_difference(subjects.setting_points(drawn), "the window")) is not None:
        return reason
    reported = common.paper_numbers(replication, "speedup")

    def ends(axes: Axes, model: str, lines: Mapping[str, ShownCell]) -> None:
        """Draw the values of the paper's bars next to ours over all prompts."""
        of_model = [number for number in reported if number.model == common.paper_model(replication, model)]
        for label, place in streams.whole_run_places(lines).items():
            of_window = [number for number in of_model if common.pretty(f"window={number.settings['window']}") == label]
            common.draw_paper_numbers(axes, of_window, (0.975 * place, 1.025 * place))

    return _draw_panels(replication, "model", "setting", ends)


def _draw_panels(
    replication: Replication,
    axis: str,
    series: str,
    draw_reference: Callable[[Axes, str, Mapping[str, ShownCell]], None],
) -> Figure:
    """Draw the speedup so far, a panel per name of `axis` and a curve per name of `series`.

    Args:
        draw_reference: draws the paper's numbers into a panel (axes, name, label -> a curve's cell).
    """
    drawn = replication.shown_cells()
    names = common.unique(cell[axis] for cell in drawn)
    figure, body = common.new_figure(style.COLUMN if len(names) == 1 else style.PAGE, 2.9)
    panels = body.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for axes, name in zip(panels, names, strict=True):
        lines = {common.pretty(cell[series]): cell for cell in drawn if cell[axis] == name}
        streams.draw_speedup_so_far(axes, lines, {label: streams.last_change(cell) for label, cell in lines.items()})
        draw_reference(axes, name, lines)
        if len(names) > 1:
            axes.set_title(name, loc="left")
    panels[0].set_ylabel("speedup, decode, so far (×)")
    note = (
        f"{streams.SO_FAR} Star: last prompt in which the layer set changed or a search result was recorded; a star at "
        "the last prompt means that the search had not ended."
    )
    return common.finish(figure, replication, drawn, note)


def figure7(replication: Replication) -> Figure | NotDrawable:
    """Draw speedup and skip ratio over λ."""
    drawn = sorted(replication.shown_cells(), key=lambda cell: float(cell.setting("lambda")))
    models = common.unique(cell["model"] for cell in drawn)
    points = {model: subjects.setting_points((c for c in drawn if c["model"] == model), "lambda") for model in models}
    reasons = [subjects.no_difference(of_model, "λ") for of_model in points.values()]
    if all(reason is not None for reason in reasons):
        return next(reason for reason in reasons if reason is not None)
    figure, body = common.new_figure(style.COLUMN if len(models) == 1 else style.PAGE, 3.7)
    panels = body.subplots(2, len(models), squeeze=False, sharex="col", sharey="row")
    for (upper, lower), model in zip(panels.T, models, strict=True):
        subjects.draw_speedups(upper, points[model])
        ratios = [common.plot_value(point.cell, Measured(inner_skip_ratio(point.cell))) for point in points[model]]
        common.draw_line(lower, range(len(ratios)), ratios, style.MARKS[2], "skip ratio")
        paper_model = common.paper_model(replication, model)
        for at in (i for i, point in enumerate(points[model]) if BEST_LAMBDA in point.settings):
            ratios_of_paper = common.paper_numbers(replication, "skip_ratio", model=paper_model)
            common.draw_paper_numbers(lower, ratios_of_paper, (at - 0.3, at + 0.3))
        lower.set_ylim(0, 1)
        subjects.set_slots(lower, points[model], "λ")
        if len(models) > 1:
            upper.set_title(model, loc="left")
    panels[0, 0].set_ylabel("speedup,\ndecode (×)")
    panels[1, 0].set_ylabel("skip ratio r")
    every = [point for of_model in points.values() for point in of_model]
    notes = [common.INTERVALS, subjects.modelled_note(every), subjects.same_work_note(every, "λ").replace("-", "−")]
    notes += [
        "r: skipped share of the sublayers between the first and the last block, as in the paper, whose range of r is "
        f"that of its highest speedup, at λ = {BEST_LAMBDA}."
    ]
    return common.finish(figure, replication, [point.cell for point in every], *notes)


def figure8(replication: Replication) -> Figure | NotDrawable:
    """Draw each block's confidence, gradient, window and threshold, if a run stored them."""
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
    for axes, name, mark in zip((top, top, bottom), ("confidence", "threshold", "gradient"), style.MARKS):
        look = common.point_style(mark) | {"linestyle": mark.line}
        axes.plot(arrays["block"], arrays[name][0], label=name, **look)
    window = bottom.twinx()
    window.step(arrays["block"], arrays["window"][0], where="mid", color="black", label="window (right)")
    window.spines["right"].set_visible(True)
    window.set_ylabel("window (blocks)")
    window.set_ylim(bottom=0)
    top.set_ylabel("confidence")
    bottom.set_ylabel("rescaled gradient")
    bottom.set_xlabel("block (from 0)")
    note = "First search round of the run; a block is skipped if its confidence is below its threshold."
    return common.finish(figure, replication, [cell], note)


def figure9(replication: Replication) -> Figure | NotDrawable:
    """Draw the sets of search rounds 0, 3, 4 and 7, as far as the run went, with their accepted tokens."""
    cell = replication.shown_cells()[0]
    rounds = layers.set_sequence(cell.run)
    if rounds.empty:
        return NotDrawable(common.BY_LAYERS)
    last = int(rounds.index[-1])
    if last == 0:
        return NotDrawable("This figure shows the sets of search rounds; the run drafted with one set.")
    panels = []
    for i in sorted({i for i in ROUNDS if i <= last} | {last}):
        row = rounds.to_dict("records")[i]
        layer_set = cell.run.layer_set(int(row["layer_set_id"]))
        accepted = f"{row['fewest']} accepted in 1 step"
        if row["steps"] > 1:  # the range says how little a mean of few steps tells
            spread = f"{row['fewest']} to {row['most']}"
            accepted = f"{row['mean']:.1f} ({spread}) accepted in {row['steps']} steps"
        title = f"round {i}: {layers.skip_counts(layer_set)}; {accepted}"
        panels.append(layers.Panel(title, layer_set, bool(cell.exclusion)))
    figure, body = common.new_figure(layers.map_width(panels), layers.map_height(len(panels)))
    layers.draw_maps(body, [panels])
    note = "Above each map: skipped attentions + MLPs of all sublayers; mean accepted tokens per draft step (fewest to "
    note += f"most). A round ends when another set drafts; this run has {last + 1} rounds."
    if last < ROUNDS[-1]:
        note += f" Rounds of the paper that the run did not reach: {', '.join(str(i) for i in ROUNDS if i > last)}."
    reported = common.paper_numbers(replication, "n_accepted")
    means = ", ".join(f"{n.printed} in round {n.settings['search_round']}" for n in reported)
    note += f" Paper's mean accepted tokens: {means}."
    return common.finish(figure, replication, [cell], note)
