"""An exhibit's numbers with ours, a row each, and sentences on them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from ssd_bench.errors import ConfigError
from ssd_bench.metrics.text import REHEARSAL
from ssd_bench.papers import ran, select, verdict
from ssd_bench.papers.cells import TOY_MODEL as TRAINED_HERE
from ssd_bench.papers.cells import Replication
from ssd_bench.papers.match import Matcher
from ssd_bench.papers.reported import Number, exhibits, numbers
from ssd_bench.papers.rooms import folder_of, version_name
from ssd_bench.papers.values import OVER_AR

LEGEND = (
    "Each row says whose numbers it has: ours: the model that ran, with its size, and 95 % intervals over prompts (of "
    "speeds over moments as well where the noise floor was measured); paper: the paper's own model, which the paper "
    "ran. –: no number of ours. excluded: a run that decides nothing. same run: the result of another row, not a "
    "further one."
)
COLUMNS = {  # of the long form
    "id": "of the reported number, unique in the whole report",
    "paper": "",
    "exhibit": "table, figure, or passage",
    "model": "the paper's",
    "task": "",
    "method": "",
    "setting": "",
    "bound": "low, high, max or about: the paper gives a limit of a range",
    "metric": "",
    "unit": "",
    "printed": "the paper's number, its digits",
    "value": "the same as a number",
    "ours": "",
    "low": "of the 95 % interval over prompts",
    "high": "",
    "difference": "ours less the paper's",
    "relative": "that over the paper's",
    "decode": "of a speedup, which every paper counts end to end: ours of decoding alone",
    "decode_low": "",
    "decode_high": "",
    "estimate": "TPT as the method itself estimated it, tokens/s",
    "kind": "algorithmic or speed",
    "verdict": "",
    "order": "whether the methods of the row group come in the paper's order",
    "scale": "of our runs",
    "rehearsal": "whether a model stands behind it that this project trained",
    "model_ran": "the model of our runs, with its size",
    "params": "its number of parameters",
    "runs": "their ids",
    "result": "digest of statistic, runs and part of the runs: equal where two numbers are one result of ours",
    "repeats": "id of the first number of the exhibit with the same result",
    "reason": "why ours is missing, or in what it is not the paper's statistic",
}
FLOATS = (
    "value", "ours", "low", "high", "difference", "relative", "decode", "decode_low", "decode_high", "estimate"
)  # fmt: skip
TEXTS = ("id", "paper", "exhibit", "model", "task", "method", "setting", "bound", "metric", "unit", "printed")


def long_table(
    replications: Replication | Sequence[Replication], exhibit: str | None = None, paper: str | None = None
) -> pd.DataFrame:
    """Every reported number of an exhibit beside ours, one row each, in the order of the paper's.

    Args:
        replications: where to look; others than those of the exhibit do not matter, but for prose.
        exhibit: as in the reported numbers; None: that of the only replication.
        paper: None: that of the replications.

    Returns:
        Columns as `COLUMNS`.

    Raises:
        ConfigError: nothing says which exhibit or paper it is.
    """
    given = [replications] if isinstance(replications, Replication) else list(replications)
    exhibits = {one.experiment.exhibit for one in given} if exhibit is None else {exhibit}
    papers = {one.experiment.paper for one in given} if paper is None else {paper}
    if len(exhibits) != 1 or len(papers) != 1:
        raise ConfigError("exhibit", (sorted(papers), sorted(exhibits)), "one paper and one exhibit")
    return _long(Matcher(given), papers.pop(), exhibits.pop())


def long_tables(replications: Sequence[Replication], only: str | None = None) -> dict[tuple[str, str], pd.DataFrame]:
    """The tables of all that the papers report, by (paper, exhibit) in their order: each number is in exactly one.

    Numbers that figures, abstracts and the text state have tables of their own ("Figure 4", "text §5.2").

    Args:
        only: one paper.
    """
    matcher = Matcher(replications)
    exhibits = dict.fromkeys((one.paper, one.exhibit) for one in numbers() if only in (None, one.paper))
    return {(paper, exhibit): _long(matcher, paper, exhibit) for paper, exhibit in exhibits}


def _long(matcher: Matcher, paper: str, exhibit: str) -> pd.DataFrame:
    rows = [_row(number, matcher) for number in numbers() if (number.paper, number.exhibit) == (paper, exhibit)]
    floats = dict.fromkeys(FLOATS, "float64")
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype(floats)
    for order in verdict.rank_orders(frame):
        frame.loc[list(order.rows), "order"] = order.text
    first = frame.groupby("result")["id"].transform("first")
    frame["repeats"] = first.where((frame["result"] != "") & (first != frame["id"]), "")
    return frame


def _row(number: Number, matcher: Matcher) -> dict[str, Any]:
    ours = matcher.counterpart(number)
    row: dict[str, Any] = {name: getattr(number, name) for name in TEXTS} | {"value": number.value}
    if ours.value is not None:
        difference = ours.value.value - number.value
        row |= {"ours": ours.value.value, "low": ours.value.low, "high": ours.value.high, "difference": difference}
        row |= {"relative": difference / number.value if number.value else None, "estimate": ours.value.estimate}
    if ours.decode is not None:
        row |= {"decode": ours.decode.value, "decode_low": ours.decode.low, "decode_high": ours.decode.high}
    return row | {
        "kind": verdict.metric_kind(number),
        "verdict": ours.verdict,
        "order": "",
        "scale": ours.scale if ours.value is not None else "",
        "rehearsal": ours.setup == TRAINED_HERE,
        "model_ran": ran.model_names(ours.models),
        "params": ran.parameter_counts(ours.models),
        "runs": "; ".join(ours.runs),
        "result": ours.value.result if ours.value is not None else "",
        "repeats": "",
        "reason": ours.reason,
    }


def verdict_counts(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """How many numbers have which verdict, by paper.

    Returns:
        One row a paper, one column each of `verdict.VERDICTS`, `numbers`, and of what stands behind these: `distinct
        results` of ours and `runs`.
    """
    joined = pd.concat([frame[["paper", "verdict", "result", "runs"]] for frame in frames], ignore_index=True)
    found = pd.crosstab(joined["paper"], joined["verdict"]).reindex(columns=list(verdict.VERDICTS), fill_value=0)
    found = found.loc[list(dict.fromkeys(joined["paper"]))]
    found["numbers"] = found.sum(axis=1)
    own = {paper: joined[joined["paper"] == paper] for paper in found.index}
    found["distinct results"] = [len(distinct_results(own[paper])) for paper in found.index]
    found["runs"] = [len(run_ids(own[paper])) for paper in found.index]
    return found.rename_axis(columns=None).reset_index()


# --- what is said of an exhibit ---------------------------------------------------------------------------------------


def file_stem(paper: str, exhibit: str) -> str:
    """Name of an exhibit's files: `knn_ssd_table1`, as its experiment is called; `swift_text_5_2`."""
    numbered = re.sub(r"(Table|Figure) (?=\d)", r"\1", exhibit)
    return re.sub(r"[^a-z0-9]+", "_", f"{paper} {numbered}".lower()).strip("_")


