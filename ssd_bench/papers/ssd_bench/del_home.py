"""DEL on weights trained for early exits and on stock weights: does training cause its gain?

DEL's authors report 2.16 to 2.62 times AR on LayerSkip's checkpoints; KnapSpec's and ConfLayers' authors report less
than AR on stock weights; nobody has run both. The criterion was fixed before any run: DEL's speedup over AR on trained
weights, relative to stock weights, end to end as both sides count, with its 95 % interval over prompts. The jackknife
leaves a prompt out of both. The interval includes run-to-run variation if measured for both models.

| ratio's interval | DEL on trained weights | verdict |
|---|---|---|
| above 1 | its interval is above 1 | training explains the gain |
| above 1 | otherwise | training helps, but no gain over AR is sure |
| below 1 | | training lowers it |
| contains 1, or is missing | | undecided |

Over all tasks: geometric means, tasks weighted equally.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ssd_bench.papers.ours.cells import Cell, Replication
from ssd_bench.papers.printed.catalogue import version_name
from ssd_bench.papers.printed.reported import find_numbers, numbers
from ssd_bench.records.reader import Run
from ssd_bench.results.definitions import searched_drafts
from ssd_bench.results.effect import Effect
from ssd_bench.results.prompt_table import PromptTable
from ssd_bench.results.quantity import QUANTITIES, Array, measure
from ssd_bench.results.rows import arm_rows
from ssd_bench.results.text import ABSENT, DECODE, END_TO_END, format_lossless, format_measured, format_number

DEL_HOME = "ssd_bench_del_home"
"""Name of the experiment."""
PAIRS: Mapping[str, str] = {"LayerSkip-Llama3.2-1B": "Llama3.2-1B", "LayerSkip-LLaMA-3-8B": "LLaMA-3-8B"}
"""Label of trained weights -> label of their stock weights."""
JUDGED = "DEL"
AUTHORS = "DEL 2.16 to 2.62 (LayerSkip weights, overall)"
"""Abstract of arXiv 2504.05598v2: over all models and tasks. Its first version says 2.16 to 2.50."""

EXPLAINS = "training explains the gain"
HELPS = "training helps, but no gain over AR is sure"
LOWERS = "training lowers it"
UNDECIDED = "undecided"

OVER, OVER_DECODE = "trained over stock, end to end", "trained over stock, decode"
VERDICT, ALL = "verdict", "all tasks"


def verdict(ratio: Effect | None, trained: Effect | None) -> str:
    """Return the verdict, by the module's table, on the trained weights' speedup and its ratio to the stock ones'."""
    if ratio is None:
        return UNDECIDED
    low, high = ratio.interval
    if low > 1:
        return EXPLAINS if trained is not None and trained.interval[0] > 1 else HELPS
    return LOWERS if high < 1 else UNDECIDED


@dataclass(frozen=True)
class WeightsPair:
    """Runs of a task and a method on trained and stock weights.

    Attributes:
        labels: the papers' models represented by the runs.
        exclusion: why one is excluded, or "".
    """

    trained: Cell
    stock: Cell
    labels: tuple[str, ...]
    exclusion: str

    @property
    def reason(self) -> str:
        """Reason why the runs cannot be compared; else ""."""
        if self.trained.path == self.stock.path:
            return "at this scale one model represents both"
        return f"excluded: {self.exclusion}" if self.exclusion else ""

    def ratio(self, end_to_end: bool) -> Effect | None:
        """Return the speedup on trained weights over stock weights."""
        joined = _times(self.trained.run, end_to_end).join(_times(self.stock.run, end_to_end), rsuffix="_stock")
        columns = joined.dropna().to_numpy().T
        return Effect.of(measure(_ratio_of_speedups, *columns), self._timing_variances())

    def speedup(self) -> Effect | None:
        """Return the speedup on trained weights, end to end."""
        measured = PromptTable(self.trained.run.prompts).number("speedup_e2e")
        return Effect.of(measured, self._timing_variances()[:1])

    def _timing_variances(self) -> list[tuple[float, float]]:
        """Return variance and degrees of freedom of run-to-run variation, trained and stock; [] unless both exist."""
        levels = [cell.variation for cell in (self.trained, self.stock)]
        variances = [(level.speedup.sigma**2, float(level.speedup.dof)) for level in levels if level is not None]
        return variances if len(variances) == len(levels) else []


