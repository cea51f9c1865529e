"""Numbers of a pair of configurations, prompt by prompt, over the prompts that all of its runs have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from ssd_bench import results
from ssd_bench.compare.pairing import ConfigurationPair
from ssd_bench.errors import ConfigError
from ssd_bench.records.reader import Run
from ssd_bench.results.modelled import reference_of, reference_run

ANSWER_KEY = ["prompt_id", "prompt_sha256", "turn", "repeat"]
"""Columns that are equal for the same answer of two runs; the position in the stream may differ."""
_AR = ["ar_tokens", "ar_ms", "ar_all_tokens", "ar_all_ms"]
COPY = "copy"
"""Number of an answer among those of equal key: a stream may contain a prompt twice."""


@dataclass(frozen=True)
class SharedPrompts:
    """Columns of two sides, one row per prompt, summed over repeats and timings.

    Attributes:
        prompts: [n] hash of each prompt.
        a, b: column -> [n] values. Columns of both arms: tokens and ms of decoding, all_tokens and all_ms with the
            prefill; those of AR begin with `ar_`. Columns of the method: emitted, steps, accepted, drafted,
            modelled_ms, score.
        same_trace: whether the method of both sides took the same steps, so that only times can differ.
        missing: `ar_ms`, `modelled_ms`, `score` -> reason why the column is missing; "" if it is not.
    """

    prompts: Sequence[str]
    a: pd.DataFrame
    b: pd.DataFrame
    same_trace: bool
    missing: Mapping[str, str]


def shared_prompts(pair: ConfigurationPair) -> SharedPrompts:
    """Return the columns of a pair over the answers that all of its runs have.

    Raises:
        ConfigError: no answer is in all runs.
    """
    runs = [*pair.a.runs, *pair.b.runs]
    shared = _shared_answers(runs, "method")
    if shared.empty:
        counts = [run.prompts["prompt_id"].nunique() for run in (pair.a.runs[0], pair.b.runs[0])]
        raise ConfigError(
            "run",
            str(pair.b.runs[0].path),
            "prompts with the same ids and tokens on both sides; rerun with the same task, limit and seed",
            f"none of its {counts[1]} prompts is among the {counts[0]} of {pair.a.runs[0].path.name}",
        )
    restricted = {run.path: _restricted(run, shared) for run in runs}
    frames = [_columns(side, restricted) for side in (pair.a.runs, pair.b.runs)]
    missing = {}
    with_ar = _shared_answers(runs, "ar", shared)
    missing["ar_ms"] = "" if len(with_ar) == len(shared) else "a run lacks answers of AR; baseline=paired records them"
    if not missing["ar_ms"]:
        for frame, side in zip(frames, (pair.a.runs, pair.b.runs)):
            frame[_AR] = _summed([_times(_restricted(run, with_ar, "ar"), "ar_") for run in side])[_AR]
    missing["modelled_ms"] = _lack_of_work(runs)
    if not missing["modelled_ms"]:
        for frame, side in zip(frames, (pair.a.runs, pair.b.runs)):
            modelled = [_times(_restricted(reference_run(run), shared)) for run in side]
            frame["modelled_ms"] = _summed(modelled)["ms"]
    missing["score"] = _lack_of_scores(runs, restricted)
    if not missing["score"]:
        for frame, side in zip(frames, (pair.a.runs, pair.b.runs)):
            frame["score"] = sum(_scores(restricted[run.path]) for run in side) / len(side)
    hashes = shared.reset_index().drop_duplicates("prompt").set_index("prompt")["prompt_sha256"]
    same_trace = len({results.trace(run) for run in restricted.values()}) == 1
    names = [str(hashes[number]) for number in frames[0].index]
    return SharedPrompts(names, frames[0], frames[1], same_trace, missing)


def _answers(run: Run, arm: str) -> pd.Series[int]:
    """Return the position in the stream of every answer of an arm, by its key."""
    rows = results.arm_rows(run.prompts, arm)[[*ANSWER_KEY, "prompt_index"]].sort_values(results.UNIT)
    rows = rows.assign(**{COPY: rows.groupby(ANSWER_KEY).cumcount()})
    return rows.set_index([*ANSWER_KEY, COPY])["prompt_index"]


def _shared_answers(runs: Sequence[Run], arm: str, among: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return the answers of an arm that all runs have: a row each, with the number of its prompt.

    Args:
        among: result for another arm, to which the answers are restricted.
    """
    first, *others = (_answers(run, arm) for run in runs)
    index = first.index if among is None else first.index.intersection(among.index)
    for answers in others:
        index = index.intersection(answers.index)
    return first.loc[index].rename("prompt").to_frame()


def _restricted(run: Run, shared: pd.DataFrame, arm: str = "method") -> Run:
    """Return one arm of a run on shared answers, with the shared number of each prompt as its `prompt_index`."""
    positions = _answers(run, arm).loc[shared.index].to_frame().join(shared).reset_index()
    numbers = positions[[*results.UNIT, "prompt"]]

    keys = pd.MultiIndex.from_frame(numbers[results.UNIT])

    def renumbered(rows: pd.DataFrame) -> pd.DataFrame:
        rows = results.arm_rows(rows, arm)
        places = keys.get_indexer(pd.MultiIndex.from_frame(rows[results.UNIT]))
        return rows[places >= 0].assign(prompt_index=numbers["prompt"].to_numpy()[places[places >= 0]])

    return replace(run, prompts=renumbered(run.prompts), steps=renumbered(run.steps))


def _times(run: Run, prefix: str = "") -> pd.DataFrame:
    """Return tokens and milliseconds per prompt of a restricted run."""
    decode, whole = results.token_times(run.prompts), results.token_times(run.prompts, end_to_end=True)
    whole = whole.rename(columns={"tokens": "all_tokens", "ms": "all_ms"})
    return decode.join(whole).add_prefix(prefix)


def _columns(runs: Sequence[Run], restricted: Mapping[Path, Run]) -> pd.DataFrame:
    """Return times and counts of the method, over all timings of one side."""
    frames = []
    for run in (restricted[run.path] for run in runs):
        steps = run.steps.assign(steps=1).groupby("prompt_index")
        counts = steps[["emitted", "steps", "accepted_len", "draft_len"]].sum().astype(float)
        counts = counts.rename(columns={"accepted_len": "accepted", "draft_len": "drafted"})
        frames.append(_times(run).join(counts).fillna(0.0))  # an output of one token has no steps
    return _summed(frames)


def _summed(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the sum of frames with equal rows: a further timing counts as a further repeat of its prompts."""
    total = frames[0].sort_index()
    for frame in frames[1:]:
        total = total + frame
    return total


def _lack_of_work(runs: Sequence[Run]) -> str:
    """Return why the runs have no modelled times to compare; "" if they have."""
    references = sorted({reference_of(run.header) for run in runs})
    return "" if len(references) == 1 else f"reference machines differ (hardware.costs): {', '.join(references)}"


def _lack_of_scores(runs: Sequence[Run], restricted: Mapping[Path, Run]) -> str:
    """Return why the runs have no scores to compare; "" if they have."""
    tasks = sorted({f"{run.header.task.name} version {run.header.task.version}" for run in runs})
    if len(tasks) > 1:
        return f"scoring differs: {', '.join(tasks)}"
    return "an answer has no score" if any(_scores(run).isna().any() for run in restricted.values()) else ""


def _scores(run: Run) -> pd.Series[float]:
    """Return the mean score of each prompt over its repeats."""
    return run.prompts.groupby("prompt_index")["score"].mean()
