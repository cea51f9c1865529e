"""Statistics of claims on the records, prompt by prompt, so that prompts can be left out; and parts of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.papers.claims.claims import STATISTICS
from ssd_bench.papers.ours import select, values
from ssd_bench.papers.ours.cells import Cell
from ssd_bench.records.reader import Run
from ssd_bench.records.schema import PAIR
from ssd_bench.results.definitions import main_set, searched_drafts, skipped_shares
from ssd_bench.results.modelled import SPANS, ModelledTimes
from ssd_bench.results.prompt_table import PromptTable, frame_of_steps
from ssd_bench.results.quantity import QUANTITIES, Array, Quantity, ratio_of_sums
from ssd_bench.results.repetition import looping_prompts
from ssd_bench.results.rows import arm_rows, paired_rows

NO_DRAFTS = "the run drafted no tokens with a searched layer set"


@dataclass(frozen=True)
class StatisticSample:
    """Data of a statistic from runs.

    Attributes:
        prompts: [n] hash of each row's prompt; "" for one number per run.
        columns: [n, c] arguments of the formula.
    """

    prompts: np.ndarray[tuple[int], np.dtype[np.str_]]
    columns: Array
    formula: Callable[..., Array]

    def value(self, without: str | None = None) -> float:
        """Return the statistic of all prompts, or all but one; NaN if undefined."""
        rows = self.columns if without is None else self.columns[self.prompts != without]
        with np.errstate(all="ignore"):
            return float(self.formula(*rows.T)) if len(rows) else float("nan")


def take_sample(
    cells: Sequence[Cell], statistic: str, part: Mapping[str, str], modelled: bool = False
) -> StatisticSample | str:
    """Return the sample of a statistic over these cells' runs, or why one lacks it.

    Args:
        part: axis of `claims.PARTS` -> label, and `part` -> the part of a stream.
        modelled: use each run's reference machine's times.
    """
    frames = []
    for cell in cells:
        # a cell's overrides say on which part of a stream it searched
        key = ("sample", statistic, tuple(part.items()), modelled, cell.overrides)
        rows = cell.remember(key, partial(_rows, cell, statistic, part, modelled))
        if isinstance(rows, str):
            return rows
        frames.append(rows)
    rows = pd.concat(frames)
    return StatisticSample(rows.index.to_numpy(dtype=str), rows.to_numpy(dtype=float), _DEFINITIONS[statistic][1])


def _rows(cell: Cell, statistic: str, part: Mapping[str, str], modelled: bool) -> pd.DataFrame | str:
    """Return a statistic's columns for one run, indexed by the prompts' hashes, or why it lacks them."""
    run: Run | str = _modelled(cell) if modelled else cell.run
    for axis, label in part.items():
        run = run if isinstance(run, str) else _RESTRICTIONS[axis](cell, run, label)
    if not isinstance(run, str) and not STATISTICS[statistic].any_answer:
        run = _prompts(run, run.prompts["prompt_index"].isin(_unlooped(cell)))
    rows = run if isinstance(run, str) else _DEFINITIONS[statistic][0](run)
    if isinstance(rows, str):
        return rows
    if rows.empty:
        return "no prompt of the run has this statistic"
    columns = cell.run.prompts[["prompt_index", "prompt_sha256"]]
    prompt_hashes = columns.drop_duplicates("prompt_index").set_index("prompt_index")["prompt_sha256"]
    hashes = [""] * len(rows) if STATISTICS[statistic].once_per_run else [str(prompt_hashes[i]) for i in rows.index]
    return rows.set_axis(hashes, axis="index")


def _domain(cell: Cell, run: Run, label: str) -> Run | str:
    """Restrict a run to prompts of the stream's first domain, on which it searched, or to the others."""
    # a task of several domains that is no stream was searched on the domain of its first prompt
    first_domain = select.first_domain(cell) or run.prompts.sort_values("prompt_index")["domain"].iloc[0]
    in_first_domain = run.prompts["domain"] == first_domain
    return _prompts(run, in_first_domain if label == "own" else ~in_first_domain)


def _prompts(run: Run, kept: pd.Series[bool]) -> Run | str:
    prompts = run.prompts[kept]
    if prompts.empty:
        return "the run has no prompts in this part"
    return replace(run, prompts=prompts, steps=run.steps[run.steps["prompt_index"].isin(prompts["prompt_index"])])


def _modelled(cell: Cell) -> Run:
    run = cell.run
    return cell.remember("modelled", partial(ModelledTimes.of, run)).replace_in(run)


def _unlooped(cell: Cell) -> frozenset[int]:
    """Return the prompts without looping answers: a loop is easy to draft, whatever the method."""

    def find() -> frozenset[int]:
        prompts = cell.run.prompts
        if not set(PAIR) <= set(prompts["arm"]):
            return frozenset(prompts["prompt_index"])
        pairs = paired_rows(prompts)
        return frozenset(pairs["prompt_index"]) - frozenset(looping_prompts(pairs))

    return cell.remember("without loops", find)


