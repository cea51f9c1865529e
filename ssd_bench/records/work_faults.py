"""Faults of the table `work`: impossible calls, and answers and steps without their passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ssd_bench.contract.generation import PARTS
from ssd_bench.contract.layer_set import BITS
from ssd_bench.records.fault import ROUNDING, Fault, Key, broken_rules, in_all
from ssd_bench.records.schema import ANSWER, ROUNDED

STEP_TIMES = {"draft": "draft_ms", "verify": "verify_ms", "overhead": "policy_ms"}
"""Part of a step -> column of `steps` with its time."""

Values = NDArray[np.float64]
"""A number of every step (or answer) of a `_Groups`; NaN: none."""


def work_faults(
    header: Mapping[str, Any], prompts: pd.DataFrame, steps: pd.DataFrame, layer_sets: pd.DataFrame, work: pd.DataFrame
) -> Iterator[Fault]:
    """Yield impossible rows of `work`, and answers and steps without their passes."""
    # rows that occur twice are faults of their tables
    answers = prompts[prompts["arm"] != "hf"].drop_duplicates(ANSWER)
    if work.empty:
        if len(answers):
            yield "work", None, "it has no rows"
        return
    n_layers = (header.get("model") or {}).get("n_layers", np.inf)
    yield from broken_rules("work", work, _row_rules(work, float(n_layers)))
    expected = steps.drop_duplicates([*ANSWER, "step"]).merge(_set_sizes(layer_sets), on="layer_set_id", how="left")
    by_step, by_answer = _Groups.of(expected, answers.assign(step=0), work)
    recorded = np.concatenate([by_step.steps, by_step.prefills])
    if (strange := ~np.isin(by_step.work, recorded)).any():
        yield "work", by_step.key(by_step.work[strange.argmax()]), "its step is in no table"
    yield from _verify_faults(by_step, expected, work, float(n_layers))
    yield from _draft_faults(by_step, expected, work)
    prefill = ((work["part"] == "prefill") & (work["attentions"] > 0)).to_numpy(bool)
    nodes = by_answer.total(prefill, work["calls"] * work["rows"])
    prompt_len = by_answer.placed(by_answer.prefills, answers["prompt_len"])
    yield from by_answer.unequal(nodes, prompt_len, "prefill does not run prompt_len nodes")
    yield from _long_calls(by_step, expected, work)


def _row_rules(work: pd.DataFrame, n_layers: float) -> dict[str, NDArray[np.bool_]]:
    columns = ["calls", "rows", "attentions", "mlps", "heads", "context", "launches", *ROUNDED]
    counts = work[columns].to_numpy(dtype=float)
    times = work["ms"].fillna(0.0).to_numpy(dtype=float)
    return {
        "part is none of the parts of a step": ~work["part"].isin(PARTS).to_numpy(bool),
        "a count is negative or zero": (counts[:, :7] < 0).any(axis=1) | (counts[:, [0, 1, 6]] < 1).any(axis=1),
        "a pass has more sublayers than the model": (counts[:, 2:4] > n_layers).any(axis=1),
        "more is rounded than is read": ~(
            (counts[:, 7:] >= 0).all(axis=1) & (counts[:, 7:10] + counts[:, 10:] <= counts[:, 2:5]).all(axis=1)
        ),
        "only drafts and searches read rounded weights": (counts[:, 7:].sum(axis=1) > 0)
        & work["part"].isin(("prefill", "verify")).to_numpy(bool),
        # a pass and its head are two launches; sublayers that a method calls by themselves are one each
        "launches are more than sublayers and heads": counts[:, 6] > counts[:, 2:4].sum(axis=1) + 2,
        "ms is negative or no number": ~((times >= 0) & np.isfinite(times)),
    }


@dataclass(frozen=True)
class _Groups:
    """Steps (or answers) numbered in the order of their keys: pandas would compare the keys again in every sum.

    Attributes:
        unit: "steps" or "answers".
        keys: by number.
        steps, prefills, work: number of each row of `steps`, of the answers, and of `work`.
    """

    unit: str
    keys: pd.DataFrame
    steps: NDArray[np.int64]
    prefills: NDArray[np.int64]
    work: NDArray[np.int64]

    @classmethod
    def of(cls, *tables: pd.DataFrame) -> tuple[_Groups, _Groups]:
        """Return steps and answers of the tables `steps`, answers with step 0, and `work`."""
        keys = pd.concat([table[[*ANSWER, "step"]] for table in tables], ignore_index=True)
        numbers, groups = np.zeros(len(keys), dtype=np.int64), []
        ends = np.cumsum([len(table) for table in tables])[:-1]
        for name in keys.columns:
            unit = "steps" if name == "step" else "answers"
            codes, values = pd.factorize(keys[name], sort=True)
            numbers = pd.factorize(numbers * len(values) + codes, sort=True)[0]
            groups.append(cls(unit, keys.iloc[np.unique(numbers, return_index=True)[1]], *np.split(numbers, ends)))
        return groups[-1], groups[-2]

    def key(self, number: int) -> Key:
        prompt, repeat, turn, arm = self.keys[[*ANSWER]].iloc[number]
        return prompt, repeat, turn, arm

    def of_steps(self, column: Any, chosen: Any = slice(None)) -> Values:
        """Return a column of `steps` by number."""
        return self.placed(self.steps[chosen], np.asarray(column, dtype=float)[chosen])

    def placed(self, numbers: NDArray[np.int64], column: Any) -> Values:
        """Return a column of the rows with these numbers by number."""
        values = np.full(len(self.keys), np.nan)
        values[numbers] = np.asarray(column, dtype=float)
        return values

    def total(self, chosen: NDArray[np.bool_], column: Any) -> Values:
        numbers, size = self.work[chosen], len(self.keys)
        sums = np.bincount(numbers, np.asarray(column, dtype=float)[chosen], size)
        return np.where(np.bincount(numbers, minlength=size) > 0, sums, np.nan)

    def largest(self, chosen: NDArray[np.bool_], column: Any) -> Values:
        values = np.full(len(self.keys), np.nan)
        np.fmax.at(values, self.work[chosen], np.asarray(column, dtype=float)[chosen])
        return values

    def unequal(self, values: Values, expected: Values, text: str) -> Iterator[Fault]:
        """Yield the first answer or step whose value is missing, extra or unexpected, with their number."""
        differing = (values != expected) & ~(np.isnan(values) & np.isnan(expected))
        yield from self.named(differing, f"its {text}")

    def named(self, broken: NDArray[np.bool_], text: str, table: str = "work") -> Iterator[Fault]:
        """Yield the first broken answer or step, with their number."""
        if broken.any():
            number = int(broken.argmax())
            place = f"step {self.keys['step'].iloc[number]}: " if self.unit == "steps" else ""
            yield table, self.key(number), f"{place}{text}{in_all(broken, self.unit)}"


def _verify_faults(by_step: _Groups, expected: pd.DataFrame, work: pd.DataFrame, n_layers: float) -> Iterator[Fault]:
    """Yield steps whose verification is not one full-model pass over their nodes.

    The expected rows are `steps`, with the columns of `_set_sizes`.
    """
    verify = (work["part"] == "verify").to_numpy(bool)
    last = verify & (work["heads"] > 0).to_numpy(bool)
    attentions, mlps = (by_step.total(verify, work[name]) for name in ("attentions", "mlps"))  # of both halves, too
    every = by_step.of_steps(expected["tree_nodes"])
    count = n_layers if np.isfinite(n_layers) else np.fmax.reduce(attentions, initial=-np.inf)
    layers, one = (np.where(np.isnan(every), np.nan, value) for value in (count, 1.0))
    yield from by_step.unequal(attentions, layers, "verification does not run every attention")
    yield from by_step.unequal(mlps, layers, "verification does not run every MLP")
    yield from by_step.unequal(by_step.total(last, work["rows"]), every, "verified rows are not tree_nodes")
    yield from by_step.unequal(by_step.total(last, work["calls"]), one, "verification runs more than once")
    heads = by_step.total(last, work["heads"])
    yield from by_step.unequal(heads, one, "verification does not compute the LM head of every node")
    context = by_step.of_steps(expected["context_len"])
    read = by_step.total(last, work["context"])
    yield from by_step.unequal(read, context, "verification does not read context_len rows")


def _draft_faults(by_step: _Groups, expected: pd.DataFrame, work: pd.DataFrame) -> Iterator[Fault]:
    """Yield steps whose draft runs or reads other parts than its layer set and window; rows as in `_verify_faults`."""
    draft = (work["part"] == "draft").to_numpy(bool)
    by_layers = (expected["layer_set_id"].notna() & (expected["draft_len"] > 0)).to_numpy(bool)

    def of_set(name: str) -> Values:
        return by_step.of_steps(expected[name], by_layers)

    for column, what in (("attentions", "attentions"), ("mlps", "MLPs")):
        largest = by_step.largest(draft, work[column])
        yield from by_step.unequal(largest, of_set(f"n_{column}"), f"draft runs other {what} than its set")
    for column in ROUNDED:
        name, part = column.removeprefix("int").split("_")
        text = f"draft reads other {part.replace('mlp', 'MLP')} in {name} bits than its set"
        yield from by_step.unequal(by_step.largest(draft, work[column]), of_set(f"n_{column}"), text)
    nodes = by_step.total(draft & (work["heads"] > 0).to_numpy(bool), work["calls"] * work["rows"])
    length = of_set("draft_len")
    drafted = np.where(np.isnan(nodes), np.nan, np.fmin(nodes, length))
    yield from by_step.unequal(drafted, length, "draft runs fewer nodes than draft_len")
    # a pass reads the prefix and the tokens drafted before it, or what of them is in its window
    with_attentions = draft & (work["attentions"] > 0).to_numpy(bool)
    start, window = (by_step.of_steps(expected[name])[by_step.work] for name in ("context_len", "window"))
    depth = by_step.total(with_attentions, work["calls"] * work["rows"])[by_step.work]
    context = work["context"].to_numpy(dtype=float)
    odd = (context < np.minimum(start, window - 1)) | (context > np.minimum(start + depth, window))
    yield from broken_rules("work", work, {"its draft does not read the prefix or its window": with_attentions & odd})


def _long_calls(by_step: _Groups, expected: pd.DataFrame, work: pd.DataFrame) -> Iterator[Fault]:
    """Yield steps whose calls together took longer than their part of the step."""
    timed = work["ms"].notna().to_numpy(bool)
    for part, column in STEP_TIMES.items():
        calls = by_step.total(timed & (work["part"] == part).to_numpy(bool), work["ms"])
        longer = calls - by_step.of_steps(expected[column]) > ROUNDING * (1 + calls)
        yield from by_step.named(longer, f"{column} is shorter than its calls in work", "steps")


def _set_sizes(layer_sets: pd.DataFrame) -> pd.DataFrame:
    """Return what each layer set runs, by layer_set_id.

    Columns are n_attentions, n_mlps, and n_ with the names of `ROUNDED`; window: most positions that an attention
    reads, infinite for all.
    """
    run: dict[str, Any] = {
        name: layer_sets["n_layers"] - layer_sets[f"skip_{kind}"].map(len).astype("int64")
        for name, kind in (("n_attentions", "attn"), ("n_mlps", "mlp"))
    }
    for name in (f"int{bits}" for bits in BITS):
        ends = [(2 * count, () if of is None else of) for count, of in zip(layer_sets["n_layers"], layer_sets[name])]
        run[f"n_{name}_attentions"] = [sum(i % 2 == 0 for i in of if i < head) for head, of in ends]
        run[f"n_{name}_mlps"] = [sum(i % 2 == 1 for i in of if i < head) for head, of in ends]
        run[f"n_{name}_heads"] = [sum(i == head for i in of) for head, of in ends]
    run["window"] = (layer_sets["sinks"] + layer_sets["recent"]).astype("float64").fillna(np.inf)
    return layer_sets[["layer_set_id"]].astype("Int32").assign(**run)
