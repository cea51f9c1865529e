"""What the records say of each of the papers' claims.

`python -m ssd_bench claims [runs_dir=runs] [scale=small] [out=FILE.csv]`
    every claim with its verdict, effect, 95 % interval, prompts and noise floor; the rule is in papers/claims.py
    scale: of the runs, all unless given
    out: the same as CSV; in a folder `verdicts` under runs_dir the report shows it beside its own: verdicts of records
    that are not kept there
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import pandas as pd

from ssd_bench import tables
from ssd_bench.command import options, run_tool
from ssd_bench.cost.shapes import known_shape
from ssd_bench.errors import ConfigError
from ssd_bench.metrics.text import ABSENT, TOY
from ssd_bench.metrics.text import REHEARSAL as TRAINED_HERE
from ssd_bench.papers import ran
from ssd_bench.papers.cells import prepare_records, replications
from ssd_bench.papers.claims import STATISTICS, Claim, claims
from ssd_bench.papers.judge import CANNOT_SAY, HOLDS, NOT_RUN, VERDICTS, Judgement, judge
from ssd_bench.papers.reported import numbers
from ssd_bench.papers.rooms import version_name
from ssd_bench.paths import local_path
from ssd_bench.records.files import write_atomic
from ssd_bench.records.pack import unpacked_folder

OPTIONS = ("runs_dir", "scale", "out")
FOLDER = "verdicts"
COLUMNS = {
    "claim": "paper/name, as in the paper's claims.yaml",
    "scale": "of the runs",
    "model": "that ran",
    "params": "its number of parameters; files written before this column lack it",
    "rehearsal": "whether this project trained it",
    "verdict": "holds, fails, cannot say, not run",
    "effect": "in the claim's unit",
    "low": "of its 95 % interval",
    "high": "",
    "n": "distinct prompts behind it; searches, of a number that a run has once",
    "places": "that it is pooled over: where all is equal but what is compared",
    "asked": "places that the exhibit has",
    "floor": "relative standard deviation of the effect between moments, where the noise floor was measured",
    "reason": "why it cannot be said",
}
PARAMS = "params"
WIDTH = 50
MANY = 100  # times as many prompts


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0, or 2 if an option cannot be used."""
    return run_tool(_claims, __doc__, arguments)


def _claims(arguments: Sequence[str]) -> None:
    given = options(arguments, OPTIONS)
    made = replications(local_path("runs_dir", given.get("runs_dir", "runs")))
    scales = {one.scale for one in made}
    if (scale := given.get("scale")) is not None:
        if scale not in scales:
            raise ConfigError("scale", scale, f"one of {', '.join(sorted(scales)) or 'none: there are no runs there'}")
        made = [one for one in made if one.scale == scale]
    prepare_records(cell.record for one in made for cell in one.recorded_cells() if cell.record is not None)
    frame = table(judge(made))
    print(terminal_text(frame))
    if "out" in given:
        path = local_path("out", given["out"])
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, tables.csv(frame[frame["verdict"] != NOT_RUN]).encode())
        except OSError as error:
            raise ConfigError("out", str(path), f"a file that can be written ({error})") from error
        print(path)


def table(found: Iterable[Judgement]) -> pd.DataFrame:
    """A row a claim and scale, columns as `COLUMNS`."""
    rows = [
        {
            "claim": one.claim.id, "scale": one.scale, "model": ", ".join(model.name for model in one.models),
            "params": ran.parameter_counts(one.models), "rehearsal": one.toy,
            "verdict": one.verdict, "effect": one.effect, "low": one.low, "high": one.high, "n": one.n,
            "places": one.comparisons, "asked": one.planned, "floor": one.variation, "reason": one.reason,
        }
        for one in found
    ]  # fmt: skip
    return _typed(pd.DataFrame(rows, columns=list(COLUMNS)))


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    texts = dict.fromkeys(("scale", "model", "params", "reason"), "")
    return frame.fillna(texts).astype(dict.fromkeys(("effect", "low", "high", "floor"), "float64"))


