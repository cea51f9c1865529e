"""Audit of the papers' own numbers: comparison of printed values with implied ones, and the disagreements in words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict

import pandas as pd

from ssd_bench import tables
from ssd_bench.papers.audit.arithmetic import CONSISTENT, FINDINGS, ROUNDING, check_repeats
from ssd_bench.papers.printed.catalogue import paper_folders, paper_versions

COLUMNS = ("id", "paper", "exhibit", "check", "what", "stated", "implied", "difference", "source", "verdict")
VERDICTS = (CONSISTENT, ROUNDING, *FINDINGS)
GROUPED_FROM = 7  # smallest number of findings of one check in one exhibit that become one entry
WIDTH = 118
VERDICT_WIDTH = 4 + max(map(len, FINDINGS))  # indent of a line, verdict, and the gap after the verdict


def audit() -> pd.DataFrame:
    """Return every comparison, one row each, by paper; columns as in `arithmetic.Check`.

    Raises:
        ConfigError: the data of the papers does not fit its schema.
    """
    modules = [module for folder in paper_folders() if (module := folder.module("checks"))]
    checks = [*(check for module in modules for check in module.checks()), *check_repeats()]
    rows = [{**asdict(check), "difference": check.difference} for check in checks]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    numeric = dict.fromkeys(("stated", "implied", "difference"), "float64")
    order = frame["paper"].map(paper_versions().index)
    return frame.astype(numeric).loc[order.sort_values(kind="stable").index].reset_index(drop=True)


def findings(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that are neither consistent nor explained by rounding."""
    return frame[frame["verdict"].isin(FINDINGS)].reset_index(drop=True)


def group_findings(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the findings by entry: many findings of one check in one exhibit become one entry, with the largest.

    Returns:
        Columns paper, verdict, count, what, source.
    """
    entries = []
    for (paper, exhibit, name, verdict), group in findings(frame).groupby(
        ["paper", "exhibit", "check", "verdict"], sort=False
    ):
        if len(group) < GROUPED_FROM:
            entries += [(paper, verdict, 1, row.what, row.source) for row in group.itertuples()]
            continue
        compared = frame[(frame["paper"] == paper) & (frame["exhibit"] == exhibit) & (frame["check"] == name)]
        largest = group.sort_values("difference", key=lambda column: -column.abs(), kind="stable").iloc[0]
        sentence = (
            f'{exhibit}: {len(group)} of {len(compared)} numbers fail the check "{name}"; largest disagreement: '
            f"{largest['what']}"
        )
        entries.append((paper, verdict, len(group), sentence, largest["source"]))
    return pd.DataFrame(entries, columns=["paper", "verdict", "count", "what", "source"])


def summary(frame: pd.DataFrame) -> str:
    """Return one line: comparisons by verdict, findings by paper."""
    verdict_counts = frame["verdict"].value_counts()
    finding_counts = findings(frame)["paper"].value_counts()
    counts = ", ".join(f"{verdict_counts.get(name, 0)} {name}" for name in VERDICTS)
    by_paper = ", ".join(f"{paper} {finding_counts.get(paper, 0)}" for paper in paper_versions())
    return f"{len(frame)} comparisons: {counts}; {finding_counts.sum()} findings ({by_paper})"


def terminal_text(frame: pd.DataFrame) -> str:
    """Return the audit for a terminal: findings by paper, and the summary."""
    parts: list[str] = []
    for paper, rows, heading in _by_paper(frame):
        sentences = rows["what"] + " [" + rows["source"] + "]"
        lines = pd.DataFrame(zip(rows["verdict"], sentences), columns=["", ""])
        shown = tables.terminal(lines, wrap=[None, WIDTH - VERDICT_WIDTH], ruled=False)
        parts += [f"{paper}: {heading}", "", textwrap.indent(shown, "  "), ""]
    return "\n".join([*parts, summary(frame)])


def markdown_text(frame: pd.DataFrame) -> str:
    """Return the audit as Markdown: one table of findings per paper, and the summary."""
    parts = [f"# Consistency of the papers' own numbers\n\n{summary(frame)}.\n"]
    for paper, rows, heading in _by_paper(frame):
        printed = rows[["verdict", "count", "what", "source"]].rename(columns={"count": "numbers", "source": "from"})
        parts.append(f"## {paper}\n\n{heading}.\n\n{tables.markdown(printed)}\n")
    return "\n".join(parts)


def _by_paper(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame, str]]:
    """Yield paper, its entries and its heading."""
    entries = group_findings(frame)
    for paper in paper_versions():
        counts = frame.loc[frame["paper"] == paper, "verdict"].value_counts()
        heading = ", ".join(f"{counts[name]} {name}" for name in VERDICTS if name in counts)
        yield paper, entries[entries["paper"] == paper], f"{counts.sum()} comparisons, {heading}"
