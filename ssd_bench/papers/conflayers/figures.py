"""ConfLayers' figures: other domains, speedup while it searches, windows, λ, confidences by block, sets by round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ssd_bench import style
from ssd_bench.metrics import Measured
from ssd_bench.papers import figures_layers as layers
from ssd_bench.papers import figures_shared as common
from ssd_bench.papers.cells import Cell, Replication
from ssd_bench.papers.figures_shared import Cannot

ROUNDS = (0, 3, 4, 7)
"""Search rounds whose sets Figure 9 shows."""
SIGNALS = "confidences.npz"
"""Beside a record: `block` [b], and `confidence`, `gradient`, `window`, `threshold` [rounds, b] of its search."""


def figure4(replication: Replication) -> Figure | Cannot:
    """Speedup and acceptance with a set found on CNN/DM and kept, beside sets of the tasks' own."""
    drawn = common.cells(replication)
    frozen = [cell for cell in drawn if cell.setting("skip_set") != cell["task"]]
    tasks = [cell["task"] for cell in drawn if cell not in frozen]
    tasks = common.unique(tasks)
    if not frozen or not tasks:
        return Cannot("It needs the run on the stream and those on the tasks alone; one of the two kinds is missing.")
    figure, body = common.page(style.PAGE, 2.9)
    panels = body.subplots(1, 2)
    for axes, name in zip(panels, ("speedup", "alpha"), strict=True):
        series: dict[str, list[Measured | None]] = {}
        marks: dict[str, style.Mark] = {}
        for method in common.unique(cell["method"] for cell in drawn):
            own = {cell["task"]: cell for cell in drawn if cell["method"] == method and cell not in frozen}
            kept = next((cell for cell in frozen if cell["method"] == method), None)
            own_mark = style.mark(method, 0)
            marks[f"{method}, set of the task"] = replace(own_mark, hatch="")
            marks[f"{method}, set of CNN/DM"] = replace(own_mark, hatch="////")
            series[f"{method}, set of the task"] = [_of(own.get(task), name) for task in tasks]
            series[f"{method}, set of CNN/DM"] = [_on(kept, task, name) for task in tasks]
        common.bars(axes, tasks, series, common.QUANTITIES[name][0], marks)
    common.level(panels[0])
    common.legend(body, panels[0], 2)
    note = f"{common.INTERVALS} Paper, Alpaca: ConfLayers 1.134 and 1.117, SWIFT 1.035 and 0.998."
    return common.finish(figure, replication, drawn, note)


def _of(cell: Cell | None, name: str) -> Measured | None:
    return None if cell is None else common.measured(cell.summary, name)


def _on(cell: Cell | None, task: str, name: str) -> Measured | None:
    """A number of the part of a stream that is this task."""
    rows = [row for row in ([] if cell is None else cell.domains) if common.domain(row["domain"]) == task]
    return common.measured(rows[0], name) if rows else None


def figure5(replication: Replication) -> Figure | Cannot:
    """Speedup so far, prompt by prompt, with the prompt at which the search came to rest."""
    drawn = common.cells(replication)
    tasks = common.unique(cell["task"] for cell in drawn)
    return _panels(replication, drawn, "task", tasks, "method")


def figure6(replication: Replication) -> Figure | Cannot:
    """Speedup so far with windows of one width and with the adaptive one."""
    drawn = common.cells(replication)
    models = common.unique(cell["model"] for cell in drawn)
    return _panels(replication, drawn, "model", models, "setting")


def _panels(replication: Replication, drawn: list[Cell], axis: str, names: list[str], series: str) -> Figure:
    """Speedup so far: a panel for each name of an axis, a line for each of another."""
    figure, body = common.page(style.COLUMN if len(names) == 1 else style.PAGE, 2.9)
    panels = body.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for axes, name in zip(panels, names, strict=True):
        lines = {_label(cell[series]): cell for cell in drawn if cell[axis] == name}
        common.so_far(axes, lines, {label: common.last_change(cell) for label, cell in lines.items()})
        axes.set_title(name, loc="left")
    panels[0].set_ylabel("speedup so far (×)")
    common.legend(body, panels[0], 2 if len(names) == 1 else 3)
    note = (
        "A ratio of totals over the prompts so far. Star: the last prompt in which the layer set changed or a search "
        "result was recorded; from there on the set was kept."
    )
    return common.finish(figure, replication, drawn, note)


def _label(name: str) -> str:
    return name.replace("=", " = ").replace("lambda", "λ")


