"""What a run says by a claim's statistic, prompt by prompt, so that prompts can be left out; and the parts of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ssd_bench import metrics
from ssd_bench.metrics import intervals
from ssd_bench.metrics.intervals import Array
from ssd_bench.papers import select, values
from ssd_bench.papers.cells import Cell
from ssd_bench.papers.claims import STATISTICS
from ssd_bench.records.reader import Run


@dataclass(frozen=True)
class Sample:
    """What runs say by a statistic.

    Attributes:
        prompts: [n] hash of each row's prompt; "" where a number is not of prompts.
        columns: [n, c], as the statistic takes them.
        of: the columns -> the number.
    """

    prompts: np.ndarray[tuple[int], np.dtype[np.str_]]
    columns: Array
    of: Callable[..., Array]

    def value(self, without: str | None = None) -> float:
        """The number, of all prompts or of all but one; NaN where it is not defined."""
        rows = self.columns if without is None else self.columns[self.prompts != without]
        with np.errstate(all="ignore"):
            return float(self.of(*rows.T)) if len(rows) else float("nan")


def sample(cells: Sequence[Cell], statistic: str, part: Mapping[str, str]) -> Sample | str:
    """What the runs of these cells say together, or why one of them says nothing.

    Args:
        statistic: one of `claims.STATISTICS`.
        part: axis of `claims.PARTS` -> label, and `part` -> the part of a stream.
    """
    columns, of = _MADE_OF[statistic]
    frames, hashes = [], []
    for cell in cells:
        run = _narrowed(cell, part)
        found = run if isinstance(run, str) else columns(run)
        if isinstance(found, str):
            return found
        if found.empty:
            return "none of its prompts has it"
        told = cell.run.prompts.drop_duplicates("prompt_index").set_index("prompt_index")["prompt_sha256"]
        frames.append(found)
        hashes += [""] * len(found) if STATISTICS[statistic].once else [str(told[i]) for i in found.index]
    return Sample(np.array(hashes), pd.concat(frames).to_numpy(dtype=float), of)


def _narrowed(cell: Cell, part: Mapping[str, str]) -> Run | str:
    """The part of a run that a side is about."""
    run = cell.run
    for axis, label in part.items():
        found = _NARROWING[axis](cell, run, label)
        if isinstance(found, str):
            return found
        run = found
    return run


def _domain(cell: Cell, run: Run, label: str) -> Run | str:
    own = run.prompts["domain"] == select.first_domain(cell)
    return _prompts(run, own if label == "own" else ~own)


def _stream_part(cell: Cell, run: Run, name: str) -> Run | str:
    return _prompts(run, run.prompts["domain"] == name)


def _prompts(run: Run, kept: pd.Series[bool]) -> Run | str:
    prompts = run.prompts[kept]
    if prompts.empty:
        return "it has no such prompts"
    return replace(run, prompts=prompts, steps=run.steps[run.steps["prompt_index"].isin(prompts["prompt_index"])])


def _context(cell: Cell, run: Run, label: str) -> Run | str:
    steps = metrics.arm_rows(run.steps, "method").dropna(subset=["layer_set_id"])
    if steps.empty:
        return "no layers drafted"
    low, high = steps["context_len"].min(), steps["context_len"].max()
    third = (high - low) / 3
    own = steps["context_len"] <= low + third if label == "first third" else steps["context_len"] >= high - third
    return replace(run, steps=steps[own])


def _search(cell: Cell, run: Run, label: str) -> Run | str:
    """Steps until the search scored another set, with its score as `est_alpha`; prompts until then, or from then on."""
    steps = metrics.arm_rows(run.steps, "method").sort_values(["repeat", "prompt_index", "step"], ignore_index=True)
    events = steps.index[steps["est_alpha"].notna()]
    if len(events) < 2:
        scored = f"{len(events)} set{'' if len(events) == 1 else 's'}"
        return f"its search scored {scored}: there is no first and last"
    start, end = (events[0], events[1]) if label == "first" else (events[-1], len(steps))
    prompts, at = run.prompts, steps["prompt_index"]
    own = prompts["prompt_index"] <= at[start] if label == "first" else prompts["prompt_index"] > at[start]
    drafted = steps.iloc[start + 1 : end + 1].assign(est_alpha=steps["est_alpha"][start])
    return replace(run, steps=drafted, prompts=prompts[own])


_NARROWING: dict[str, Callable[[Cell, Run, str], Run | str]] = {
    "domain": _domain, "context": _context, "search": _search, "part": _stream_part,
}  # fmt: skip


# --- the columns of each statistic ------------------------------------------------------------------------------------


def _times(end_to_end: bool) -> Callable[[Run], pd.DataFrame | str]:
    def columns(run: Run) -> pd.DataFrame | str:
        both = metrics.paired_rows(run.prompts)
        if both.empty:
            return "it has no baseline"
        own, ar = (metrics.token_times(metrics.arm_rows(both, arm), end_to_end) for arm in ("method", "ar"))
        return own.join(ar.add_prefix("ar_"))

    return columns


def _sums(*names: str) -> Callable[[Run], pd.DataFrame | str]:
    """Sums of columns of the method's steps; `steps` counts them."""

    def columns(run: Run) -> pd.DataFrame | str:
        steps = metrics.arm_rows(run.steps, "method").assign(steps=1.0)
        return steps.groupby("prompt_index")[list(names)].sum()

    return columns


