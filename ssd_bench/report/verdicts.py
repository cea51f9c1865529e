"""Verdicts of the records on the papers' claims: their table, the same as text, and verdicts read from files."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

import pandas as pd

from ssd_bench import tables
from ssd_bench.cost.shapes import known_shape
from ssd_bench.errors import ConfigError
from ssd_bench.metrics.text import ABSENT, TOY, costs_text
from ssd_bench.metrics.text import REHEARSAL as TRAINED_HERE
from ssd_bench.papers.claims.claims import STATISTICS, Claim, claims
from ssd_bench.papers.claims.judge import CANNOT_SAY, HOLDS, NOT_RUN, VERDICTS, Judgement
from ssd_bench.papers.ours import ran
from ssd_bench.papers.printed.catalogue import version_name
from ssd_bench.papers.printed.reported import numbers
from ssd_bench.paths import record_files

FOLDER = "verdicts"
COLUMNS = {
    "claim": "paper/name, as in the paper's claims.yaml",
    "scale": "scale of the runs",
    "model": "names of the models that ran",
    "params": "their numbers of parameters; absent in older files",
    "rehearsal": "whether this project trained the model",
    "verdict": "holds, fails, cannot say, or not run",
    "effect": "effect in the claim's unit",
    "low": "lower end of its 95 % interval",
    "high": "upper end",
    "n": "distinct prompts; for a number that a run has once, searches",
    "places": "(task, method, setting) combinations that the effect is pooled over",
    "asked": "combinations that the paper's table or figure has",
    "floor": "relative standard deviation of the effect over repeated timings, where measured",
    "reason": "why no verdict is possible",
    "times": "times of the effect: modelled at the costs of a machine, or measured here; empty without times",
    "measured": "next to a modelled effect: effect by the times measured here",
    "measured_low": "lower end of its 95 % interval",
    "measured_high": "upper end",
}
PARAMS = "params"
MEASURED = ("measured", "measured_low", "measured_high")
MEASURED_HERE = "measured here"
WIDTH = 50
MANY = 100  # if the number of prompts must grow by more than this factor, more prompts are no practical answer


def table(judgements: Iterable[Judgement]) -> pd.DataFrame:
    """Return one row per claim and scale, with the columns `COLUMNS`."""
    rows = [
        {
            "claim": judged.claim.id,
            "scale": judged.scale,
            "model": ", ".join(model.name for model in judged.models),
            "params": ran.parameter_counts(judged.models),
            "rehearsal": judged.toy,
            "verdict": judged.verdict,
            "effect": judged.effect,
            "low": judged.low,
            "high": judged.high,
            "n": judged.n,
            "places": judged.comparisons,
            "asked": judged.planned,
            "floor": judged.variation,
            "reason": judged.reason,
            "times": _times(judged),
            **_measured(judged.measured),
        }
        for judged in judgements
    ]
    return _typed(pd.DataFrame(rows, columns=list(COLUMNS)))


def _times(judged: Judgement) -> str:
    """Return a phrase on the times of an effect; "" if times do not determine it, or without runs."""
    if judged.references:
        return f"modelled at {' and '.join(map(costs_text, judged.references))}"
    return MEASURED_HERE if STATISTICS[judged.claim.statistic].timed and judged.verdict != NOT_RUN else ""


def _measured(judged: Judgement | None) -> dict[str, float | None]:
    """Return the columns of the effect by measured times, from the judgement next to one by modelled times."""
    values = (None, None, None) if judged is None else (judged.effect, judged.low, judged.high)
    return dict(zip(MEASURED, values))


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    texts = dict.fromkeys(("scale", "model", "params", "reason", "times"), "")
    return frame.fillna(texts).astype(dict.fromkeys(("effect", "low", "high", "floor", *MEASURED), "float64"))


def read_verdicts(runs_dir: Path) -> pd.DataFrame:
    """Read the verdicts in files under a folder of runs (written with `out=`), in the form of `table`.

    Raises:
        ConfigError: a file has other columns, claims or verdicts; names the file.
    """
    claim_ids = {claim.id for claim in claims()}
    frames = []
    for path in sorted(record_files(runs_dir, f"{FOLDER}/*.csv")):
        try:
            frame = _with_later_columns(pd.read_csv(path, dtype={"params": "str", "times": "str"}))
        except ValueError as error:
            raise ConfigError("verdicts", str(path), f"a table ({error})") from error
        if list(frame.columns) != list(COLUMNS) or not set(frame["claim"]) <= claim_ids:
            raise ConfigError("verdicts", str(path), f"columns {', '.join(COLUMNS)}, and claims of the papers")
        if not set(frame["verdict"]) <= set(VERDICTS):
            raise ConfigError("verdicts", str(path), f"verdicts of {', '.join(VERDICTS)}")
        frames.append(_typed(frame))
    return pd.concat(frames, ignore_index=True) if frames else table([])


def _with_later_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a file of verdicts with the columns that older files lack; their times were measured."""
    if not {"claim", "model", "verdict"} <= set(frame):
        return frame
    if PARAMS not in frame:
        frame = frame.assign(params=[_known_params(names) for names in frame["model"]])
    if "times" not in frame:
        timed = {claim.id for claim in claims() if STATISTICS[claim.statistic].timed}
        has_times = frame["claim"].isin(timed) & (frame["verdict"] != NOT_RUN)
        frame = frame.assign(times=has_times.map({True: MEASURED_HERE, False: ""}), **dict.fromkeys(MEASURED, math.nan))
    return frame[[*(name for name in COLUMNS if name in frame), *(name for name in frame if name not in COLUMNS)]]


