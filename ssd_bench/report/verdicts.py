"""Verdicts of the records on the papers' claims: as a table, as text, and from files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from ssd_bench.errors import ConfigError
from ssd_bench.papers.claims.claims import STATISTICS, claims
from ssd_bench.papers.claims.judge import CANNOT_SAY, NOT_RUN, VERDICTS, Judgement
from ssd_bench.papers.runs import scale as scales
from ssd_bench.paths import record_files
from ssd_bench.results.models import parameter_counts
from ssd_bench.results.text import costs_text

FOLDER = "verdicts"
SEEDS, PROMPTS = "seeds", "prompts"
COLUMNS = (
    *("claim", "scale", "model", "params", "toy", "evidence_class", "verdict", "effect", "low", "high", "n", "sample"),
    *("loops", "scaled", "combinations", "planned_combinations", "out_of_scope", "variation", "reason", "times"),
    *("measured", "measured_low", "measured_high", "decided_by", "after_runs", "claim_sha256", "records"),
)
"""Columns of `table`, which docs/glossary.md explains."""
PARAMS = "params"
MEASURED = ("measured", "measured_low", "measured_high")
MEASURED_HERE = "measured here"
OF_JUDGEMENT: tuple[str, ...] = ("scale", "toy", "evidence_class", "verdict", "effect", "low", "high", "n", "loops")
OF_JUDGEMENT += ("out_of_scope", "variation", "reason", "after_runs")
"""Columns that are named as in a `Judgement`."""
MANY = 100  # if the number of prompts must grow by more than this factor, more prompts are no practical answer


def table(judgements: Iterable[Judgement]) -> pd.DataFrame:
    """Return one row per claim and scale, with the columns `COLUMNS`."""
    rows = [
        {
            "claim": judged.claim.id,
            "model": ", ".join(model.name for model in judged.models),
            "params": parameter_counts(judged.models),
            "sample": SEEDS if judged.by_seed else PROMPTS,
            "scaled": "; ".join(judged.scaled),
            "combinations": judged.comparisons,
            "planned_combinations": judged.planned,
            "times": _times(judged),
            **_measured(judged.measured),
            "decided_by": _decided_by(judged),
            "claim_sha256": judged.claim.sha256,
            "records": True,
            **{name: getattr(judged, name) for name in OF_JUDGEMENT},
        }
        for judged in judgements
    ]
    return _typed(pd.DataFrame(rows, columns=list(COLUMNS)))


def _times(judged: Judgement) -> str:
    """Return a phrase on the times of an effect; "" without runs, or if times do not determine it."""
    if judged.references:
        return f"modelled at {' and '.join(map(costs_text, judged.references))}"
    return MEASURED_HERE if STATISTICS[judged.claim.statistic].timed and judged.verdict != NOT_RUN else ""


def _measured(judged: Judgement | None) -> dict[str, float | None]:
    values = (None, None, None) if judged is None else (judged.effect, judged.low, judged.high)
    return dict(zip(MEASURED, values))


def _decided_by(judged: Judgement) -> str:
    """Return the runs that would decide a claim that is "cannot say" or "not run", or ""."""
    claim = judged.claim
    if judged.verdict not in (CANNOT_SAY, NOT_RUN):
        return ""
    if judged.decided_by:
        return judged.decided_by
    if judged.verdict == NOT_RUN:
        return f"runs of the experiment: `{scales.command(claim.exhibit, judged.scale or 'paper')}`"
    if judged.effect is None or judged.low is None or judged.high is None:
        return f"runs without this problem: {judged.reason}"
    bound = claim.threshold
    distance = abs(judged.effect - bound)
    # the width of an interval falls with the square root of n, so n must grow by (half width / distance)^2
    factor = ((judged.high - judged.low) / 2 / distance) ** 2 if distance else math.inf
    sample = SEEDS if judged.by_seed else PROMPTS
    if factor > MANY:
        return f"no practical number of {sample}, because the effect is too close to {bound:g}"
    needed = math.ceil(max(factor, 2)) * judged.n
    return f"about {needed} {sample} instead of {judged.n}, if the effect stays the same"


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    names = ("scale", "model", "params", "evidence_class", "reason", "times", "decided_by", "sample", "scaled")
    texts = dict.fromkeys(names, "")
    return frame.fillna(texts).astype(dict.fromkeys(("effect", "low", "high", "variation", *MEASURED), "float64"))


def read_files(
    runs_dir: Path, folder: str, columns: Sequence[str], types: Mapping[str, str] | None = None
) -> Iterator[tuple[Path, pd.DataFrame]]:
    """Yield the tables in CSV files of all folders with this name under a folder of runs.

    Raises:
        ConfigError: a file has other columns; names the file.
    """
    for path in sorted(record_files(runs_dir, f"{folder}/*.csv")):
        try:
            frame = pd.read_csv(path, dtype=types)
        except ValueError as error:
            raise ConfigError(folder, str(path), f"a table ({error})") from error
        if list(frame.columns) != list(columns):
            raise ConfigError(folder, str(path), f"columns {', '.join(columns)}")
        yield path, frame


def read_verdicts(runs_dir: Path) -> pd.DataFrame:
    """Read the verdicts in files under a folder of runs (written with `out=`), as `table`, unless statement or test of
    the claim changed (by SHA-256).

    Raises:
        ConfigError: a file has other columns or verdicts; names the file.
    """
    present = {(claim.id, claim.sha256) for claim in claims()}
    frames, types = [], dict.fromkeys((PARAMS, "times", "decided_by", "claim_sha256"), "str")
    for path, frame in read_files(runs_dir, FOLDER, COLUMNS, types):
        frame = frame[[key in present for key in zip(frame["claim"], frame["claim_sha256"])]]
        if not set(frame["verdict"]) <= set(VERDICTS):
            raise ConfigError("verdicts", str(path), f"verdicts of {', '.join(VERDICTS)}")
        frames.append(_typed(frame).assign(records=False))
    return pd.concat(frames, ignore_index=True) if frames else table([])


def merge_verdicts(local: pd.DataFrame, external: pd.DataFrame) -> pd.DataFrame:
    """Add external verdicts; local ones take precedence for the same claim, model and scale."""
    if external.empty:
        return local
    keys = ["claim", "model", "scale"]
    local_keys = set(local[keys].itertuples(index=False, name=None))
    further = external[[key not in local_keys for key in external[keys].itertuples(index=False, name=None)]]
    return pd.concat([local, further], ignore_index=True)
