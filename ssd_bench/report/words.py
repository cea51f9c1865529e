"""What the report says of an exhibit: its name, what makes it, how ours stands to the paper's, and what is missing."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pandas as pd

from ssd_bench.metrics.text import REHEARSAL
from ssd_bench.papers import select, verdict
from ssd_bench.papers.cells import Replication
from ssd_bench.papers.reported import exhibits
from ssd_bench.papers.rooms import name_of, room_of
from ssd_bench.papers.values import OVER_AR

LEGEND = "Cells: ours [95 % interval over prompts] / the paper's. –: there is none of ours yet, or none can be."


def stem(paper: str, exhibit: str) -> str:
    """Name of an exhibit's files: `knn_ssd_table1`, as its experiment is called; `swift_text_5_2`."""
    numbered = re.sub(r"(Table|Figure) (?=\d)", r"\1", exhibit)
    return re.sub(r"[^a-z0-9]+", "_", f"{paper} {numbered}".lower()).strip("_")


def title(paper: str, exhibit: str) -> str:
    """Paper, exhibit and what it shows."""
    known = exhibits(paper, exhibit)["title"]
    return f"{name_of(paper)}, {exhibit}" + (f": {known.iloc[0]}" if len(known) else "")


def commands(paper: str, exhibit: str, frame: pd.DataFrame) -> list[str]:
    """What makes the runs of a table, at the scale of those that are there, else at the papers' own."""
    sources = select.experiments().get((paper, exhibit), ())
    if not sources:
        named = select.sources(paper, exhibit)
        sources = tuple(one for table in named for one in select.experiments().get((paper, table), ()))
    scales = [scale for scale in dict.fromkeys(frame["scale"]) if scale] or ["paper"]
    return [f"python -m ssd_bench -m experiment={one.name} scale={scale}" for one in sources for scale in scales]


def standing(frame: pd.DataFrame) -> str:
    """A sentence on what our numbers are: of which scale, and whether they say anything about the paper's values."""
    have = frame[frame["ours"].notna()]
    if have.empty:
        return "There is no number of ours yet."
    scales = ", ".join(dict.fromkeys(have["scale"]))
    some = f"Ours at scale {scales}: {len(have)} of {len(frame)} numbers."
    if have["rehearsal"].all():
        return f"{some} This is a {REHEARSAL}."
    if have["rehearsal"].any():
        return f"{some} {int(have['rehearsal'].sum())} of them are a {REHEARSAL}."
    if not have["verdict"].isin((verdict.AGREES, verdict.DIFFERS, verdict.OTHER_HARDWARE, verdict.BY_DEFINITION)).any():
        return (
            f"{some} They are of another model than the paper's or of fewer prompts: not a replication of its values."
        )
    return some


def verdicts(frame: pd.DataFrame) -> list[str]:
    """The two verdicts apart, in a sentence each, and how many row groups have the paper's order."""
    lines = []
    for name in (verdict.ALGORITHMIC, verdict.SPEED):
        found = frame.loc[frame["kind"] == name, "verdict"].value_counts()
        parts = ", ".join(f"{found[one]} {one}" for one in verdict.VERDICTS if one in found)
        lines += [f"{name.capitalize()}: {parts}."] if parts else []
    groups = verdict.orders(frame)
    if groups:
        pairs, concordant = sum(order.pairs for order in groups), sum(order.concordant for order in groups)
        same = sum(order.same_best for order in groups)
        lines.append(
            f"Order: {concordant} of {pairs} pairs as in the paper; same best in {same} of {len(groups)} groups."
        )
    return lines


def speedups(frame: pd.DataFrame) -> list[str]:
    """Of a paper that divides by Hugging Face `generate`: how its speedups are counted, and over what ours are."""
    own = frame[(frame["metric"] == "speedup") & frame["ours"].notna() & (frame["verdict"] != verdict.BY_DEFINITION)]
    counted = None if own.empty else room_of(str(own["paper"].iloc[0])).counts.get("speedup")
    if counted is None or counted.baseline != "hf":
        return []
    over_ar = int((own["reason"] != "").sum())
    parts = [f"{over_ar} of ours {OVER_AR}"] if over_ar else []
    parts += [f"{len(own) - over_ar} of ours over Hugging Face generate, as the paper's"] if over_ar < len(own) else []
    return [f"Speedup: {counted.meaning}, as the paper counts it; {', '.join(parts)}."]


def notes(paper: str, exhibit: str, replications: Iterable[Replication]) -> list[str]:
    """What the scales of the runs that are there take from an exhibit."""
    names = {one.name for one in select.experiments().get((paper, exhibit), ())}
    return [note for one in replications if one.experiment.name in names for note in one.notes]


def missing(frame: pd.DataFrame) -> list[str]:
    """Why numbers have none of ours beside them."""
    found = frame.loc[frame["ours"].isna() & (frame["reason"] != ""), "reason"].value_counts(sort=False)
    return [f"{count} without ours: {reason}" for reason, count in found.items()]


def run_ids(frame: pd.DataFrame) -> list[str]:
    """The runs behind a table, in the order of its numbers."""
    return list(dict.fromkeys(run for runs in frame["runs"] for run in runs.split("; ") if run))