def title(paper: str, exhibit: str) -> str:
    """Paper, exhibit and what it shows."""
    known = exhibits(paper, exhibit)["title"]
    return f"{version_name(paper)}, {exhibit}" + (f": {known.iloc[0]}" if len(known) else "")


def commands(paper: str, exhibit: str, frame: pd.DataFrame) -> list[str]:
    """What makes the runs of a table, at the scale of those that are there, else at the papers' own."""
    sources = select.experiments().get((paper, exhibit), ())
    if not sources:
        named = select.source_exhibits(paper, exhibit)
        sources = tuple(one for table in named for one in select.experiments().get((paper, table), ()))
    scales = [scale for scale in dict.fromkeys(frame["scale"]) if scale] or ["paper"]
    return [f"python -m ssd_bench -m experiment={one.name} scale={scale}" for one in sources for scale in scales]


def describe_results(frame: pd.DataFrame) -> str:
    """A sentence on what our numbers are: of which scale, and whether they say anything about the paper's values."""
    have = frame[frame["ours"].notna()]
    if have.empty:
        return "There is no number of ours yet."
    scales, models = (", ".join(dict.fromkeys(have[name])) for name in ("scale", "model_ran"))
    counted = [
        f"{count_phrase(run_ids(have), 'run')} at scale {scales}",
        count_phrase(distinct_results(have), "distinct result"),
    ]
    repeated = int((have["repeats"] != "").sum())
    defined = int((have["verdict"] == verdict.BY_DEFINITION).sum())
    counted += [f"{repeated} repeat one of them"] if repeated else []
    counted += [f"{defined} are 1 by definition"] if defined else []
    some = f"Ours: {models}; {len(have)} of {len(frame)} numbers of the paper have one: {', '.join(counted)}."
    some += describe_shared_runs(str(frame["paper"].iloc[0]), str(frame["exhibit"].iloc[0]))
    toys = int(have["rehearsal"].sum())
    if toys:
        which = "A" if toys == len(have) else f"{toys} of them are of a"
        return f"{some} {which} {REHEARSAL}."
    if not have["verdict"].isin((verdict.AGREES, verdict.DIFFERS, verdict.OTHER_HARDWARE, verdict.BY_DEFINITION)).any():
        return (
            f"{some} They are of another model than the paper's or of fewer prompts: not a replication of its values."
        )
    return some


