"""Maps of layer sets: a row of squares for attentions, one for MLPs, filled where a sublayer is skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.patches import Patch, Rectangle

from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.papers.figures import style
from ssd_bench.papers.ours.values import method_steps
from ssd_bench.records.reader import Run

COLUMN_BLOCKS = 20
"""Most blocks that fit a paper's column."""


@dataclass(frozen=True)
class Panel:
    """Map of one layer set below a title; `layers` is None if missing (`title` says why)."""

    title: str
    layers: LayerSet | None
    excluded: bool = False

    @classmethod
    def of(cls, name: str, layers: LayerSet | None, missing: str, excluded: bool = False) -> Panel:
        """Return a set's map, titled with its numbers of skipped sublayers or with `missing`."""
        return cls(f"{name}: {missing if layers is None else skip_counts(layers)}", layers, excluded)


def skip_counts(layers: LayerSet) -> str:
    """Return the numbers of skipped attentions and MLPs and of all sublayers: `3 + 5 of 32`."""
    return f"{len(layers.skip_attn)} + {len(layers.skip_mlp)} of {2 * layers.n_layers}"


def map_width(panels: Sequence[Panel]) -> float:
    """Return the width in inches that makes sublayers of one column of maps about square."""
    most = max((panel.layers.n_layers for panel in panels if panel.layers), default=0)
    return style.COLUMN if most <= COLUMN_BLOCKS else style.PAGE


def map_height(rows: int) -> float:
    """Return the height in inches of rows of maps, with title and caption."""
    return 1.25 + 0.5 * rows


def draw_maps(body: SubFigure, columns: Sequence[Sequence[Panel]]) -> None:
    """Draw columns of maps, with blocks counted from 0 and one legend."""
    rows = max(map(len, columns))
    blocks = [max((p.layers.n_layers for p in column if p.layers), default=1) for column in columns]
    grid = body.subplots(rows, len(columns), squeeze=False, width_ratios=[max(n, 0.4 * max(blocks)) for n in blocks])
    for i, column in enumerate(columns):
        lowest = max((row for row, panel in enumerate(column) if panel.layers), default=0)
        for row, (axes, panel) in enumerate(zip(grid[:, i], column)):
            _draw_map(axes, panel, blocks[i])
            axes.tick_params(labelleft=i == 0, labelbottom=row == lowest)
        for axes in grid[len(column) :, i]:
            axes.set_axis_off()
    body.supxlabel("block (from 0)", fontsize=8)
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", linewidth=0, label=f"{name} skipped")
        for name, (colour, hatch) in (("attention", style.ATTENTION), ("MLP", style.MLP))
    ]
    handles.append(Patch(facecolor="white", edgecolor="#888888", linewidth=0.5, label="executed"))
    body.legend(handles=handles, loc="outside upper left", ncols=3)


def _draw_map(axes: Axes, panel: Panel, blocks: int) -> None:
    axes.set_title(f"{panel.title} {style.EXCLUDED}" if panel.excluded else panel.title, loc="left", fontsize=7, pad=2)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0, pad=1)
    axes.set_yticks([0.5, -0.5], ["attn", "MLP"])
    axes.set_ylim(-1, 1)
    if panel.layers is None:
        axes.set_xticks([])
        return
    n = panel.layers.n_layers
    kinds = ((0.0, panel.layers.skip_attn, style.ATTENTION), (-1.0, panel.layers.skip_mlp, style.MLP))
    for bottom, skipped, (colour, hatch) in kinds:
        for block in range(n):
            look: dict[str, Any] = {"facecolor": "white", "edgecolor": "#888888", "linewidth": 0.4}
            if block in skipped:
                look |= {"facecolor": colour, "hatch": hatch, "edgecolor": "white"}
                look |= {"alpha": 0.4 if panel.excluded else 1}
            axes.add_patch(Rectangle((block - 0.45, bottom + 0.07), 0.9, 0.86, **look))
    axes.set_xlim(-0.6, blocks - 0.4)
    axes.set_xticks(range(0, n, 4 if n <= 48 else 8))


def set_sequence(run: Run) -> pd.DataFrame:
    """Return one row per change of a run's set: layer_set_id, steps; mean, fewest, most (accepted tokens per step)."""
    steps = method_steps(run).dropna(subset=["layer_set_id"])
    rounds = (steps["layer_set_id"] != steps["layer_set_id"].shift()).fillna(True).astype(int).cumsum()
    accepted = steps.groupby(rounds)["accepted_len"].agg(steps="size", mean="mean", fewest="min", most="max")
    return accepted.assign(layer_set_id=steps.groupby(rounds)["layer_set_id"].first()).reset_index(drop=True)