def count_loops(cell: Cell) -> int:
    return int(cell.run.prompts["prompt_index"].nunique()) - len(_unlooped(cell))


def _context(cell: Cell, run: Run, label: str) -> Run | str:
    """Restrict both arms to the first or last third of the context lengths that drafted with a searched set."""
    lengths = searched_drafts(arm_rows(run.steps, "method"))["context_len"]
    if lengths.empty:
        return NO_DRAFTS
    low, high = lengths.min(), lengths.max()
    third = (high - low) / 3
    steps = run.steps[run.steps["context_len"].between(low, high)]
    in_third = steps["context_len"] <= low + third if label == "first third" else steps["context_len"] >= high - third
    return replace(run, steps=steps[in_third])


def _stream_half(cell: Cell, run: Run, label: str) -> Run | str:
    indices = np.sort(run.prompts["prompt_index"].unique())
    half = len(indices) // 2
    kept = indices[:half] if label == "first half" else indices[len(indices) - half :]
    return _prompts(run, run.prompts["prompt_index"].isin(kept))


def _search(cell: Cell, run: Run, label: str) -> Run | str:
    """Restrict a run to steps drafted with the first or last set scored by its search (score: `est_alpha`).

    The prompts are all up to the one with the first score, or all after the one with the last.
    """
    steps = values.method_steps(run).reset_index(drop=True)
    events = steps.index[steps["est_alpha"].notna()]
    if len(events) < 2:
        return f"the search scored {count_sets(len(events))}; at least 2 are required"
    start, end = (events[0], events[1]) if label == "first" else (events[-1], len(steps))
    indices, scored = run.prompts["prompt_index"], steps["prompt_index"][start]
    selected = indices <= scored if label == "first" else indices > scored
    drafted = steps.iloc[start + 1 : end + 1].assign(est_alpha=steps["est_alpha"][start])
    return replace(run, steps=drafted, prompts=run.prompts[selected])


_RESTRICTIONS: dict[str, Callable[[Cell, Run, str], Run | str]] = {
    "domain": _domain,
    "context": _context,
    "search": _search,
    "stream": _stream_half,
    "part": lambda cell, run, name: _prompts(run, run.prompts["domain"] == name),
}


# --- the columns of each statistic ------------------------------------------------------------------------------------


def count_sets(number: int) -> str:
    return f"{number} set{'' if number == 1 else 's'}"


def _of_answers(key: str) -> tuple[Callable[[Run], pd.DataFrame | str], Quantity]:
    """Return columns and formula of a quantity of answers."""
    quantity = QUANTITIES[key]

    def columns(run: Run) -> pd.DataFrame | str:
        rows = PromptTable(run.prompts).frame(quantity)
        return "the run has no baseline" if rows.empty and len(quantity.arms) > 1 else rows

    return columns, quantity


def _of_steps(key: str) -> tuple[Callable[[Run], pd.DataFrame], Quantity]:
    """Return columns and formula of a quantity of the method's steps."""
    quantity = QUANTITIES[key]
    return lambda run: frame_of_steps(quantity, arm_rows(run.steps, "method")), quantity


def _step_times(run: Run) -> pd.DataFrame | str:
    """Return emitted tokens and milliseconds of each prompt's method steps, then AR steps."""
    steps = run.steps.assign(ms=run.steps[[*SPANS]].sum(axis=1))
    sums = [arm_rows(steps, arm).groupby("prompt_index")[["emitted", "ms"]].sum() for arm in ("method", "ar")]
    joined = sums[0].join(sums[1], how="inner", rsuffix="_ar")
    return "no prompt has steps of both arms in this part" if joined.empty else joined


def _skipped(kind: str) -> Callable[[Run], pd.DataFrame | str]:
    """Return the columns of a share of skipped sublayers."""
    return lambda run: _per_step(skipped_shares(run), kind)


def _per_step(steps: pd.DataFrame, column: str) -> pd.DataFrame | str:
    """Return the sum of a column over each prompt's draft steps, and their number."""
    return steps.assign(steps=1.0).groupby("prompt_index")[[column, "steps"]].sum() if len(steps) else NO_DRAFTS


def _skip_depth(run: Run) -> pd.DataFrame | str:
    """Return the sum of the skipped sublayers' mean depth over draft steps, and the number of steps."""
    steps = searched_drafts(arm_rows(run.steps, "method"))
    depths = {id_: _mean_depth(run.layer_set(int(id_))) for id_ in steps["layer_set_id"].unique()}
    return _per_step(steps.assign(depth=steps["layer_set_id"].map(depths)).dropna(subset=["depth"]), "depth")


