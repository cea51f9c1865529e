"""Is DEL's gain that of weights trained for early exits? One code on such weights and on the same without.

DEL's authors report 2.16 to 2.62 times AR on LayerSkip's checkpoints, KnapSpec's and ConfLayers' authors less than AR
on stock weights; nobody has run both. What decides was written before any run of it: the ratio of DEL's two speedups
over AR, trained over stock, end to end as both sides count, and its 95 % interval over prompts, which are the same on
both and are left out together. Moments count where the folder has the noise floors of both models.

| ratio's interval | DEL on trained weights | verdict |
|---|---|---|
| above 1 | its interval above 1 | training explains the gain |
| above 1 | else | training helps, but no gain over AR is sure |
| below 1 | | training lowers it |
| holds 1, or there is none | | undecided |

Of all tasks together: geometric means, each task weighing the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from ssd_bench import metrics
from ssd_bench.metrics import intervals
from ssd_bench.metrics.intervals import LEVEL, Array, Measured
from ssd_bench.metrics.text import ABSENT, DECODE, END_TO_END, format_interval, format_lossless, format_number
from ssd_bench.papers.cells import Cell, Replication
from ssd_bench.papers.reported import numbers
from ssd_bench.papers.rooms import name_of
from ssd_bench.records.reader import Run

DEL_HOME = "ssd_bench_del_home"
"""Its experiment."""
PAIRS: Mapping[str, str] = {"LayerSkip-Llama3.2-1B": "Llama3.2-1B", "LayerSkip-LLaMA-3-8B": "LLaMA-3-8B"}
"""Labels of the trained weights -> of the stock ones that they were trained from."""
JUDGED = "DEL"
AUTHORS = "DEL 2.16 to 2.62 (LayerSkip weights, overall)"
"""Abstract of arXiv 2504.05598v2: over all its models and tasks. Its first version says 2.16 to 2.50."""

EXPLAINS = "training explains the gain"
HELPS = "training helps, but no gain over AR is sure"
LOWERS = "training lowers it"
UNDECIDED = "undecided"

OVER, OVER_DECODE = "trained over stock, end to end", "trained over stock, decode"
VERDICT, ALL = "verdict", "all tasks"


@dataclass(frozen=True)
class Effect:
    """A positive number with what its logarithm varies by.

    Attributes:
        parts: variances, each with its degrees of freedom, of what is independent of one another.
    """

    value: float
    parts: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, measured: Measured, moments: Sequence[tuple[float, float]] = ()) -> Effect | None:
        """A number with its interval over prompts; None without one."""
        if not measured.value or not measured.low or not measured.high:
            return None
        quantile = float(stats.t.ppf((1 + LEVEL) / 2, measured.n - 1))
        prompts = (math.log(measured.high / measured.low) / 2 / quantile) ** 2
        return cls(measured.value, ((prompts, measured.n - 1), *moments))

    @classmethod
    def mean(cls, effects: Sequence[Effect]) -> Effect:
        """The geometric mean of effects on different prompts."""
        count = len(effects)
        value = math.exp(sum(math.log(one.value) for one in effects) / count)
        return cls(value, tuple((part / count**2, dof) for one in effects for part, dof in one.parts))

    @property
    def interval(self) -> tuple[float, float]:
        """Variances added up, degrees of freedom by Welch and Satterthwaite."""
        total = sum(part for part, _ in self.parts)
        dof = total**2 / sum(part**2 / dof for part, dof in self.parts)
        reach = float(stats.t.ppf((1 + LEVEL) / 2, dof)) * math.sqrt(total)
        return self.value * math.exp(-reach), self.value * math.exp(reach)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.2f} [{low:.2f}, {high:.2f}]"


def verdict(ratio: Effect | None, trained: Effect | None) -> str:
    """What the ratio of the two speedups decides, by the table above.

    Args:
        trained: speedup on trained weights.
    """
    if ratio is None:
        return UNDECIDED
    low, high = ratio.interval
    if low > 1:
        return EXPLAINS if trained is not None and trained.interval[0] > 1 else HELPS
    return LOWERS if high < 1 else UNDECIDED


@dataclass(frozen=True)
class Place:
    """A task and a method on two sets of weights, with the labels of all pairs that these runs stand for."""

    trained: Cell
    stock: Cell
    labels: tuple[str, ...]

    @property
    def why(self) -> str:
        """Why the two cannot be compared; "" where they can."""
        if self.trained.path == self.stock.path:
            return "one model stands for both"
        return next((f"void: {cell.void}" for cell in (self.trained, self.stock) if cell.void), "")

    def ratio(self, end_to_end: bool) -> Effect | None:
        """Speedup on trained weights over that on stock weights."""
        both = _times(self.trained.run, end_to_end).join(_times(self.stock.run, end_to_end), rsuffix="_stock")
        columns = both.dropna().to_numpy().T
        return Effect.of(intervals.measure(_ratio, *columns), self._moments())

    def speedup(self) -> Effect | None:
        """End to end, on trained weights."""
        found = metrics.speedup(self.trained.run.prompts, end_to_end=True)
        return Effect.of(found, self._moments()[:1])

    def _moments(self) -> list[tuple[float, float]]:
        """Of the trained and of the stock weights; none where only one of the two has them measured."""
        levels = [cell.noise for cell in (self.trained, self.stock)]
        found = [(level.speedup.sigma**2, float(level.speedup.dof)) for level in levels if level is not None]
        return found if len(found) == len(levels) else []


def _ratio(*columns: Array, axis: int = -1) -> Array:
    """Of eight columns, the speedup of the first four over that of the others."""
    (a, b, c, d), (e, f, g, h) = columns[:4], columns[4:]
    return np.asarray(intervals.ratio_of_ratios(a, b, c, d, axis) / intervals.ratio_of_ratios(e, f, g, h, axis))


def _times(run: Run, end_to_end: bool) -> pd.DataFrame:
    """Tokens and times of the method and of AR by the prompt's id, which does not depend on the model."""
    both = metrics.paired_rows(run.prompts)
    own, ar = (metrics.token_times(metrics.arm_rows(both, arm), end_to_end) for arm in ("method", "ar"))
    found = own.join(ar.add_prefix("ar_"))
    ids = run.prompts.drop_duplicates("prompt_index").set_index("prompt_index")["prompt_id"]
    return found.set_index(ids.reindex(found.index).to_numpy())