def figure7(replication: Replication) -> Figure | Cannot:
    """Speedup and skip ratio over λ."""
    drawn = common.cells(replication)
    models = common.unique(cell["model"] for cell in drawn)
    figure, body = common.page(style.COLUMN if len(models) == 1 else style.PAGE, 2.7)
    panels = body.subplots(1, len(models), squeeze=False)[0]
    for i, (axes, model) in enumerate(zip(panels, models, strict=True)):
        own = sorted((c for c in drawn if c["model"] == model), key=lambda cell: float(cell.setting("lambda")))
        right = _sweep(axes, own)
        axes.set_title(model, loc="left")
        if i == 0:
            axes.set_ylabel("speedup over AR (×)")
        if i == len(models) - 1:
            right.set_ylabel("skip ratio r")
    common.legend(body, [panels[0], right], 2)
    return common.finish(figure, replication, drawn, f"{common.INTERVALS} Paper: the peak is at λ = 0.2.")


def _sweep(left: Axes, own: list[Cell]) -> Axes:
    """Both numbers of a model over λ; the axes of the right one."""
    x = [float(cell.setting("lambda")) for cell in own]
    speedups = [common.measured(cell.summary, "speedup") for cell in own]
    ratios = [Measured(cell.summary["skip_ratio"]) for cell in own]
    common.line(left, x, speedups, style.MARKS[0], "speedup (left)")
    right = left.twinx()
    common.line(right, x, ratios, style.MARKS[1], "skip ratio (right)")
    common.level(left)
    left.set_xticks(x)
    left.set_xlabel("λ")
    right.set_ylim(0, 1)
    right.spines["right"].set_visible(True)
    return right


def figure8(replication: Replication) -> Figure | Cannot:
    """Confidence, gradient, window and threshold of each block, where a run stored them."""
    drawn = common.cells(replication)
    cell = next((cell for cell in drawn if (cell.run.path / SIGNALS).is_file()), None)
    if cell is None:
        return Cannot(
            "Its run kept no confidences: none were computed, as where no output is as long as the context window, or "
            "it is older than their file."
        )
    with np.load(cell.run.path / SIGNALS) as file:
        arrays = {name: file[name] for name in ("block", "confidence", "gradient", "window", "threshold")}
    figure, body = common.page(style.PAGE, 3.4)
    top, bottom = body.subplots(2, 1, sharex=True)
    for axes, names in ((top, ("confidence", "threshold")), (bottom, ("gradient",))):
        for name in names:
            own = style.MARKS[("confidence", "threshold", "gradient").index(name)]
            axes.plot(arrays["block"], arrays[name][0], color=own.colour, marker=own.marker, linestyle=own.line,
                      label=name)  # fmt: skip
    window = bottom.twinx()
    window.step(arrays["block"], arrays["window"][0], where="mid", color="black", label="window (right)")
    window.spines["right"].set_visible(True)
    window.set_ylabel("window (blocks)")
    window.set_ylim(bottom=0)
    top.set_ylabel("confidence")
    bottom.set_ylabel("rescaled gradient")
    bottom.set_xlabel("block (from 0)")
    common.legend(body, [top, bottom, window], 4)
    note = "The first search round of the run: a block whose confidence is below its threshold is skipped."
    return common.finish(figure, replication, [cell], note)


def figure9(replication: Replication) -> Figure | Cannot:
    """The sets of search rounds 0, 3, 4 and 7, as far as the run went, with the tokens accepted in them."""
    cell = common.cells(replication)[0]
    rounds = layers.sequence(cell.run)
    if rounds.empty:
        return Cannot("No step of its run was drafted by layers.")
    last = int(rounds.index[-1])
    panels = []
    for i in sorted({i for i in ROUNDS if i <= last} | {last}):
        ids, steps, accepted = (rounds[name].tolist()[i] for name in ("layer_set_id", "steps", "accepted"))
        found = cell.run.layer_set(ids)
        title = f"round {i}: {layers.counts(found)}, mean {accepted:.2f} accepted, {steps} steps"
        panels.append(layers.Panel(title, found))
    figure, body = common.page(layers.width(panels), layers.height(len(panels)))
    layers.maps(body, [panels])
    note = f"A round is a set until another one drafts; this run has {last + 1}."
    if last < ROUNDS[-1]:
        note += f" Not reached of the paper's: {', '.join(str(i) for i in ROUNDS if i > last)}."
    return common.finish(figure, replication, [cell], note + " Paper: from 1.42 to 9.13 accepted tokens.")