def _policy(run: Run) -> pd.DataFrame | str:
    return metrics.arm_rows(run.prompts, "method").groupby("prompt_index")[["policy_ms", "decode_ms"]].sum()


def _skipped(kind: str) -> Callable[[Run], pd.DataFrame | str]:
    def columns(run: Run) -> pd.DataFrame | str:
        shares = metrics.skipped_shares(run).assign(steps=1.0)
        return "no layers drafted" if shares.empty else shares.groupby("prompt_index")[[kind, "steps"]].sum()

    return columns


def _points(name: str) -> Callable[[Run], pd.DataFrame | str]:
    return lambda run: values.by_prompt(run)[[name, "tokens_per_s"]].dropna()


def _search_seconds(run: Run) -> pd.DataFrame | str:
    made, spent = values.search_made(run), values.search_time(run)
    if made in ("continued", "read"):
        return f"its search was {made} from the store, and its time is that of another moment"
    return "it did not search" if spent is None else pd.DataFrame({"seconds": [spent]})


def _matchness(run: Run) -> pd.DataFrame | str:
    scores = metrics.arm_rows(run.steps, "method")["est_alpha"].dropna()
    return pd.DataFrame({"matchness": scores.iloc[:1]}) if len(scores) else "its search scored nothing"


def _routes(run: Run) -> pd.DataFrame | str:
    """Whether each prompt was drafted with the set that most of its domain's were, where domains' sets differ."""
    domains = list(dict.fromkeys(run.prompts["domain"]))
    own = {domain: metrics.main_set(run, domain) for domain in domains}
    if len(domains) < 2 or len(set(own.values())) < len(domains):
        return "the sets of its domains are not different ones"
    rows = run.prompts.drop_duplicates("prompt_index").set_index("prompt_index")["domain"]
    steps = run.steps
    drafted = {i: metrics.main_set(replace(run, steps=steps[steps["prompt_index"] == i])) for i in rows.index}
    found = {i: (float(drafted[i] == own[domain]), 1.0) for i, domain in rows.items() if drafted[i] is not None}
    return pd.DataFrame.from_dict(found, orient="index", columns=["own", "all"])


def _correlation(x: Array, y: Array) -> Array:
    defined = len(x) > 2 and np.ptp(x) > 0 and np.ptp(y) > 0
    return np.asarray(np.corrcoef(x, y)[0, 1] if defined else np.nan)


_MADE_OF: dict[str, tuple[Callable[[Run], pd.DataFrame | str], Callable[..., Array]]] = {
    "speedup": (_times(False), intervals.ratio_of_ratios),
    "speedup_e2e": (_times(True), intervals.ratio_of_ratios),
    "alpha": (_sums("accepted_len", "draft_len"), intervals.ratio_of_sums),
    "M": (_sums("emitted", "steps"), intervals.ratio_of_sums),
    "overhead": (_policy, intervals.ratio_of_sums),
    "search_s": (_search_seconds, np.mean),
    "attention_skipped": (_skipped("attention"), intervals.ratio_of_sums),
    "mlp_skipped": (_skipped("MLP"), intervals.ratio_of_sums),
    "matchness": (_matchness, np.mean),
    "tpt_correlation": (_points("tpt_predicted"), _correlation),
    "alpha_correlation": (_points("alpha"), _correlation),
    "routing": (_routes, intervals.ratio_of_sums),
}
"""Statistic -> of a run, what it is made of, a row a prompt (index: prompt_index), or why it has none; and how."""