def _known_params(names: object) -> str:
    """Look up the sizes of models in `conf/model`, for an old file of verdicts without them."""
    shapes = {name: known_shape(name) for name in str(names).split(", ")}
    return ran.parameter_counts(
        [ran.ModelRan(name, shape.n_params if shape else None) for name, shape in shapes.items()]
    )


def merge_verdicts(local: pd.DataFrame, external: pd.DataFrame | None) -> pd.DataFrame:
    """Add external verdicts to those of local records, which take precedence for the same claim and model."""
    if external is None or external.empty:
        return local
    local_keys = set(zip(local["claim"], local["model"]))
    further = external[[key not in local_keys for key in zip(external["claim"], external["model"])]]
    return pd.concat([local, further], ignore_index=True)


# --- as texts ---------------------------------------------------------------------------------------------------------


def verdict_text(row: pd.Series) -> str:
    """Return the verdict, marked if it comes from a toy-model run."""
    return f"{row['verdict']} ({TOY})" if row["rehearsal"] else str(row["verdict"])


def model_text(row: pd.Series) -> str:
    """Return the models that ran, with their sizes; "" if no model ran."""
    names, params = (str(row[name]) for name in ("model", PARAMS))
    if not names:
        return ""
    sizes = params.split("; ") if params else [""] * len(names.split(", "))
    models = [
        ran.ModelRan(name, int(count) if count else None) for name, count in zip(names.split(", "), sizes, strict=True)
    ]
    return ran.model_names(models)


def effect_text(claim: Claim, row: pd.Series) -> str:
    """Return the effect with its interval, in the claim's unit."""
    return _interval_text(claim, *row[["effect", "low", "high"]])


def times_text(claim: Claim, row: pd.Series) -> str:
    """Return whether the times of an effect are modelled or measured; next to a modelled effect, the measured one."""
    times = str(row["times"])
    if times in ("", MEASURED_HERE):
        return times
    measured = _interval_text(claim, *row[[*MEASURED]])
    return f"{times}; {MEASURED_HERE}: {measured}"


def _interval_text(claim: Claim, effect: float, low: float, high: float) -> str:
    if math.isnan(effect):
        return ABSENT
    sign = "+" if claim.effect == "difference" else ""
    size = abs(effect)
    form = f"{sign},.{3 if size < 0.1 else 0 if size >= 100 else 2}f"
    text = f"{effect:{form}}"
    if not math.isnan(low):
        text += f" [{low:{form}}, {high:{form}}]"
    return f"{text}×" if _is_ratio(claim) else text


def threshold_text(claim: Claim) -> str:
    """Return the threshold of a claim."""
    sign, value = ("≥", claim.at_least) if claim.at_least is not None else ("≤", claim.at_most)
    return f"{sign} {value:g}{'×' if _is_ratio(claim) else ''}"


def _is_ratio(claim: Claim) -> bool:
    return claim.effect == "ratio" or claim.statistic.startswith("speedup")


def statistic_text(claim: Claim) -> str:
    """Return the statistic of a claim, in a few words."""
    meaning = STATISTICS[claim.statistic].meaning
    relation = {"ratio": "ratio of the two sides", "difference": "difference of the two sides", "value": "value"}
    return f"{claim.statistic} ({meaning}), {relation[claim.effect]}"


def evidence_text(claim: Claim, row: pd.Series) -> str:
    """Return the evidence of a verdict: prompts, combinations, run-to-run variation, and why it is "cannot say"."""
    if row["verdict"] == NOT_RUN:
        return str(row["reason"])
    unit = "searches" if STATISTICS[claim.statistic].once_per_run else "prompts"
    parts = [f"n = {row['n']} {unit}" if row["n"] else "", f"{row['places']} of {row['asked']} combinations"]
    parts += [] if math.isnan(row["floor"]) else [f"run-to-run variation {100 * row['floor']:.1f} %"]
    parts += [str(row["reason"])] if row["verdict"] == CANNOT_SAY else []
    return "; ".join(filter(None, parts))