def places(replication: Replication) -> list[Place]:
    """Every task and method that was run on both weights; at a small scale one of them stands for several pairs."""
    found: dict[Any, Place] = {}
    for cell in replication.where():
        stock = PAIRS.get(cell["model"])
        for other in replication.where(task=cell["task"], method=cell["method"], model=stock or ""):
            key, labels = (cell.path, other.path), (cell["model"], other["model"])
            found[key] = Place(cell, other, (*(found[key].labels if key in found else ()), *labels))
    return [
        one for one in found.values() if not any(cell.record and cell.record.error for cell in (one.trained, one.stock))
    ]


def table(replication: Replication) -> pd.DataFrame:
    """Every task, method and set of weights, and what the ratio of the two speedups decides.

    Returns:
        Texts with 95 % intervals: the exit in blocks (of DEL the mean of those that it chose), α, M, tokens/s of AR,
        both speedups, outputs equal to AR's, what papers report, the ratios beside the trained weights and, of DEL,
        the verdict; a last row of each pair is of all tasks.
    """
    rows: list[dict[str, str]] = []
    pairs: dict[tuple[str, str], list[Place]] = {}
    for place in places(replication):
        pairs.setdefault((_model(place.trained), _model(place.stock)), []).append(place)
    for (trained, stock), own in pairs.items():
        for place in own:
            rows += _rows(place)
        rows += _together(f"{trained} / {stock}", [one for one in own if one.trained["method"] == JUDGED])
    return pd.DataFrame(rows).fillna("")


def _model(cell: Cell) -> str:
    return cell.ran.text