def _ratio_of_speedups(*columns: Array, axis: int = -1) -> Array:
    """Return the first four columns' speedup over the last four's."""
    speedup = QUANTITIES["speedup"]
    return np.asarray(speedup(*columns[:4], axis=axis) / speedup(*columns[4:], axis=axis))


def _times(run: Run, end_to_end: bool) -> pd.DataFrame:
    """Return tokens and times of the method and AR by prompt id, independent of the model."""
    times = PromptTable(run.prompts).frame(QUANTITIES["speedup_e2e" if end_to_end else "speedup"])
    ids = run.prompts.drop_duplicates("prompt_index").set_index("prompt_index")["prompt_id"]
    return times.set_index(ids.reindex(times.index).to_numpy())


def weights_pairs(replication: Replication) -> list[WeightsPair]:
    """Return every task and method with runs on both weights; at a small scale one pair represents several."""
    pairs: dict[Any, WeightsPair] = {}
    for cell in replication.recorded_cells():
        stock = PAIRS.get(cell["model"])
        for stock_cell in replication.recorded_cells(task=cell["task"], method=cell["method"], model=stock or ""):
            key = (cell.path, stock_cell.path)
            labels = (*(pairs[key].labels if key in pairs else ()), cell["model"], stock_cell["model"])
            exclusion = replication.exclusions[cell] or replication.exclusions[stock_cell]
            pairs[key] = WeightsPair(cell, stock_cell, labels, exclusion)
    return [pair for pair in pairs.values() if pair.trained.is_readable and pair.stock.is_readable]


def table(replication: Replication) -> pd.DataFrame:
    """Return the table of every task, method and set of weights, with the verdict on the ratio of speedups.

    Returns:
        Texts with 95 % intervals: the exit in blocks (for DEL the mean), α, M, tokens/s of AR, both speedups, outputs
        equal to AR's, the papers' numbers; for trained weights the ratios and, for DEL, the verdict. The last row of
        each pair pools all tasks.
    """
    rows: list[dict[str, str]] = []
    by_models: dict[tuple[str, str], list[WeightsPair]] = {}
    for weights_pair in weights_pairs(replication):
        models = (weights_pair.trained.model_ran.text, weights_pair.stock.model_ran.text)
        by_models.setdefault(models, []).append(weights_pair)
    for (trained, stock), task_pairs in by_models.items():
        for weights_pair in task_pairs:
            rows += _rows(weights_pair)
        rows += _pooled_row(f"{trained} / {stock}", [pair for pair in task_pairs if pair.trained["method"] == JUDGED])
    return pd.DataFrame(rows).fillna("")


def _rows(pair: WeightsPair) -> Iterator[dict[str, str]]:
    judged = pair.trained["method"] == JUDGED
    for cell, weights in ((pair.trained, "trained for exits"), (pair.stock, "stock")):
        summary = cell.summary
        row = {
            "model": cell.model_ran.text,
            "weights": weights,
            "task": cell["task"],
            "method": cell["method"],
            "exit": _exit_text(cell.run),
            "α": format_measured(summary.alpha, 3),
            "M": format_measured(summary.M),
            "tokens/s, AR": format_number(summary.ar_tokens_per_s.value, 0),
            DECODE: format_measured(summary.speedup),
            END_TO_END: format_measured(summary.speedup_e2e),
            "equal to AR": format_lossless(summary.row),
            "papers, as given": _papers_text(pair, cell) if judged else "",
        }
        if cell is pair.trained and not pair.reason:
            ratio = pair.ratio(end_to_end=True)
            row |= {OVER: _effect_text(ratio), OVER_DECODE: _effect_text(pair.ratio(end_to_end=False))}
            row |= {VERDICT: verdict(ratio, pair.speedup())} if judged else {}
        elif cell is pair.trained:
            row |= {OVER: ABSENT, OVER_DECODE: ABSENT} | ({VERDICT: f"{UNDECIDED}: {pair.reason}"} if judged else {})
        yield row


