"""One figure per task: how fast each method is beside AR, and where its time goes; drawn without global state."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ssd_bench.report.tables import Group
from ssd_bench.style import ACCOUNTS, AR_COLOUR, METHOD_COLOUR, STYLE


def task_figure(task: str, groups: Sequence[Group]) -> Figure:
    """Left: decode tokens/s with 95 % intervals, AR first. Right: milliseconds per token, split by account.

    One row of panels per group of comparable runs.
    """
    heights = [1.0 + 0.34 * len(group.rows) for group in groups]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.5, sum(heights) + 0.5), layout="constrained")
        figure.suptitle(task, fontweight="bold")
        axes = figure.subplots(len(groups), 2, squeeze=False, height_ratios=heights)
        for (left, right), group in zip(axes, groups, strict=True):
            _draw_speed(left, group)
            _draw_time(right, group)
            left.set_title(textwrap.fill(group.title, 60), fontsize=8, loc="left")
    return figure


def _labels(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    axes.set_yticks(range(len(rows)), [str(row["method"]) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)


def _draw_speed(axes: Axes, group: Group) -> None:
    for i, row in enumerate(group.rows):
        rate = row["method_tokens_per_s"] or 0.0
        axes.barh(
            i, rate, 0.7, color=AR_COLOUR if row["method"] == "ar" else METHOD_COLOUR, edgecolor="black", linewidth=0.5
        )
        low, high = row["method_tokens_per_s_lo"], row["method_tokens_per_s_hi"]
        if low is not None:
            axes.errorbar(rate, i, xerr=[[rate - low], [high - rate]], color="black", capsize=2, linewidth=1)
        if row["speedup"] is not None:
            axes.annotate(f"{row['speedup']:.2f}×", (high or rate, i), (4, 0), textcoords="offset points", va="center")
    _labels(axes, group.rows)
    axes.margins(x=0.18)
    axes.set_xlim(left=0)
    axes.set_xlabel("tokens/s, decode only; × speedup over AR of the same run")


def _draw_time(axes: Axes, group: Group) -> None:
    for i, row in enumerate(group.rows):
        rate, start = row["method_tokens_per_s"], 0.0
        for name, (colour, hatch) in ACCOUNTS.items():
            share = max(row[f"{name}_share"] or 0.0, 0.0)
            width = share * 1000 / rate if rate else 0.0
            label = name if i == 0 else None
            axes.barh(i, width, 0.7, start, color=colour, hatch=hatch, edgecolor="black", linewidth=0.5, label=label)
            start += width
    _labels(axes, group.rows)
    axes.tick_params(labelleft=False)
    axes.set_xlabel("ms per token")
    axes.legend(ncols=4, fontsize=7, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), handlelength=1.5)


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.pdf, the same bytes for the same records."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "pdf")]
    with matplotlib.rc_context(STYLE):
        figure.savefig(paths[0], dpi=200)
        figure.set_layout_engine("none")  # it is laid out now: once is enough for all formats
        figure.savefig(paths[1], metadata={"CreationDate": None})
    return paths