def read_verdicts(runs_dir: Path) -> pd.DataFrame:
    """The verdicts that stand in files under a folder of runs (`out=`), as `table`.

    Raises:
        ConfigError: a file that does not fit; names it.
    """
    known = {claim.id for claim in claims()}
    frames = []
    for path in sorted(unpacked_folder(runs_dir).rglob(f"{FOLDER}/*.csv")):
        try:
            frame = pd.read_csv(path, dtype={"params": "str"})
        except ValueError as error:
            raise ConfigError("verdicts", str(path), f"a table ({error})") from error
        if PARAMS not in frame and "model" in frame:
            frame.insert(list(COLUMNS).index(PARAMS), PARAMS, [_known_params(names) for names in frame["model"]])
        if list(frame.columns) != list(COLUMNS) or not set(frame["claim"]) <= known:
            raise ConfigError("verdicts", str(path), f"columns {', '.join(COLUMNS)}, and claims of the papers")
        if not set(frame["verdict"]) <= set(VERDICTS):
            raise ConfigError("verdicts", str(path), f"verdicts of {', '.join(VERDICTS)}")
        frames.append(_typed(frame))
    return pd.concat(frames, ignore_index=True) if frames else table([])


def _known_params(names: object) -> str:
    """Look models up in `conf/model`, for a file of verdicts without their sizes, whose records are elsewhere."""
    shapes = {name: known_shape(name) for name in str(names).split(", ")}
    return ran.parameter_counts(
        [ran.ModelRan(name, shape.n_params if shape else None) for name, shape in shapes.items()]
    )


def merge_verdicts(own: pd.DataFrame, others: pd.DataFrame | None) -> pd.DataFrame:
    """Verdicts of records that are here and of others, which do not replace those of the same claim and model."""
    if others is None or others.empty:
        return own
    known = set(zip(own["claim"], own["model"]))
    more = others[[key not in known for key in zip(others["claim"], others["model"])]]
    return pd.concat([own, more], ignore_index=True)


# --- as texts ---------------------------------------------------------------------------------------------------------


def verdict_text(row: pd.Series) -> str:
    """The verdict, as a reader is to take it."""
    return f"{row['verdict']} ({TOY})" if row["rehearsal"] else str(row["verdict"])


def model_text(row: pd.Series) -> str:
    """Return the models that ran, with their sizes; "" where none did."""
    names, params = (str(row[name]) for name in ("model", PARAMS))
    if not names:
        return ""
    sizes = params.split("; ") if params else [""] * len(names.split(", "))
    models = [
        ran.ModelRan(name, int(count) if count else None) for name, count in zip(names.split(", "), sizes, strict=True)
    ]
    return ran.model_names(models)


def effect_text(claim: Claim, row: pd.Series) -> str:
    """The effect with its interval, in the claim's unit."""
    if math.isnan(row["effect"]):
        return ABSENT
    sign = "+" if claim.effect == "difference" else ""
    size = abs(row["effect"])
    form = f"{sign},.{3 if size < 0.1 else 0 if size >= 100 else 2}f"
    found = f"{row['effect']:{form}}"
    if not math.isnan(row["low"]):
        found += f" [{row['low']:{form}}, {row['high']:{form}}]"
    return f"{found}×" if _is_ratio(claim) else found


def threshold_text(claim: Claim) -> str:
    """What the effect has to reach."""
    sign, value = ("≥", claim.at_least) if claim.at_least is not None else ("≤", claim.at_most)
    return f"{sign} {value:g}{'×' if _is_ratio(claim) else ''}"


def _is_ratio(claim: Claim) -> bool:
    return claim.effect == "ratio" or claim.statistic.startswith("speedup")


def statistic_text(claim: Claim) -> str:
    """What the effect is, in a few words."""
    what = STATISTICS[claim.statistic].meaning
    said = {"ratio": "ratio of the two sides", "difference": "difference of the two sides", "value": "value"}
    return f"{claim.statistic} ({what}), {said[claim.effect]}"


def evidence_text(claim: Claim, row: pd.Series) -> str:
    """What stands behind a verdict: prompts, places, the noise floor, and why it cannot be said."""
    if row["verdict"] == NOT_RUN:
        return str(row["reason"])
    counted = "searches" if STATISTICS[claim.statistic].once_per_run else "prompts"
    parts = [f"n = {row['n']} {counted}" if row["n"] else "", f"{row['places']} of {row['asked']} places"]
    parts += [] if math.isnan(row["floor"]) else [f"noise floor {100 * row['floor']:.1f} %"]
    parts += [str(row["reason"])] if row["verdict"] == CANNOT_SAY else []
    return "; ".join(filter(None, parts))