def _mean_depth(layers: LayerSet) -> float:
    depths = [i // 2 / max(1, layers.n_layers - 1) for i in layers.skipped]
    return float(np.mean(depths)) if depths else math.nan


def _points(name: str) -> Callable[[Run], pd.DataFrame | str]:
    """Return the columns of a correlation: a predictor of speed and tokens/s, one point per prompt."""
    return lambda run: values.speed_points(run)[[name, "method_tokens_per_s"]].dropna()


def _search_seconds(run: Run) -> pd.DataFrame | str:
    """Return the seconds of the run's own search, or why they are missing."""
    origin, seconds = values.search_origin(run), values.search_time(run)
    if origin in ("continued", "read"):
        return f"the search was {origin} from the store, so its time was measured in an earlier run"
    return "the method did not search" if seconds is None else pd.DataFrame({"seconds": [seconds]})


def _matchness(run: Run) -> pd.DataFrame | str:
    scores = arm_rows(run.steps, "method")["est_alpha"].dropna()
    return pd.DataFrame({"matchness": scores.iloc[:1]}) if len(scores) else "the search scored no set"


def _routes(run: Run) -> pd.DataFrame | str:
    """Return whether each prompt was drafted with its domain's main layer set, if the domains' sets differ."""
    domains = list(dict.fromkeys(run.prompts["domain"]))
    sets_by_domain = {domain: main_set(run, domain) for domain in domains}
    if len(domains) < 2 or len(set(sets_by_domain.values())) < len(domains):
        return "the layer sets of the domains do not all differ"
    rows = run.prompts.drop_duplicates("prompt_index").set_index("prompt_index")["domain"]
    steps = run.steps
    drafted = {i: main_set(replace(run, steps=steps[steps["prompt_index"] == i])) for i in rows.index}
    routes = {
        i: (float(drafted[i] == sets_by_domain[domain]), 1.0) for i, domain in rows.items() if drafted[i] is not None
    }
    return pd.DataFrame.from_dict(routes, orient="index", columns=["own", "all"])


def _tpt(run: Run) -> pd.DataFrame | str:
    """Return each prompt's predicted TPT and 1, or why it is undefined."""
    tpt = values.speed_points(run)[["tpt_predicted"]].dropna()
    return "the run has no latency profile" if tpt.empty else tpt.assign(prompts=1.0)


def _mismatches(run: Run) -> pd.DataFrame | str:
    """Return each prompt's number of mismatches with AR's outputs (near-ties excluded)."""
    audited = arm_rows(run.prompts, "method").dropna(subset=["lossless"])
    if audited.empty:
        return "sampled outputs cannot be compared with AR's token by token"
    return (audited["lossless"] == "bug").astype(float).groupby(audited["prompt_index"]).sum().to_frame()


def _determination(x: Array, y: Array) -> Array:
    """Return R², the squared Pearson correlation; NaN below three points or for a constant."""
    defined = len(x) > 2 and np.ptp(x) > 0 and np.ptp(y) > 0
    return np.asarray(np.corrcoef(x, y)[0, 1] ** 2 if defined else np.nan)


_DEFINITIONS: dict[str, tuple[Callable[[Run], pd.DataFrame | str], Callable[..., Array]]] = {
    **{key: _of_answers(key) for key in ("speedup", "speedup_e2e", "overhead")},
    **{key: _of_steps(key) for key in ("alpha", "M")},
    # (Σ tokens / Σ time of the method's steps) / (Σ tokens / Σ time of AR's steps) on the same prompts
    "speedup_steps": (_step_times, QUANTITIES["speedup"]),
    # mean over runs
    "search_s": (_search_seconds, np.mean),
    # Σ shares of skipped attentions (MLPs) / number of layer-drafted steps
    "attention_skipped": (_skipped("attention"), ratio_of_sums),
    "mlp_skipped": (_skipped("MLP"), ratio_of_sums),
    # Σ mean depth of a set's skipped sublayers / number of layer-drafted steps
    "skip_depth": (_skip_depth, ratio_of_sums),
    # share of tokens that a set predicts (SWIFT Eq. 3), as the search scored it; mean over runs
    "matchness": (_matchness, np.mean),
    # mean over prompts of KnapSpec Eq. 4
    "tpt": (_tpt, ratio_of_sums),
    # squared Pearson correlation with tokens/s over prompts (and methods)
    "tpt_r2": (_points("tpt_predicted"), _determination),
    "alpha_r2": (_points("alpha"), _determination),
    # prompts drafted with their own domain's set / prompts
    "routing": (_routes, ratio_of_sums),
    # sum over outputs
    "mismatches": (_mismatches, np.sum),
    "peak_memory": (lambda run: pd.DataFrame({"bytes": [float(run.prompts["peak_bytes"].max())]}), np.mean),
}
"""Statistic -> function that returns a run's columns (a row per prompt) or why they are missing; and its formula."""