def verdict_change(claim: Claim, row: pd.Series) -> str:
    """Return a phrase on what would change a verdict."""
    if row["verdict"] == NOT_RUN:
        return f"runs of the experiment: `python -m ssd_bench -m experiment={claim.exhibit} scale=SCALE`"
    if math.isnan(row["low"]):
        return f"runs without this problem: {row['reason']}"
    bound = claim.at_least if claim.at_least is not None else claim.at_most
    assert bound is not None, "a claim has one of the two"
    if row["verdict"] == CANNOT_SAY:
        distance = abs(row["effect"] - bound)
        # the width of an interval falls with the square root of n, so n must grow by (half width / distance)^2
        factor = ((row["high"] - row["low"]) / 2 / distance) ** 2 if distance else math.inf
        if factor > MANY:
            return f"no practical number of prompts, because the effect is too close to {bound:g}"
        needed = math.ceil(max(factor, 2)) * int(row["n"])
        return f"about {needed} prompts instead of {row['n']}, if the effect stays the same"
    above = claim.at_least is not None
    if row["verdict"] == HOLDS:
        side, end = ("below", row["low"]) if above else ("above", row["high"])
        return f"an interval that extends {side} the threshold; the present one ends at {end:.2f}"
    return f"an interval that reaches {bound:g}; the present one ends at {row['high' if above else 'low']:.2f}"


def paper_values(claim: Claim) -> str:
    """Return the paper's numbers for a claim: metrics with their ranges."""
    values_by_metric: dict[str, list[float]] = {}
    for number in numbers():
        if any(fnmatchcase(number.id, glob) for glob in claim.theirs):
            values_by_metric.setdefault(number.metric, []).append(number.value)
    ranges = [
        f"{metric} {min(values):g}" + (f" to {max(values):g}" if len(set(values)) > 1 else "")
        for metric, values in values_by_metric.items()
    ]
    return ", ".join(ranges) or "shown or stated without a number"


def verdict_counts(frame: pd.DataFrame) -> str:
    """Count the claims by verdict: "3 hold, 2 fail, 4 cannot say"."""
    totals = frame["verdict"].value_counts()
    words = {"holds": ("holds", "hold"), "fails": ("fails", "fail")}
    parts = [
        f"{totals[word]} {words.get(word, (word, word))[int(totals[word] > 1)]}"
        for word in VERDICTS
        if word in totals.index
    ]
    return ", ".join(parts)


def readable_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the verdicts as texts for a reader."""
    by_id = {claim.id: claim for claim in claims()}
    rows = []
    for _, row in frame.iterrows():
        claim = by_id[row["claim"]]
        rows.append(
            {
                "paper": version_name(claim.id.partition("/")[0]),
                "claim": claim.says,
                "model": model_text(row) or ABSENT,
                "verdict": verdict_text(row),
                "effect": effect_text(claim, row),
                "times": times_text(claim, row) or ABSENT,
                "threshold": threshold_text(claim),
                "evidence": evidence_text(claim, row),
            }
        )
    return pd.DataFrame(
        rows, columns=["paper", "claim", "model", "verdict", "effect", "times", "threshold", "evidence"]
    )


def terminal_text(frame: pd.DataFrame) -> str:
    """Return the verdicts for a terminal."""
    parts = []
    for paper, rows in readable_table(frame).groupby("paper", sort=False):
        claims_of_paper = rows.drop(columns="paper")
        parts.append(f"{paper}\n\n{tables.terminal(claims_of_paper, wrap=[40, 12, None, None, 24, None, WIDTH])}")
    toy = [f"{TOY}: {TRAINED_HERE.removeprefix(f'{TOY} ')}"] if frame["rehearsal"].any() else []
    return "\n\n".join([*parts, *toy, f"{len(frame)} claims: {verdict_counts(frame)}"])


def document(frame: pd.DataFrame) -> str:
    """Return the verdicts as Markdown."""
    parts = ["# Which claims hold", RULE]
    for (paper, model), rows in readable_table(frame).groupby(["paper", "model"], sort=False):
        parts += [
            f"## {paper}, " + ("not run" if model == ABSENT else str(model)),
            tables.markdown(rows.drop(columns=["paper", "model"])),
        ]
    return "\n\n".join(parts) + "\n"


RULE = """Statements and thresholds were written before the runs (`claims.yaml` of each paper). *Holds*: the effect
reaches its threshold, and its 95 % interval does not include the value for no effect. *Fails*: the whole interval is on
the other side of the threshold. *Cannot say*: neither, or too few prompts, an excluded run, or sides timed on different
machines. Claims about speed are judged by times that are *modelled* from the recorded work, at the costs of a GPU and a
model size, with the effect by the times *measured here* next to them; by the latter alone if a record does not count
its work. The interval is over prompts and, for measured times, over run-to-run variation where it was measured. The
evidence counts the combinations of model, task and setting with runs, out of those of the paper's table or figure. A
*toy-model run* uses a model that this project trained; it says nothing about the paper's model."""