def _pooled_row(models: str, task_pairs: Sequence[WeightsPair]) -> Iterator[dict[str, str]]:
    """Yield the row that pools all tasks with comparable runs of DEL, if any."""
    comparable = [weights_pair for weights_pair in task_pairs if not weights_pair.reason]
    if not comparable:
        return
    pooled: dict[str, Effect | None] = {}
    for name, effects in (
        (OVER, [weights_pair.ratio(end_to_end=True) for weights_pair in comparable]),
        (OVER_DECODE, [weights_pair.ratio(end_to_end=False) for weights_pair in comparable]),
        (END_TO_END, [weights_pair.speedup() for weights_pair in comparable]),
    ):
        defined = [effect for effect in effects if effect is not None]
        pooled[name] = Effect.mean(defined) if defined and len(defined) == len(effects) else None
    yield {
        "model": models,
        "weights": "trained over stock",
        "task": f"{ALL} ({len(comparable)})",
        "method": JUDGED,
        OVER: _effect_text(pooled[OVER]),
        OVER_DECODE: _effect_text(pooled[OVER_DECODE]),
        VERDICT: verdict(pooled[OVER], pooled[END_TO_END]),
    }


def _effect_text(effect: Effect | None) -> str:
    return ABSENT if effect is None else str(effect)


def _exit_text(run: Run) -> str:
    """Return the drafting blocks and all blocks: mean over steps with a searched exit."""
    chosen = searched_drafts(arm_rows(run.steps, "method"))
    if chosen.empty:
        return ABSENT
    sets = run.layer_sets.set_index("layer_set_id")
    blocks = sets["n_layers"] - sets["skip_attn"].map(len)
    return f"{chosen['layer_set_id'].map(blocks).mean():.1f} of {int(sets['n_layers'].iloc[0])}"


def _papers_text(pair: WeightsPair, cell: Cell) -> str:
    """Return the papers' speedups of DEL on these weights and this task, for every model represented by the run."""
    if cell is pair.trained:
        return AUTHORS
    texts = [
        f"{version_name(entry.paper)} {entry.exhibit} {entry.printed} ({entry.model})"
        for entry in numbers()
        if entry.method == JUDGED
        and entry.metric == "speedup"
        and entry.task == cell["task"]
        and entry.model in pair.labels
    ]
    return "; ".join(texts) or ABSENT


def note() -> str:
    """Return sentences on the criterion and the papers' numbers."""
    values = [entry.value for entry in find_numbers("knapspec", "Table 2", method=JUDGED, metric="speedup")]
    return (
        "The verdict follows from the ratio of DEL's end-to-end speedup on trained weights to that on stock weights. "
        f"Interval above 1: {EXPLAINS} (if the interval of DEL on trained weights includes 1: {HELPS}); below 1: "
        f"{LOWERS}; otherwise: {UNDECIDED}. Intervals: 95 % over prompts, which are the same on both weights; they "
        "include run-to-run variation if it was measured for both models. All tasks: geometric means. Exit: number of "
        "blocks that draft; for DEL the mean of its choices. "
        f"Papers: in the {len(values)} cells of KnapSpec's Table 2, DEL has {min(values):.2f} to {max(values):.2f} "
        "times AR's speed, on stock weights; DEL's abstract (arXiv 2504.05598v2) states 2.16 to 2.62 over its models "
        "and tasks on LayerSkip's checkpoints, without naming them."
    )
