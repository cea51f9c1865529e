"""A run as one row per prompt: each arm's columns, from which `quantities.yaml` defines every number.

All columns but `step_ms` are additive: sums over a prompt's answers and their steps. Each is read when first needed.

| column | of an answer |
|---|---|
| answers | 1 |
| tokens, ms | tokens and time of decoding: without the token and the time of the prefill |
| all_tokens, all_ms | tokens and time with the prefill |
| prefill_ms, draft_ms, verify_ms, policy_ms | time of the prefill, and of the spans of decoding |
| score, scored | score; 1 if it has one |
| steps, emitted, accepted, drafted | steps, tokens that they emitted, accepted and drafted |
| tested | accepted tokens and the rejected one of each step |
| step_ms | list of the times of its steps |
| layer_steps, layer_drafted, layer_draft_ms | steps that drafted by layers, their tokens and their time of drafting |
| skipped, skipped_attn, skipped_mlp | skipped share of sublayers, skipped attentions and MLPs, times drafted tokens |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from ssd_bench.records.reader import Run
from ssd_bench.records.schema import ANSWER
from ssd_bench.results.modelled import SPANS, reference_run
from ssd_bench.results.quantity import BASE, MODELLED, QUANTITIES, Array, Measured, Quantity
from ssd_bench.results.repetition import looping_prompts
from ssd_bench.results.rows import Positions, pair_positions, rows_with, sums_at

_Column = Callable[[pd.DataFrame], ArrayLike]

_ANSWERS: Mapping[str, _Column] = {
    "answers": lambda rows: rows["arm"].notna(),
    "tokens": lambda rows: (rows["new_tokens"] - 1).clip(lower=0),
    "ms": lambda rows: rows["decode_ms"],
    "all_tokens": lambda rows: rows["new_tokens"],
    "all_ms": lambda rows: rows["decode_ms"] + rows["prefill_ms"],
    **{name: itemgetter(name) for name in ("prefill_ms", "draft_ms", "verify_ms", "policy_ms")},
    "score": lambda rows: rows["score"].fillna(0.0),
    "scored": lambda rows: rows["score"].notna(),
}
"""Column -> its values from `prompts`."""
_STEPS: Mapping[str, _Column] = {
    "steps": lambda rows: rows["emitted"].notna(),
    "emitted": lambda rows: rows["emitted"],
    "accepted": lambda rows: rows["accepted_len"],
    "drafted": lambda rows: rows["draft_len"],
    # the accepted tokens and the first rejected one were tested
    "tested": lambda rows: np.minimum(rows["draft_len"], rows["accepted_len"] + 1),
    "layer_steps": lambda rows: rows["layer_set_id"].notna(),
    "layer_drafted": lambda rows: rows["draft_len"].where(rows["layer_set_id"].notna(), 0),
    "layer_draft_ms": lambda rows: rows["draft_ms"].where(rows["layer_set_id"].notna(), 0.0),
}
"""Column -> its values from `steps`."""
_SKIPPED: Mapping[str, Callable[[pd.DataFrame], pd.Series[float]]] = {
    "skipped": lambda sets: (2 * sets["n_layers"] - sets["n_attn"] - sets["n_mlp"]) / (2 * sets["n_layers"]),
    "skipped_attn": lambda sets: sets["n_layers"] - sets["n_attn"],
    "skipped_mlp": lambda sets: sets["n_layers"] - sets["n_mlp"],
}
"""Column -> its value for a layer set, counted for each token drafted with the set."""
STEP_MS = "step_ms"
_PRESENT = {
    **dict.fromkeys([*_STEPS, STEP_MS], "steps"),
    **dict.fromkeys([*_SKIPPED, "layer_steps", "layer_drafted", "layer_draft_ms"], "layer_steps"),
    **dict.fromkeys(("score", "scored"), "scored"),
}
"""Column -> column that is positive on the prompts that have it; default: `answers`."""


class _View(NamedTuple):
    """Answers of one arm, or of the pairs of two arms.

    Attributes:
        prompts: their prompts [n].
        place: position of each answer's prompt in `prompts`.
        rows: positions in the run's `prompts` of the arm's answers, and of the paired arm's.
        sums: columns that were summed over the answers of each prompt, [n] each.
    """

    prompts: NDArray[np.int64]
    place: Positions
    rows: tuple[Positions, ...]
    sums: dict[str, Array]


class PromptTable:
    """Rows of prompts.

    Args:
        prompts, steps: tables of a run, or some of their rows; unneeded columns and steps may be missing.
        run: for quantities of layer sets and modelled times.
    """

    def __init__(self, prompts: pd.DataFrame, steps: pd.DataFrame | None = None, run: Run | None = None) -> None:
        self._prompts, self._steps, self._run = prompts, steps, run
        self._kept = np.ones(len(prompts), dtype=bool)
        self._columns: dict[str, Array] = {}
        self._views: dict[tuple[tuple[str, ...], str], _View] = {}

    @classmethod
    def of(cls, run: Run) -> Self:
        return cls(run.prompts, run.steps, run)

    def restrict(self, prompts: ArrayLike) -> PromptTable:
        """Restrict the table to some prompts (prompt_index)."""
        restricted = copy(self)
        restricted._kept = np.isin(self._prompts["prompt_index"].to_numpy(), np.asarray(prompts))
        restricted._views = {}
        restricted.__dict__.pop("modelled", None)
        return restricted

    @cached_property
    def defined(self) -> list[str]:
        """Keys of the quantities with a formula that the run's arms allow."""
        without = {"hf"} - set(self._prompts["arm"])
        return [
            key
            for key, quantity in QUANTITIES.items()
            if quantity.formula and not without & {*quantity.arms} and (self._run or not quantity.times)
        ]

    def number(self, key: str) -> Measured:
        """Return a quantity of `QUANTITIES` with its interval."""
        quantity = QUANTITIES[key]
        return quantity.measure(*self.columns(quantity)[1])

    def value(self, key: str, arms: Sequence[str] = ()) -> float | None:
        """Return a quantity without its interval, perhaps of other arms; None if undefined."""
        return QUANTITIES[key].measure(*self.columns(QUANTITIES[key], arms)[1], interval=False).value

    def by_prompt(self, key: str) -> pd.Series[float]:
        """Return a quantity of each prompt that has it (index: prompt_index); NaN if undefined."""
        quantity = QUANTITIES[key]
        prompts, columns = self.columns(quantity)
        with np.errstate(all="ignore"):
            if STEP_MS in quantity.columns:  # lists, which no axis reduces
                values = np.array([quantity(*(column[i : i + 1] for column in columns)) for i in range(len(prompts))])
            else:
                values = quantity(*(column[:, None] for column in columns))
        needed = [column != 0 for name, column in zip(quantity.columns, columns) if name in quantity.needs]
        is_defined = np.all([np.isfinite(values), *needed], axis=0)
        return pd.Series(np.where(is_defined, values, np.nan), pd.Index(prompts, name="prompt_index"))

    def frame(self, quantity: Quantity) -> pd.DataFrame:
        """Return the columns of a quantity by prompt (index: prompt_index)."""
        prompts, columns = self.columns(quantity)
        index = pd.Index(prompts, name="prompt_index")
        return pd.DataFrame(dict(zip(quantity.columns, columns, strict=True)), index=index)

    def columns(self, quantity: Quantity, arms: Sequence[str] = ()) -> tuple[NDArray[np.int64], list[Array]]:
        """Return the prompts that have a quantity, [n], and its columns, [n] each."""
        table = self.modelled if quantity.times == MODELLED else self
        view = table._view(tuple(arms or quantity.arms), quantity.pairs)
        columns = [table._sums(column, view) for column in quantity.columns]
        present = np.ones(len(view.prompts), dtype=bool)
        for column, values in zip(quantity.columns, columns):
            name = column.removeprefix(BASE)
            base = BASE if name != column else ""
            present &= table._sums(base + _PRESENT.get(name, "answers"), view) > 0
            if quantity.positive:
                present &= values > 0
        return view.prompts[present], [column[present] for column in columns]

    def _view(self, arms: tuple[str, ...], pairs: str) -> _View:
        key = arms, pairs
        if key not in self._views:
            rows = self._rows(arms, pairs)
            prompts, place = np.unique(self._prompts["prompt_index"].to_numpy()[rows[0]], return_inverse=True)
            self._views[key] = _View(prompts, place, rows, {})
        return self._views[key]

    def _rows(self, arms: tuple[str, ...], pairs: str) -> tuple[Positions, ...]:
        """Return the positions in `prompts` of the arm's answers, and of the paired arm's."""
        if len(arms) == 1:
            return (np.flatnonzero(self._kept & (self._prompts["arm"].to_numpy() == arms[0])),)
        base, rows = (rows[self._kept[rows]] for rows in pair_positions(self._prompts, (arms[1], arms[0])))
        if pairs == "matched":
            lengths = self._prompts["new_tokens"].to_numpy()
            kept = lengths[base] == lengths[rows]
        elif pairs == "without_loops":
            paired = self._prompts.iloc[np.concatenate([base, rows])]
            kept = ~self._prompts["prompt_index"].iloc[rows].isin(looping_prompts(paired)).to_numpy()
        else:
            return rows, base
        return rows[kept], base[kept]

    def _sums(self, column: str, view: _View) -> Array:
        """Return [n] a column summed over the answers of each prompt of a view."""
        if column not in view.sums:
            name, rows = column.removeprefix(BASE), view.rows[column.startswith(BASE)]
            view.sums[column] = self._summed(name, rows, view.place, len(view.prompts))
        return view.sums[column]

    def _summed(self, name: str, rows: Positions, place: Positions, n: int) -> Array:
        if name == STEP_MS:
            lists = self._step_ms
            by_prompt = [np.concatenate([lists[row] for row in rows[place == prompt]]) for prompt in range(n)]
            return np.array([*by_prompt, None], dtype=object)[:-1]
        if name not in self._columns:
            self._columns[name] = self._column(name)
        return np.asarray(np.bincount(place, self._columns[name][rows], n), dtype=float)

    def _column(self, name: str) -> Array:
        if name in _ANSWERS:
            return np.asarray(_ANSWERS[name](self._prompts), dtype=float)
        steps, answers = self._placed_steps
        if name in _STEPS:
            return sums_at(answers, _STEPS[name](steps), len(self._prompts))
        each = steps["layer_set_id"].map(_SKIPPED[name](self._set_sizes)).astype(float).fillna(0.0)
        return sums_at(answers, each * steps["draft_len"], len(self._prompts))

    @cached_property
    def _set_sizes(self) -> pd.DataFrame:
        sets = self._placed_steps[0]["layer_set_id"].dropna().unique()
        return self._run.set_sizes(sets) if self._run else pd.DataFrame()

    @cached_property
    def _placed_steps(self) -> tuple[pd.DataFrame, Positions]:
        assert self._steps is not None, "a table without steps has no quantity of drafting"
        return rows_with(self._steps, self._prompts, ANSWER)

    @cached_property
    def _step_ms(self) -> list[Array]:
        steps, answers = self._placed_steps
        ms = steps[[*SPANS]].sum(axis=1).to_numpy(dtype=float)
        order = np.argsort(answers, kind="stable")
        return np.split(ms[order], np.searchsorted(answers[order], np.arange(1, len(self._prompts))))

    @cached_property
    def modelled(self) -> PromptTable:
        """The same prompts, timed at the costs of the run's reference machine."""
        return self._modelled_run.restrict(self._prompts["prompt_index"][self._kept])

    @cached_property
    def _modelled_run(self) -> PromptTable:
        return PromptTable.of(self._reference_run)

    @property
    def modelled_prepare_ms(self) -> float | None:
        return self._reference_run.header.prepare_ms

    @cached_property
    def _reference_run(self) -> Run:
        assert self._run is not None, "modelled times need the work of a run"
        return reference_run(self._run)


def of_steps(key: str, steps: pd.DataFrame) -> float | None:
    """Return a quantity, with columns of steps only, of some steps of one run and arm; None if undefined."""
    quantity = QUANTITIES[key]
    return quantity.measure(*frame_of_steps(quantity, steps).to_numpy().T).value


def frame_of_steps(quantity: Quantity, steps: pd.DataFrame) -> pd.DataFrame:
    """Return a quantity's columns from some steps of one arm, by prompt (index: prompt_index)."""
    columns = {name: np.asarray(_STEPS[name](steps), dtype=float) for name in quantity.columns}
    return pd.DataFrame(columns).groupby(steps["prompt_index"].to_numpy()).sum()