def describe_shared_runs(paper: str, exhibit: str) -> str:
    """Return a sentence on the exhibits whose runs give these numbers; "" for runs of its own."""
    sources = select.experiments().get((paper, exhibit))
    if sources is None:
        names = select.source_exhibits(paper, exhibit)
        return f" The runs are those of {', '.join(names)}." if names else ""
    others = [one for one in sources if (one.paper, one.exhibit) != (paper, exhibit)]
    names = [f"{version_name(one.paper)}, {one.exhibit}" for one in others]
    return f" The runs are those of {'; '.join(names)}." if names else ""


def distinct_results(frame: pd.DataFrame) -> list[str]:
    """Return the distinct results of ours behind a table."""
    return [result for result in dict.fromkeys(frame["result"]) if result]


def count_phrase(things: Sequence[object], name: str) -> str:
    """Return a count with its noun."""
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def verdict_sentences(frame: pd.DataFrame) -> list[str]:
    """The two verdicts apart, in a sentence each, and how far the paper's order is kept."""
    lines = []
    for name in (verdict.ALGORITHMIC, verdict.SPEED):
        found = frame.loc[frame["kind"] == name, "verdict"].value_counts()
        parts = ", ".join(f"{found[one]} {one}" for one in verdict.VERDICTS if one in found)
        distinct = count_phrase(distinct_results(frame[frame["kind"] == name]), "distinct result")
        lines += [f"{name.capitalize()}: {parts}; {distinct}."] if parts else []
    return [*lines, *order_sentences(frame)]


def order_sentences(frame: pd.DataFrame) -> list[str]:
    """How far our runs come in the paper's order, by metric, over distinct pairs that are not void."""
    groups = verdict.rank_orders(frame)
    found = verdict.order_agreements(groups)
    lines = []
    for methods, what in ((True, "methods within a setting"), (False, "settings of one method")):
        said = ", ".join(one.text for one in found if one.methods == methods)
        if said:
            own = [group for group in groups if group.methods == methods]
            best = f"same best in {sum(group.same_best for group in own)} of {len(own)} groups"
            lines.append(f"In the paper's order, {what}: {said}; {best}.")
    return lines


def speedup_sentences(frame: pd.DataFrame) -> list[str]:
    """Of a paper that divides by Hugging Face `generate`: how its speedups are counted, and over what ours are."""
    own = frame[(frame["metric"] == "speedup") & frame["ours"].notna() & (frame["verdict"] != verdict.BY_DEFINITION)]
    counted = None if own.empty else folder_of(str(own["paper"].iloc[0])).counts.get("speedup")
    if counted is None or counted.baseline != "hf":
        return []
    over_ar = int((own["reason"] != "").sum())
    parts = [f"{over_ar} of ours {OVER_AR}"] if over_ar else []
    parts += [f"{len(own) - over_ar} of ours over Hugging Face generate, as the paper's"] if over_ar < len(own) else []
    return [f"Speedup: {counted.meaning}, as the paper counts it; {', '.join(parts)}."]


def scale_notes(paper: str, exhibit: str, replications: Iterable[Replication]) -> list[str]:
    """What the scales of the runs that are there take from an exhibit."""
    names = {one.name for one in select.experiments().get((paper, exhibit), ())}
    return [note for one in replications if one.experiment.name in names for note in one.notes]


def missing_reasons(frame: pd.DataFrame) -> list[str]:
    """Why numbers have none of ours beside them."""
    found = frame.loc[frame["ours"].isna() & (frame["reason"] != ""), "reason"].value_counts(sort=False)
    return [f"{count} without ours: {reason}" for reason, count in found.items()]


def run_ids(frame: pd.DataFrame) -> list[str]:
    """The runs behind a table, in the order of its numbers."""
    return list(dict.fromkeys(run for runs in frame["runs"] for run in runs.split("; ") if run))
