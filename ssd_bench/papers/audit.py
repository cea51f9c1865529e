"""What the papers' own numbers imply, against what they print: every comparison, and the disagreements in words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict

import pandas as pd

from ssd_bench import tables
from ssd_bench.papers.arithmetic import CONSISTENT, FINDINGS, ROUNDING, repeats
from ssd_bench.papers.rooms import papers, rooms

COLUMNS = ("id", "paper", "exhibit", "check", "what", "stated", "implied", "difference", "source", "verdict")
VERDICTS = (CONSISTENT, ROUNDING, *FINDINGS)
MANY = 7  # so many findings of one check in one exhibit are told in one entry
WIDTH = 118
BEFORE = 4 + max(map(len, FINDINGS))  # letters of a line: indent, verdict, and what parts it from the finding


def audit() -> pd.DataFrame:
    """Every comparison, one row each, by paper; columns as in `arithmetic.Check`.

    Raises:
        ConfigError: the data of the papers does not fit its schema.
    """
    own = [module for room in rooms() if (module := room.module("checks"))]
    found = [*(found for module in own for found in module.checks()), *repeats()]
    rows = [{**asdict(one), "difference": one.difference} for one in found]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    numeric = dict.fromkeys(("stated", "implied", "difference"), "float64")
    order = frame["paper"].map(papers().index)
    return frame.astype(numeric).loc[order.sort_values(kind="stable").index].reset_index(drop=True)


def findings(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that are neither consistent nor explained by rounding."""
    return frame[frame["verdict"].isin(FINDINGS)].reset_index(drop=True)


def told(frame: pd.DataFrame) -> pd.DataFrame:
    """The findings as a reader wants them: many of one check in one exhibit become one entry, with its largest.

    Returns:
        Columns paper, verdict, count, what, source.
    """
    entries = []
    for (paper, exhibit, name, verdict), group in findings(frame).groupby(
        ["paper", "exhibit", "check", "verdict"], sort=False
    ):
        if len(group) < MANY:
            entries += [(paper, verdict, 1, row.what, row.source) for row in group.itertuples()]
            continue
        alike = frame[(frame["paper"] == paper) & (frame["exhibit"] == exhibit) & (frame["check"] == name)]
        largest = group.sort_values("difference", key=lambda column: -column.abs(), kind="stable").iloc[0]
        what = f"{exhibit}: {name} in {len(alike)} numbers, {len(group)} of them disagree; the most: {largest['what']}"
        entries.append((paper, verdict, len(group), what, largest["source"]))
    return pd.DataFrame(entries, columns=["paper", "verdict", "count", "what", "source"])


def summary(frame: pd.DataFrame) -> str:
    """One line: comparisons by verdict, findings by paper."""
    verdicts = frame["verdict"].value_counts()
    found = findings(frame)["paper"].value_counts()
    counts = ", ".join(f"{verdicts.get(name, 0)} {name}" for name in VERDICTS)
    by_paper = ", ".join(f"{paper} {found.get(paper, 0)}" for paper in papers())
    return f"{len(frame)} comparisons: {counts}; {found.sum()} findings ({by_paper})"


def screen(frame: pd.DataFrame) -> str:
    """The audit for a terminal: findings by paper, and the summary."""
    parts: list[str] = []
    for paper, rows, head in _by_paper(frame):
        said = rows["what"] + " [" + rows["source"] + "]"
        listed = pd.DataFrame(zip(rows["verdict"], said), columns=["", ""])
        shown = tables.terminal(listed, wrap=[None, WIDTH - BEFORE], ruled=False)
        parts += [f"{paper}: {head}", "", textwrap.indent(shown, "  "), ""]
    return "\n".join([*parts, summary(frame)])


def document(frame: pd.DataFrame) -> str:
    """The audit as Markdown: one table of findings a paper, and the summary."""
    parts = [f"# What the papers' own numbers imply\n\n{summary(frame)}.\n"]
    for paper, rows, head in _by_paper(frame):
        named = rows[["verdict", "count", "what", "source"]].rename(columns={"count": "numbers", "source": "from"})
        parts.append(f"## {paper}\n\n{head}.\n\n{tables.markdown(named)}\n")
    return "\n".join(parts)


def _by_paper(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame, str]]:
    entries = told(frame)
    for paper in papers():
        verdicts = frame.loc[frame["paper"] == paper, "verdict"].value_counts()
        head = ", ".join(f"{verdicts[name]} {name}" for name in VERDICTS if name in verdicts)
        yield paper, entries[entries["paper"] == paper], f"{verdicts.sum()} comparisons, {head}"
