"""Figures along a stream of prompts: speedup so far, values by task, layer sets on other tasks."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from ssd_bench.papers.figures import shared as common
from ssd_bench.papers.figures import style, subjects
from ssd_bench.papers.figures.shared import NotDrawable, PlotValue
from ssd_bench.papers.ours.cells import Replication, ShownCell
from ssd_bench.papers.ours.values import method_steps
from ssd_bench.papers.printed.catalogue import NAMES
from ssd_bench.papers.printed.reported import Number
from ssd_bench.records.reader import Run
from ssd_bench.results.quantity import QUANTITIES
from ssd_bench.results.rows import arm_rows, paired_rows

AXIS_LIMIT = 1.3
"""End of an axis, as a multiple of a task's highest interval; single prompts can be far above."""
SO_FAR = "Speedup: ratio of totals over the prompts so far; right of each curve: all prompts, with the 95 % interval."
"""Caption of `draw_speedup_so_far`."""
MARGIN = 0.06
"""Unused share of a task's width, per side."""

AXES = {"speedup": "speedup, decode (×)", "alpha": "acceptance rate α", "M": "tokens per verification M"}
"""Quantity -> axis label."""


def domain_title(name: str) -> str:
    """Return the papers' name of a stream's task."""
    return str(NAMES["domains"].get(name, name.replace("_", " ")))


def stream_rows(run: Run) -> pd.DataFrame:
    """Return one row per prompt decoded by both arms, in the stream's order, indexed from 1.

    Columns are domain, prompt_index, repeat, tokens, ms, base_tokens, base_ms (of AR; decode only), accepted, drafted,
    emitted, steps (of the method).
    """
    keys = ["repeat", "prompt_index"]
    pairs = paired_rows(run.prompts)
    pairs = pairs.assign(tokens=(pairs["new_tokens"] - 1).clip(lower=0), ms=pairs["decode_ms"]).set_index(keys)
    method = pairs.loc[pairs["arm"] == "method", ["domain", "tokens", "ms"]]
    ar = pairs.loc[pairs["arm"] == "ar", ["tokens", "ms"]].add_prefix("base_")
    columns = {"accepted_len": "accepted", "draft_len": "drafted", "emitted": "emitted", "steps": "steps"}
    steps = arm_rows(run.steps, "method").assign(steps=1).groupby(keys)[list(columns)].sum()
    rows = method.join(ar).join(steps.rename(columns=columns)).fillna(dict.fromkeys(columns.values(), 0))
    rows = rows.sort_index().reset_index()
    rows.index += 1
    return rows


def pooled_value(rows: pd.DataFrame, quantity: str) -> float:
    """Return a quantity over all rows of a stream together; NaN if undefined."""
    statistic = QUANTITIES[quantity]
    with np.errstate(all="ignore"):
        value = float(statistic(*(rows[name].to_numpy(dtype=float) for name in statistic.columns)))
    return value if np.isfinite(value) else float("nan")


def row_values(rows: pd.DataFrame, quantity: str) -> list[float]:
    return [pooled_value(rows.loc[[i]], quantity) for i in rows.index]


def task_value(cell: ShownCell, name: str, quantity: str) -> PlotValue | None:
    """Return a number of a task of a stream, named as there or as in the papers; None if the stream lacks the task."""
    summaries = {domain_title(part.domain): part for part in cell.domains}
    if not summaries:
        return common.plot_value(cell, quantity) if name in set(cell.run.prompts["domain"]) else None
    part = summaries.get(domain_title(name))
    return None if part is None else common.plot_value(cell, part.number(quantity))


def cumulative_speedups(rows: pd.DataFrame) -> pd.Series[float]:
    sums = rows[list(QUANTITIES["speedup"].columns)].cumsum()
    return pd.Series(row_values(sums, "speedup"), sums.index, dtype=float)


# --- prompt by prompt -------------------------------------------------------------------------------------------------