def _rows(place: Place) -> Iterator[dict[str, str]]:
    """Of a task and a method the trained weights, and below them the stock ones."""
    judged = place.trained["method"] == JUDGED
    for cell, weights in ((place.trained, "trained for exits"), (place.stock, "stock")):
        summary = cell.summary
        row = {
            "model": _model(cell), "weights": weights, "task": cell["task"], "method": cell["method"],
            "exit": _exit(cell.run), "α": format_interval(summary, "alpha", 3), "M": format_interval(summary, "M"),
            "tokens/s, AR": format_number(summary["ar_tokens_per_s"], 0), DECODE: format_interval(summary, "speedup"),
            END_TO_END: format_interval(summary, "speedup_e2e"), "equal to AR": format_lossless(summary),
            "papers, as given": _reported(place, cell) if judged else "",
        }  # fmt: skip
        if cell is place.trained and not place.why:
            ratio = place.ratio(end_to_end=True)
            row |= {OVER: _text(ratio), OVER_DECODE: _text(place.ratio(end_to_end=False))}
            row |= {VERDICT: verdict(ratio, place.speedup())} if judged else {}
        elif cell is place.trained:
            row |= {OVER: ABSENT, OVER_DECODE: ABSENT} | ({VERDICT: f"{UNDECIDED}: {place.why}"} if judged else {})
        yield row


def _together(pair: str, own: Sequence[Place]) -> Iterator[dict[str, str]]:
    """The row of all tasks on which DEL was run and can be compared."""
    able = [place for place in own if not place.why]
    if not able:
        return
    found: dict[str, Effect | None] = {}
    for name, effects in (
        (OVER, [place.ratio(end_to_end=True) for place in able]),
        (OVER_DECODE, [place.ratio(end_to_end=False) for place in able]),
        (END_TO_END, [place.speedup() for place in able]),
    ):
        there = [one for one in effects if one is not None]
        found[name] = Effect.mean(there) if there and len(there) == len(effects) else None
    yield {
        "model": pair, "weights": "trained over stock", "task": f"{ALL} ({len(able)})", "method": JUDGED,
        OVER: _text(found[OVER]), OVER_DECODE: _text(found[OVER_DECODE]),
        VERDICT: verdict(found[OVER], found[END_TO_END]),
    }  # fmt: skip


def _text(effect: Effect | None) -> str:
    return ABSENT if effect is None else str(effect)


def _exit(run: Run) -> str:
    """Blocks that draft, mean over the steps whose exit was chosen, or over all where none is; of how many."""
    steps = metrics.arm_rows(run.steps, "method").dropna(subset=["layer_set_id"])
    chosen = steps[steps["searched"].fillna(True).astype(bool)]
    if chosen.empty:
        return ABSENT
    sets = run.layer_sets.set_index("layer_set_id")
    blocks = sets["n_layers"] - sets["skip_attn"].map(len)
    return f"{chosen['layer_set_id'].map(blocks).mean():.1f} of {int(sets['n_layers'].iloc[0])}"


def _reported(place: Place, cell: Cell) -> str:
    """What papers report of DEL on these weights and this task; a model each that the run stands for."""
    if cell is place.trained:
        return AUTHORS
    found = [
        f"{name_of(one.paper)} {one.exhibit} {one.printed} ({one.model})" for one in numbers()
        if one.method == JUDGED and one.metric == "speedup" and one.task == cell["task"] and one.model in place.labels
    ]  # fmt: skip
    return "; ".join(found) or ABSENT


def note() -> str:
    """What decides, and what the papers' figures are."""
    given = [one for one in numbers() if (one.paper, one.exhibit) == ("knapspec", "Table 2")]
    values = [one.value for one in given if one.method == JUDGED and one.metric == "speedup"]
    return (
        f"Of the ratio of DEL's two speedups, trained over stock weights, end to end: interval above 1: {EXPLAINS} "
        f"(where DEL on trained weights is not surely above 1 itself: {HELPS}); below 1: {LOWERS}; else {UNDECIDED}. "
        "Intervals: 95 %, over prompts, which are the same on both weights; moments count where their noise floor was "
        "measured for both. All tasks: geometric means. Exit: blocks that draft, of DEL the mean of its choices. "
        f"Papers: KnapSpec's Table 2 has DEL at {min(values):.2f} to {max(values):.2f} times AR in all its "
        f"{len(values)} cells, on stock weights; DEL's abstract (arXiv 2504.05598v2) says 2.16 to 2.62 over its "
        "models and tasks, LayerSkip's checkpoints, without saying which of them."
    )
