"""What is drawn along a stream of prompts: speedups so far, the tasks one after another, sets moved to other tasks."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ssd_bench import metrics, style
from ssd_bench.metrics import Measured, VariationLevel, intervals
from ssd_bench.papers import figures_shared as common
from ssd_bench.papers.cells import Cell, Replication
from ssd_bench.papers.figures_shared import Cannot, Shown
from ssd_bench.papers.reported import Number
from ssd_bench.records.reader import Run

DOMAINS = {
    "cnn_dm": "CNN/DM", "cnndm": "CNN/DM", "gsm8k": "GSM8K", "tinystories": "TinyStories", "wmt16": "WMT16 DE-EN",
    "wmt14": "WMT14 DE-EN", "spider2": "Spider2", "sql": "Spider2", "alpaca": "Alpaca", "xsum": "XSum", "math": "MATH",
    "natural_questions": "Natural Questions",
}  # fmt: skip
CUT = 1.3
"""An axis ends at this multiple of the highest interval of a task: a single prompt can be far above it."""
GAP = 0.06
"""Of a task's width, left free at both of its sides."""

QUANTITIES: dict[str, tuple[str, tuple[str, ...], Callable[..., Any]]] = {
    "speedup": ("speedup, decode (×)", ("tokens", "ms", "ar_tokens", "ar_ms"), intervals.ratio_of_ratios),
    "alpha": ("acceptance rate α", ("accepted", "drafted"), intervals.ratio_of_sums),
    "M": ("tokens per verification M", ("emitted", "passes"), intervals.ratio_of_sums),
}
"""Name -> label of its axis, the columns of `stream` that it is made of, and how."""


def domain(name: str) -> str:
    """A part of a stream as the papers call it."""
    return DOMAINS.get(name, name.replace("_", " "))


def stream(run: Run) -> pd.DataFrame:
    """The prompts that both arms decoded, in the order of the stream, one row each, the index counting from 1.

    Returns:
        Columns domain, prompt_index, repeat, tokens, ms, ar_tokens, ar_ms (decode only), accepted, drafted, emitted,
        passes (of the method).
    """
    keys = ["repeat", "prompt_index"]
    both = metrics.paired_rows(run.prompts)
    both = both.assign(tokens=(both["new_tokens"] - 1).clip(lower=0), ms=both["decode_ms"]).set_index(keys)
    method = both.loc[both["arm"] == "method", ["domain", "tokens", "ms"]]
    ar = both.loc[both["arm"] == "ar", ["tokens", "ms"]].add_prefix("ar_")
    columns = {"accepted_len": "accepted", "draft_len": "drafted", "emitted": "emitted", "passes": "passes"}
    steps = metrics.arm_rows(run.steps, "method").assign(passes=1).groupby(keys)[list(columns)].sum()
    rows = method.join(ar).join(steps.rename(columns=columns)).fillna(dict.fromkeys(columns.values(), 0))
    rows = rows.sort_index().reset_index()
    rows.index += 1
    return rows


def of_rows(rows: pd.DataFrame, quantity: str) -> float:
    """A quantity over these rows of a stream, NaN where it is not defined."""
    _, columns, statistic = QUANTITIES[quantity]
    with np.errstate(all="ignore"):
        value = float(statistic(*(rows[name].to_numpy(dtype=float) for name in columns)))
    return value if np.isfinite(value) else float("nan")


def each(rows: pd.DataFrame, quantity: str) -> list[float]:
    """A quantity of every row of a stream."""
    return [of_rows(rows.loc[[i]], quantity) for i in rows.index]


def measure_rows(rows: pd.DataFrame, quantity: str, noise: VariationLevel | None = None) -> Measured:
    """A quantity over these rows of a stream, with its interval over prompts, of a speedup over moments as well."""
    _, columns, statistic = QUANTITIES[quantity]
    sums = rows.groupby("prompt_index")[list(columns)].sum()
    number = intervals.measure(statistic, *(sums[name].to_numpy(dtype=float) for name in columns))
    return number if noise is None or quantity != "speedup" else intervals.widen(number, noise.speedup)


def cumulative(rows: pd.DataFrame, quantity: str = "speedup") -> pd.Series[float]:
    """A quantity over all prompts of a stream so far."""
    sums = rows[list(QUANTITIES[quantity][1])].cumsum()
    return pd.Series([of_rows(sums.loc[[i]], quantity) for i in sums.index], sums.index, dtype=float)


# --- prompt by prompt -------------------------------------------------------------------------------------------------