def draw_speedup_so_far(
    axes: Axes, lines: Mapping[str, ShownCell], stops: Mapping[str, int | None] | None = None
) -> None:
    """Draw the speedup so far, prompt by prompt, a curve per trace, and the whole run's.

    A star marks the prompt in `stops` where a label's search stopped.
    """
    names = subjects.trace_labels(lines)
    places = whole_run_places(lines)
    for i, (label, cell) in enumerate(lines.items()):
        if label not in names:
            continue
        mark, values = style.mark(label, i), cumulative_speedups(stream_rows(cell.run))
        look = {"color": style.FAINT, "linestyle": style.DASHED} if cell.exclusion else {"linestyle": mark.line}
        axes.plot(
            values.index,
            values,
            markevery=max(1, len(values) // 8),
            label=names[label] + common.excluded_sign(cell),
            **common.point_style(mark, cell.exclusion) | look,
        )
        point = common.point_style(mark, cell.exclusion)
        common.draw_point(axes, places[label], cell.summary.speedup, linewidth=0.9, **point)
        stop = (stops or {}).get(label)
        if stop is not None and not cell.exclusion:
            star = point | {"marker": "*", "markersize": 11, "markeredgecolor": "black"}
            axes.plot(stop, values[stop], zorder=4, **star)
    common.draw_level(axes)
    axes.set_xlabel("prompts so far")
    last = max(len(stream_rows(cell.run)) for cell in lines.values())
    axes.set_xticks([tick for tick in MaxNLocator(integer=True).tick_values(0, last) if 1 <= tick <= last])


def whole_run_places(lines: Mapping[str, ShownCell]) -> dict[str, float]:
    """Return label -> x of the value over all prompts, right of the curves; labels of a trace share it."""
    last = max((len(stream_rows(cell.run)) for cell in lines.values()), default=1)
    traces = common.unique(cell.timing.trace for cell in lines.values())
    return {label: last * (1.07 + 0.07 * traces.index(cell.timing.trace)) for label, cell in lines.items()}


def last_change(cell: ShownCell) -> int | None:
    """Return the position of the last prompt with a changed set or a recorded estimate, if any."""
    steps = method_steps(cell.run)
    drafted = steps.dropna(subset=["layer_set_id"])
    changed = drafted[(drafted["layer_set_id"] != drafted["layer_set_id"].shift()).fillna(False).astype(bool)]
    events = pd.concat([changed, steps[steps["est_alpha"].notna()]])[["repeat", "prompt_index"]]
    rows = stream_rows(cell.run).reset_index(names="position")
    positions = rows.merge(events.drop_duplicates(), on=["repeat", "prompt_index"])["position"]
    return int(positions.max()) if len(positions) else None


# --- task by task -----------------------------------------------------------------------------------------------------


def stream_figure(
    replication: Replication, quantities: Sequence[str], dashed: str | None = None
) -> Figure | NotDrawable:
    """Draw quantities along the stream by task: a dot per prompt, a value with interval per task.

    The value of the method `dashed` over the stream is a dashed line, as in KNN-SSD's figures.
    """
    drawn = replication.shown_cells()
    models = common.unique(cell["model"] for cell in drawn)
    figure, body = common.new_figure(style.PAGE, 1.2 + 1.55 * len(quantities) * len(models))
    panels, cut_off = body.subplots(len(quantities) * len(models), 1, squeeze=False)[:, 0], 0
    for i, axes in enumerate(panels):
        model, quantity = models[i // len(quantities)], quantities[i % len(quantities)]
        by_method = {cell["method"]: cell for cell in drawn if cell["model"] == model}
        of_model = ("", common.paper_model(replication, model))
        reported = [n for n in common.paper_numbers(replication, quantity) if n.model in of_model]
        cut_off += _draw_tasks(axes, by_method, quantity, reported)
        if dashed is not None and dashed in by_method:
            level = pooled_value(stream_rows(by_method[dashed].run), quantity)
            axes.axhline(level, color=style.mark(dashed, 0).colour, linestyle=(0, (6, 3)), linewidth=0.8)
        axes.tick_params(axis="x", length=0, labelbottom=axes is panels[-1])
        if len(models) > 1 and i % len(quantities) == 0:
            axes.set_title(model, loc="left", fontweight="bold")
    panels[-1].set_xlabel("task, in the order of the stream")
    note = "Small markers: single prompts, in the order of the stream. Large markers: all prompts of a task, with 95 %"
    note += " intervals over prompts."
    if cut_off:
        note += f" Each axis ends at {AXIS_LIMIT} times its highest interval; {cut_off} small markers are above it."
    return common.finish(figure, replication, drawn, note + (f" Dashed: {dashed} over all prompts." if dashed else ""))


def _draw_tasks(axes: Axes, lines: Mapping[str, ShownCell], quantity: str, reported: Sequence[Number]) -> int:
    """Draw a column per task with a strip per curve; return the number of prompts above the axis."""
    names = subjects.trace_labels(lines)
    domains = common.unique(str(name) for cell in lines.values() for name in stream_rows(cell.run)["domain"])
    heights, prompt_values = list[float](), list[float]()
    for slot, label in enumerate(names):
        cell, mark = lines[label], style.mark(label, list(lines).index(label))
        rows, width = stream_rows(cell.run), (1 - 2 * MARGIN) / len(names)
        for task, name in enumerate(domains):
            part = rows[rows["domain"] == name]
            left = task + MARGIN + slot * width
            places = left + width * (0.1 + 0.8 * (np.arange(len(part)) + 0.5) / max(1, len(part)))
            prompt_values += (values := row_values(part, quantity))
            axes.plot(places, values, markersize=2.2, alpha=0.5, markeredgewidth=0, **common.point_style(mark))
            number = task_value(cell, name, quantity) or PlotValue(None, exclusion=cell.exclusion)
            heights += [end for end in (number.value, number.high) if end is not None]
            look: dict[str, Any] = {"markersize": 5.5, "markeredgecolor": "black", "markeredgewidth": 0.5}
            look |= {"ecolor": "black", "linewidth": 0.9, "zorder": 3} | common.point_style(mark, number.exclusion)
            named = None if task else names[label] + common.excluded_sign(cell)
            common.draw_point(axes, left + width / 2, number, label=named, **look)
    if quantity == "speedup":
        common.draw_level(axes)
    low, high = axes.get_ylim()
    axes.set_ylim(low, min(high, AXIS_LIMIT * max(heights, default=high)))
    for paper_number in reported:
        if paper_number.method in lines:
            common.draw_paper_numbers(
                axes, [paper_number], _task_span(paper_number, domains), style.mark(paper_number.method, 0).marker
            )
    for start in range(1, len(domains)):
        axes.axvline(start, color=style.FAINT, linewidth=0.5)
    axes.set_xlim(0, len(domains))
    axes.set_xticks(np.arange(len(domains)) + 0.5, [textwrap.fill(domain_title(name), 14) for name in domains])
    axes.set_ylabel(textwrap.fill(AXES[quantity], 14))
    return sum(value > axes.get_ylim()[1] for value in prompt_values)


def _task_span(number: Number, domains: Sequence[str]) -> tuple[float, float]:
    """Return the x range of the tasks covered by a paper's number: one, the first, all others, or all."""
    point, titles = number.settings.get("point"), [domain_title(name) for name in domains]
    first, last = 0, len(domains)
    if number.task in titles:
        first, last = titles.index(number.task), titles.index(number.task) + 1
    elif point == "before domain shift":
        last = 1
    elif point == "under domain shift" or number.task == "other tasks":
        first = 1
    return first + MARGIN / 2, last - MARGIN / 2


# --- sets moved to other tasks ----------------------------------------------------------------------------------------


def transfer_figure(replication: Replication) -> Figure | NotDrawable:
    """Draw the speedup of each task's set on each task; rows are tasks searched on."""
    drawn = replication.shown_cells()
    rows: dict[str, ShownCell] = {str(stream_rows(cell.run)["domain"].iloc[0]): cell for cell in drawn}
    if len(rows) < 2:
        return NotDrawable(
            f"This figure needs runs that search on different tasks; the available runs all search on "
            f"{next(iter(rows))}."
        )
    table = [[task_value(cell, name, "speedup") for name in rows] for cell in rows.values()]
    values = np.array([[n.value if n and n.value and not n.exclusion else np.nan for n in line] for line in table])
    figure, body = common.new_figure(style.PAGE, 0.5 * len(rows) + 1.5)
    axes = body.subplots()
    defined = values[~np.isnan(values)]
    extreme = max([1.05, *defined, *(1 / defined)])  # as far above AR's speed as below
    colours, norm = matplotlib.colormaps["PuOr"], TwoSlopeNorm(1.0, 1 / extreme, extreme)
    image = axes.imshow(values, cmap=colours, norm=norm, aspect="auto")
    reported = {(n.settings.get("skip_set"), n.task): n for n in common.paper_numbers(replication, "speedup")}
    names = [cell.setting("skip_set") for cell in rows.values()]
    for (i, j), value in np.ndenumerate(values):
        number, paper = table[i][j], reported.get((names[i], domain_title(list(rows)[j])))
        light = np.isnan(value) or float(np.dot(colours(norm(value))[:3], (0.299, 0.587, 0.114))) > 0.5
        text = _cell_text(number) + (f"\npaper: {common.printed_text(paper)}" if paper else "")
        colour, weight = "black" if light else "white", "bold" if i == j else "normal"
        axes.text(j, i, text, ha="center", va="center", fontsize=style.SMALL, color=colour, fontweight=weight)
        if number and number.exclusion:
            look: dict[str, Any] = {"facecolor": "white", "edgecolor": "#D0D0D0", "linewidth": 0}
            axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, hatch=style.EXCLUDED_HATCH, **look))
    labels = [textwrap.fill(name, 13, break_long_words=False) for name in names]
    axes.set_xticks(range(len(rows)), labels)
    axes.set_yticks(range(len(rows)), labels)
    axes.set_xlabel("decoded task")
    axes.set_ylabel("task that the set was searched on")
    axes.spines[:].set_visible(False)
    body.colorbar(image, ax=axes, label="speedup, decode (×)")
    note = "Brackets: 95 % intervals over prompts. Bold: the task that the set was searched on. Violet: faster than AR."
    return common.finish(figure, replication, drawn, note)


def _cell_text(number: PlotValue | None) -> str:
    if number is None or number.value is None:
        return "–"
    if number.exclusion:
        return style.EXCLUDED
    text = f"{number.value:.2f}"
    return text if number.low is None else f"{text}\n[{number.low:.2f}, {number.high:.2f}]"
