"""Numbers of two sides, each of one or more runs, prompt by prompt, over the prompts in all of their runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ssd_bench.errors import ConfigError
from ssd_bench.records.reader import Run
from ssd_bench.results.evidence import trace
from ssd_bench.results.modelled import reference_of, reference_run
from ssd_bench.results.prompt_table import PromptTable
from ssd_bench.results.quantity import Array, Quantity
from ssd_bench.results.rows import UNIT, arm_rows

ANSWER_KEY = ["prompt_id", "prompt_sha256", "turn", "repeat"]
"""Columns equal for the same answer in two runs; its position in the stream may differ."""
COPY = "copy"
"""Number of an answer among answers of equal key: a stream may contain a prompt twice."""


@dataclass(frozen=True)
class SharedPrompts:
    """Tables of two sides over their common prompts.

    Attributes:
        prompts: shared number of each prompt -> its hash; [n].
        sides: tables of the timings of a and of b.
        modelled: the same with modelled times; empty if they are missing.
        same_trace: whether the method took the same steps on both sides, so that only times can differ.
        missing: "ar", "modelled", "score" -> why it is missing, or "".
    """

    prompts: pd.Series[str]
    sides: Sequence[Sequence[PromptTable]]
    modelled: Sequence[Sequence[PromptTable]]
    same_trace: bool
    missing: Mapping[str, str]

    def lack(self, quantity: Quantity) -> str:
        """Return why the sides lack a quantity; "" if they have it."""
        needed = (quantity.times, "score" if quantity.difference else "", "ar" if "ar" in quantity.arms else "")
        return next((self.missing[name] for name in needed if name and self.missing[name]), "")

    def columns(self, quantity: Quantity) -> Iterator[list[Array]]:
        """Yield the columns of a quantity for a and for b, [n] each, summed over repeats and timings."""
        for tables in self.modelled if quantity.times else self.sides:
            frames = [table.frame(replace(quantity, times="")) for table in tables]
            # an output of one token has no steps; a further timing counts as a further repeat of its prompts
            rows = [frame.reindex(self.prompts.index, fill_value=0.0).to_numpy(dtype=float) for frame in frames]
            yield [*np.sum(rows, axis=0).T]


def shared_prompts(sides: tuple[Sequence[Run], Sequence[Run]]) -> SharedPrompts:
    """Return the tables of two sides, a and b, over the answers in all of their runs; a side's runs are repeated
    timings.

    Raises:
        ConfigError: no answer is in all runs.
    """
    runs = [run for side in sides for run in side]
    shared = _shared_answers(runs, "method")
    if shared.empty:
        counts = [run.prompts["prompt_id"].nunique() for run in (sides[0][0], sides[1][0])]
        raise ConfigError(
            "run",
            str(sides[1][0].path),
            "prompts with the same ids and tokens on both sides; rerun with the same task, limit and seed",
            f"none of its {counts[1]} prompts is among the {counts[0]} of {sides[0][0].path.name}",
        )
    restricted = [_restricted(run, shared) for run in runs]
    with_ar = _shared_answers(runs, "ar", shared)
    missing = {
        "ar": "" if len(with_ar) == len(shared) else "a run lacks answers of AR; baseline=paired records them",
        "modelled": _lack_of_work(runs),
        "score": _lack_of_scores(runs, restricted),
    }
    arms = {"method": shared} | ({} if missing["ar"] else {"ar": with_ar})
    modelled = [[_table(reference_run(run), arms) for run in side] for side in sides if not missing["modelled"]]
    hashes = shared.reset_index().drop_duplicates("prompt").set_index("prompt")["prompt_sha256"].sort_index()
    same_trace = len({trace(run) for run in restricted}) == 1
    return SharedPrompts(
        hashes.astype(str), [[_table(run, arms) for run in side] for side in sides], modelled, same_trace, missing
    )


def _answers(run: Run, arm: str) -> pd.Series[int]:
    """Return the position of each answer of an arm in the stream, by its key."""
    rows = arm_rows(run.prompts, arm)[[*ANSWER_KEY, "prompt_index"]].sort_values(UNIT)
    rows = rows.assign(**{COPY: rows.groupby(ANSWER_KEY).cumcount()})
    return rows.set_index([*ANSWER_KEY, COPY])["prompt_index"]


def _shared_answers(runs: Sequence[Run], arm: str, among: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return the answers of an arm in all runs (`among` another arm's): a row each, with the number of its prompt."""
    first, *others = (_answers(run, arm) for run in runs)
    index = first.index if among is None else first.index.intersection(among.index)
    for answers in others:
        index = index.intersection(answers.index)
    return first.loc[index].rename("prompt").to_frame()


def _restricted(run: Run, shared: pd.DataFrame, arm: str = "method") -> Run:
    """Return one arm of a run on shared answers; `prompt_index` becomes the shared number of the prompt."""
    positions = _answers(run, arm).loc[shared.index].to_frame().join(shared).reset_index()
    numbers = positions[[*UNIT, "prompt"]]

    keys = pd.MultiIndex.from_frame(numbers[UNIT])

    def renumbered(rows: pd.DataFrame) -> pd.DataFrame:
        rows = arm_rows(rows, arm)
        places = keys.get_indexer(pd.MultiIndex.from_frame(rows[UNIT]))
        return rows[places >= 0].assign(prompt_index=numbers["prompt"].to_numpy()[places[places >= 0]])

    return replace(run, prompts=renumbered(run.prompts), steps=renumbered(run.steps))


def _table(run: Run, answers: Mapping[str, pd.DataFrame]) -> PromptTable:
    arms = [_restricted(run, shared, arm) for arm, shared in answers.items()]
    return PromptTable(*(pd.concat([getattr(arm, name) for arm in arms]) for name in ("prompts", "steps")))


def _lack_of_work(runs: Sequence[Run]) -> str:
    references = sorted({reference_of(run.header) for run in runs})
    return "" if len(references) == 1 else f"reference machines differ (hardware.costs): {', '.join(references)}"


def _lack_of_scores(runs: Sequence[Run], restricted: Sequence[Run]) -> str:
    tasks = sorted({f"{run.header.task.name} version {run.header.task.version}" for run in runs})
    if len(tasks) > 1:
        return f"scoring differs: {', '.join(tasks)}"
    return "an answer has no score" if any(run.prompts["score"].isna().any() for run in restricted) else ""