def so_far(axes: Axes, lines: Mapping[str, Cell], stops: Mapping[str, int | None] | None = None) -> None:
    """Speedup over all prompts so far, prompt by prompt, a curve for each trace; a star where a search stopped."""
    names = common.once(lines)
    for i, (label, cell) in enumerate(lines.items()):
        if label not in names:
            continue
        own, values = style.mark(label, i), cumulative(stream(cell.run))
        look = {"color": style.FAINT, "linestyle": style.DASHED} if cell.void else {"linestyle": own.line}
        axes.plot(
            values.index, values, markevery=max(1, len(values) // 8), label=names[label] + common.sign(cell),
            **common.points(own, cell.void) | look,
        )  # fmt: skip
        stop = (stops or {}).get(label)
        if stop is not None and not cell.void:
            axes.plot(
                stop, values[stop], marker="*", markersize=11, color=own.colour, markeredgecolor="black",
                linestyle="", zorder=4,
            )  # fmt: skip
    common.level(axes)
    axes.set_xlabel("prompts so far")
    common.whole(axes)


def last_change(cell: Cell) -> int | None:
    """Position in the stream of the last prompt in which the set changed or a search estimate was made."""
    steps = cell.run.steps[cell.run.steps["arm"] == "method"].sort_values(["repeat", "prompt_index", "step"])
    drafted = steps.dropna(subset=["layer_set_id"])
    changed = drafted[(drafted["layer_set_id"] != drafted["layer_set_id"].shift()).fillna(False).astype(bool)]
    events = pd.concat([changed, steps[steps["est_alpha"].notna()]])[["repeat", "prompt_index"]]
    rows = stream(cell.run).reset_index(names="position")
    found = rows.merge(events.drop_duplicates(), on=["repeat", "prompt_index"])["position"]
    return int(found.max()) if len(found) else None


# --- task by task -----------------------------------------------------------------------------------------------------


def along(replication: Replication, quantities: Sequence[str], dashed: str | None = None) -> Figure | Cannot:
    """Quantities along the stream, task by task: every prompt as a dot, and a value with its interval for each task.

    Args:
        dashed: method whose value over the whole stream is a dashed line, as in KNN-SSD's figures.
    """
    drawn = common.cells(replication)
    models = common.unique(cell["model"] for cell in drawn)
    figure, body = common.page(style.PAGE, 1.2 + 1.55 * len(quantities) * len(models))
    panels, above = body.subplots(len(quantities) * len(models), 1, squeeze=False)[:, 0], 0
    for i, axes in enumerate(panels):
        model, quantity = models[i // len(quantities)], quantities[i % len(quantities)]
        own = {cell["method"]: cell for cell in drawn if cell["model"] == model}
        found = common.reported(replication, quantity)
        asked = common.papers_model(replication, model)
        above += _tasks(axes, own, quantity, [number for number in found if number.model in ("", asked)])
        if dashed is not None and dashed in own:
            colour = style.mark(dashed, 0).colour
            axes.axhline(of_rows(stream(own[dashed].run), quantity), color=colour, linestyle=(0, (6, 3)), linewidth=0.8)
        axes.tick_params(axis="x", length=0, labelbottom=axes is panels[-1])
        if len(models) > 1 and i % len(quantities) == 0:
            axes.set_title(model, loc="left", fontweight="bold")
    panels[-1].set_xlabel("task, in the order of the stream")
    common.legend(body)
    note = "Small: a prompt each, in the order of the stream. Large: all prompts of a task, with 95 % intervals over"
    note += " them."
    if above:
        note += f" An axis ends at {CUT} times its highest interval: {above} of the small ones are above it."
    return common.finish(figure, replication, drawn, note + (f" Dashed: {dashed} over all." if dashed else ""))


def _tasks(axes: Axes, lines: Mapping[str, Cell], quantity: str, found: Sequence[Number]) -> int:
    """A column for each task, in it a strip for each curve; how many prompts are above the end of the axis."""
    names = common.once(lines)
    domains = common.unique(str(name) for cell in lines.values() for name in stream(cell.run)["domain"])
    heights, single = list[float](), list[float]()
    for slot, label in enumerate(names):
        cell, own = lines[label], style.mark(label, list(lines).index(label))
        rows, width = stream(cell.run), (1 - 2 * GAP) / len(names)
        for task, name in enumerate(domains):
            part = rows[rows["domain"] == name]
            left = task + GAP + slot * width
            places = left + width * (0.1 + 0.8 * (np.arange(len(part)) + 0.5) / max(1, len(part)))
            single += (values := each(part, quantity))
            axes.plot(places, values, color=own.colour, marker=own.marker, linestyle="", markersize=2.2,
                      alpha=0.5, markeredgewidth=0)  # fmt: skip
            number = common.shown(cell, measure_rows(part, quantity, cell.noise))
            heights += [end for end in (number.value, number.high) if end is not None]
            look: dict[str, Any] = {
                "markersize": 5.5,
                "markeredgecolor": "black",
                "markeredgewidth": 0.5,
                "ecolor": "black",
            }
            axes.errorbar(
                left + width / 2, float("nan") if number.value is None else number.value, yerr=common.error(number),
                **look | common.points(own, number.void), capsize=2, linestyle="", linewidth=0.9, zorder=3,
                label=None if task else names[label] + common.sign(cell),
            )  # fmt: skip
    if quantity == "speedup":
        common.level(axes)
    low, high = axes.get_ylim()
    axes.set_ylim(low, min(high, CUT * max(heights, default=high)))
    for theirs in found:
        if theirs.method in lines:
            common.theirs(axes, [theirs], _span(theirs, domains), style.mark(theirs.method, 0).marker)
    for start in range(1, len(domains)):
        axes.axvline(start, color=style.FAINT, linewidth=0.5)
    axes.set_xlim(0, len(domains))
    axes.set_xticks(np.arange(len(domains)) + 0.5, [textwrap.fill(domain(name), 14) for name in domains])
    axes.set_ylabel(textwrap.fill(QUANTITIES[quantity][0], 14))
    return sum(value > axes.get_ylim()[1] for value in single)


def _span(number: Number, domains: Sequence[str]) -> tuple[float, float]:
    """The tasks of a stream that a number of the paper is about: the first, all others, one, or all."""
    point, titles = number.settings.get("point"), [domain(name) for name in domains]
    first, last = 0, len(domains)
    if number.task in titles:
        first, last = titles.index(number.task), titles.index(number.task) + 1
    elif point == "before domain shift":
        last = 1
    elif point == "under domain shift" or number.task == "other tasks":
        first = 1
    return first + GAP / 2, last - GAP / 2


# --- sets moved to other tasks ----------------------------------------------------------------------------------------


def transfer(replication: Replication) -> Figure | Cannot:
    """Speedup of each task's set on each task: rows are the tasks searched on."""
    drawn = common.cells(replication)
    rows: dict[str, Cell] = {str(stream(cell.run)["domain"].iloc[0]): cell for cell in drawn}
    if len(rows) < 2:
        return Cannot(
            f"It needs runs that search on different tasks; those there are all search on {next(iter(rows))}."
        )
    table = [[_on(cell, name) for name in rows] for cell in rows.values()]
    values = np.array([[n.value if n and n.value and not n.void else np.nan for n in line] for line in table])
    figure, body = common.page(style.PAGE, 0.5 * len(rows) + 1.5)
    axes = body.subplots()
    known = values[~np.isnan(values)]
    far = max([1.05, *known, *(1 / known)])  # as far above AR's speed as below
    colours, norm = matplotlib.colormaps["PuOr"], TwoSlopeNorm(1.0, 1 / far, far)
    image = axes.imshow(values, cmap=colours, norm=norm, aspect="auto")
    theirs = {(n.settings.get("skip_set"), n.task): n for n in common.reported(replication, "speedup")}
    names = [cell.setting("skip_set") for cell in rows.values()]
    for (i, j), value in np.ndenumerate(values):
        number, paper = table[i][j], theirs.get((names[i], domain(list(rows)[j])))
        light = np.isnan(value) or float(np.dot(colours(norm(value))[:3], (0.299, 0.587, 0.114))) > 0.5
        text = _cell_text(number) + (f"\npaper: {common.printed(paper)}" if paper else "")
        axes.text(j, i, text, ha="center", va="center", fontsize=style.SMALL, color="black" if light else "white",
                  fontweight="bold" if i == j else "normal")  # fmt: skip
        if number and number.void:
            look: dict[str, Any] = {
                "facecolor": "white",
                "edgecolor": "#D0D0D0",
                "hatch": style.VOID_HATCH,
                "linewidth": 0,
            }
            axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, **look))
    labels = [textwrap.fill(name, 13, break_long_words=False) for name in names]
    axes.set_xticks(range(len(rows)), labels)
    axes.set_yticks(range(len(rows)), labels)
    axes.set_xlabel("decoded task")
    axes.set_ylabel("task that the set was searched on")
    axes.spines[:].set_visible(False)
    body.colorbar(image, ax=axes, label="speedup, decode (×)")
    note = "Below each value: its 95 % interval over prompts. Bold: the set's own task. Violet: faster than AR."
    return common.finish(figure, replication, drawn, note)


def _on(cell: Cell, name: str) -> Shown | None:
    """The speedup of a cell on a task of its stream."""
    rows = stream(cell.run)
    own = rows[rows["domain"] == name]
    return common.shown(cell, measure_rows(own, "speedup", cell.noise)) if len(own) else None


def _cell_text(number: Shown | None) -> str:
    if number is None or number.value is None:
        return "–"
    if number.void:
        return style.VOID
    text = f"{number.value:.2f}"
    return text if number.low is None else f"{text}\n[{number.low:.2f}, {number.high:.2f}]"
