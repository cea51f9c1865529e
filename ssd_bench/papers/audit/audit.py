"""Audit of the papers' own numbers: printed values compared with implied ones, and the disagreements in words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict

import pandas as pd

from ssd_bench import tables
from ssd_bench.papers.audit.arithmetic import CONSISTENT, CONTRADICTION, FINDINGS, IMPOSSIBLE, ROUNDING, check_repeats
from ssd_bench.papers.audit.relations import relations
from ssd_bench.papers.printed.catalogue import folder_of, paper_folders, paper_versions

KIND = ["paper", "check", "source", "verdict"]  # equal for findings of one kind
COLUMNS = ("id", "paper", "exhibit", "check", "what", "stated", "implied", "difference", "source", "verdict")
VERDICTS = (CONSISTENT, ROUNDING, *FINDINGS)
WIDTH = 118
VERDICT_WIDTH = 4 + max(map(len, FINDINGS))  # indent of a line, verdict, and the gap after the verdict


def audit() -> pd.DataFrame:
    """Return every comparison, one row each, by paper.

    Columns are those of `arithmetic.Check`, and difference, the implied minus the stated value.

    Raises:
        ConfigError: the papers' data does not fit its schema.
    """
    checks = [check for folder in paper_folders() for check in relations(folder)]
    modules = [module for folder in paper_folders() if (module := folder.module("checks"))]
    checks += [*(check for module in modules for check in module.checks()), *check_repeats()]
    checks.sort(key=lambda check: paper_versions().index(check.paper))
    frame = pd.DataFrame(map(asdict, checks), columns=list(COLUMNS)).astype({"stated": float, "implied": float})
    return frame.assign(difference=frame["implied"] - frame["stated"])


def findings(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the findings: rows neither consistent nor rounding."""
    return frame[frame["verdict"].isin(FINDINGS)].reset_index(drop=True)


def group_findings(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the findings by kind: one entry per cause, with its largest disagreement.

    Columns are paper, verdict, count, what, source, and others (the sentences of the kind's other findings).
    """
    entries, compared = [], frame.groupby(KIND[:3])["id"].transform("size")
    for (paper, name, source, verdict), group in findings(frame.assign(compared=compared)).groupby(KIND, sort=False):
        by_size = group.sort_values("difference", key=lambda column: -column.abs(), kind="stable")
        largest, *others = by_size["what"]
        if others:
            numbers = f'{len(group)} of {group["compared"].iloc[0]} numbers of the check "{name}"'
            largest = f"{numbers}; largest disagreement: {largest}"
        entries.append((paper, verdict, len(group), largest, source, others))
    return pd.DataFrame(entries, columns=["paper", "verdict", "count", "what", "source", "others"])


def papers_alone() -> list[str]:
    """Return the latest version of each paper; findings in preprints do not count."""
    return [paper for paper in paper_versions() if folder_of(paper).latest == paper]


def totals(frame: pd.DataFrame) -> tuple[int, int, int]:
    """Return the papers' kinds of contradiction, printed numbers that they cover, and impossible numbers."""
    counted = frame[frame["paper"].isin(papers_alone())]
    contradictions, impossible = (counted[counted["verdict"] == verdict] for verdict in (CONTRADICTION, IMPOSSIBLE))
    # an id is a number's, "#", a check's: a number that fails two checks counts once
    numbers = [rows["id"].str.split("#").str[0].nunique() for rows in (contradictions, impossible)]
    return contradictions.groupby(KIND).ngroups, numbers[0], numbers[1]


def summary(frame: pd.DataFrame) -> str:
    """Return one line: totals of the papers, and of their earlier versions, which do not count."""
    kinds, numbers, impossible = totals(frame)
    papers = papers_alone()
    earlier = [f"; not counted: {v}, {verdict_counts(frame, v)}" for v in paper_versions() if v not in papers]
    return (
        f"{kinds} kinds of contradiction covering {numbers} printed numbers, and {impossible} impossible numbers, in "
        f"{len(papers)} papers ({verdict_counts(frame, *papers)}){''.join(earlier)}"
    )


def verdict_counts(frame: pd.DataFrame, *papers: str) -> str:
    """Return in words these papers' comparisons, in total and by verdict."""
    counts = frame.loc[frame["paper"].isin(papers), "verdict"].value_counts()
    return f"{counts.sum()} comparisons: " + ", ".join(f"{counts[name]} {name}" for name in VERDICTS if name in counts)


def terminal_text(frame: pd.DataFrame) -> str:
    """Return the audit for a terminal: all findings by paper and kind, and the summary."""
    parts: list[str] = []
    for paper, rows in _kinds_by_paper(frame):
        lines = list[tuple[str, str]]()
        for verdict, what, source, others in zip(rows["verdict"], rows["what"], rows["source"], rows["others"]):
            lines += [(verdict, f"{what} [{source}]"), *(("", other) for other in others)]
        shown = tables.terminal(pd.DataFrame(lines, columns=["", ""]), wrap=[None, WIDTH - VERDICT_WIDTH], ruled=False)
        parts += [f"{paper}: {verdict_counts(frame, paper)}", "", textwrap.indent(shown, "  "), ""]
    return "\n".join([*parts, summary(frame)])


def markdown_text(frame: pd.DataFrame) -> str:
    """Return the audit as Markdown: the summary, and a table of kinds of findings per paper."""
    parts = [f"# Consistency of the papers' own numbers\n\n{summary(frame)}.\n"]
    for paper, rows in _kinds_by_paper(frame):
        printed = rows[["verdict", "count", "what", "source"]].rename(columns={"count": "numbers", "source": "from"})
        parts.append(f"## {paper}\n\n{verdict_counts(frame, paper)}.\n\n{tables.markdown(printed)}\n")
    return "\n".join(parts)


def _kinds_by_paper(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    entries = group_findings(frame)
    return ((paper, entries[entries["paper"] == paper]) for paper in paper_versions())