def verdict_change(claim: Claim, row: pd.Series) -> str:
    """What would change a verdict."""
    if row["verdict"] == NOT_RUN:
        return f"its runs: `python -m ssd_bench -m experiment={claim.exhibit} scale=SCALE`"
    if math.isnan(row["low"]):
        return f"runs of which this is not so: {row['reason']}"
    bound = claim.at_least if claim.at_least is not None else claim.at_most
    assert bound is not None, "a claim has one of the two"
    if row["verdict"] == CANNOT_SAY:
        apart = abs(row["effect"] - bound)
        times = ((row["high"] - row["low"]) / 2 / apart) ** 2 if apart else math.inf
        if times > MANY:
            return f"next to nothing: the effect is so near to {bound:g} that prompts alone will not part them"
        return f"if the effect stays, some {math.ceil(max(times, 2)) * int(row['n'])} prompts instead of {row['n']}"
    above = claim.at_least is not None
    if row["verdict"] == HOLDS:
        return f"an interval that reaches {'below' if above else 'above'} the limit: it ends at " + (
            f"{row['low' if above else 'high']:.2f}"
        )
    return f"an interval that reaches {bound:g}: it ends at {row['high' if above else 'low']:.2f}"


def paper_values(claim: Claim) -> str:
    """What the paper prints for it: metrics with their ranges."""
    found: dict[str, list[float]] = {}
    for one in numbers():
        if any(fnmatchcase(one.id, glob) for glob in claim.theirs):
            found.setdefault(one.metric, []).append(one.value)
    ranges = [
        f"{metric} {min(values):g}" + (f" to {max(values):g}" if len(set(values)) > 1 else "")
        for metric, values in found.items()
    ]
    return ", ".join(ranges) or "drawn or said, without a number"


def verdict_counts(frame: pd.DataFrame) -> str:
    """How many claims have which verdict: "3 hold, 2 fail, 4 cannot say"."""
    found = frame["verdict"].value_counts()
    words = {"holds": ("holds", "hold"), "fails": ("fails", "fail")}
    said = [
        f"{found[word]} {words.get(word, (word, word))[int(found[word] > 1)]}"
        for word in VERDICTS
        if word in found.index
    ]
    return ", ".join(said)


def readable_table(frame: pd.DataFrame) -> pd.DataFrame:
    """The same for a reader."""
    by_id = {claim.id: claim for claim in claims()}
    rows = []
    for _, row in frame.iterrows():
        claim = by_id[row["claim"]]
        rows.append(
            {
                "paper": version_name(claim.id.partition("/")[0]), "claim": claim.says,
                "model": model_text(row) or ABSENT, "verdict": verdict_text(row), "effect": effect_text(claim, row),
                "asked": threshold_text(claim), "evidence": evidence_text(claim, row),
            }
        )  # fmt: skip
    return pd.DataFrame(rows, columns=["paper", "claim", "model", "verdict", "effect", "asked", "evidence"])


def terminal_text(frame: pd.DataFrame) -> str:
    """The verdicts for a terminal."""
    parts = []
    for paper, rows in readable_table(frame).groupby("paper", sort=False):
        own = rows.drop(columns="paper")
        parts.append(f"{paper}\n\n{tables.terminal(own, wrap=[40, 12, None, None, None, WIDTH])}")
    toy = [f"{TOY}: {TRAINED_HERE.removeprefix(f'{TOY} ')}"] if frame["rehearsal"].any() else []
    return "\n\n".join([*parts, *toy, f"{len(frame)} claims: {verdict_counts(frame)}"])


def document(frame: pd.DataFrame) -> str:
    """The same as Markdown."""
    parts = ["# Which claims hold", RULE]
    for (paper, model), rows in readable_table(frame).groupby(["paper", "model"], sort=False):
        parts += [
            f"## {paper}, " + ("not run" if model == ABSENT else str(model)),
            tables.markdown(rows.drop(columns=["paper", "model"])),
        ]
    return "\n\n".join(parts) + "\n"


RULE = """Statements and thresholds were written before the runs (`claims.yaml` of each paper). *Holds*: the effect
reaches its threshold and its 95 % interval excludes no effect; *fails*: the whole interval is on the other side of the
threshold; *cannot say*: neither, too few prompts, a void cell, or sides timed on different machines. The interval is
over prompts and moments. A *toy-model run* is of a model that this project trained: it says nothing of the paper."""
