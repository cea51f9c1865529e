"""Register of replications in `replications.yaml`: published speedups, and what others got."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from yaml import YAMLError

from ssd_bench import tables
from ssd_bench.conf import read_yaml
from ssd_bench.errors import ConfigError
from ssd_bench.papers.printed.catalogue import FOLDER, paper_versions, version_name
from ssd_bench.papers.printed.reported import find_numbers
from ssd_bench.settings import Fits, Range, arguments, check_value, kinds

FILE = FOLDER / "replications.yaml"
RATIO, UNSTATED = "ratio of two methods", "not stated"
TIERS = {"authors": "self-reported", "this project": "reproduced here"}
"""Who reports -> tier; others are third parties."""
DATE = re.compile(r"20\d\d(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?")
CAVEAT = "These are reports that somebody chose to publish, not a sample of all attempts."

Text = Annotated[str, Fits("a text", str.strip)]
Value = Annotated[float, Range(above=0, what="a number (the value itself, no ratio)")]
Bounds = Annotated[Sequence[Value], Fits("[lowest, highest]", lambda ends: len(ends) == 2 and ends[0] < ends[1])]


@dataclass(frozen=True, kw_only=True)
class ReplicationReport:
    """One report of a value that came back; speedups are over plain decoding.

    Attributes:
        paper: version of a paper here, or a key of `papers` in the file; `name` is for readers.
        printed, came_back: values, or ranges of several; None if nothing is printed.
        printed_for: subject of the printed value, if not this model; then without a share.
    """

    paper: Text
    exhibit: Text
    method: Text
    model: Text
    task: Text
    metric: Literal["speedup", "end-to-end speedup", "speedup per token", "ratio of two methods"]
    came_back: Value | Bounds
    who: Text
    tier: Literal["self-reported", "third party", "reproduced here"]
    date: Annotated[str, Fits("a date such as 2025-03-21, 2025-03 or 2025", DATE.fullmatch)]
    source: Text
    printed: Value | Bounds | None = None
    printed_for: str = ""
    hardware: Text = UNSTATED
    note: str = ""
    name: str = ""

    @property
    def share(self) -> float | None:
        """Share of the printed speedup that came back, at the middle of ranges; None if not comparable."""
        if self.printed is None or self.printed_for or self.metric == RATIO or _middle(self.printed) <= 1:
            return None
        return (_middle(self.came_back) - 1) / (_middle(self.printed) - 1)


def read_reports(path: Path = FILE) -> list[ReplicationReport]:
    """Return the reports of a register.

    Raises:
        ConfigError: an invalid entry; names position, key and what is expected.
    """
    try:
        content = read_yaml(path)
    except (YAMLError, ValueError) as error:  # ValueError: a date such as 2025-02-30
        raise ConfigError(path.name, "a file", f"valid YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict) or content.keys() != {"papers", "reports"}:
        raise ConfigError(path.name, content, "the keys papers and reports")
    names = content["papers"] | {paper: version_name(paper) for paper in paper_versions()}
    return [_parse_report(f"{path.name} report {n}", entry, names) for n, entry in enumerate(content["reports"], 1)]


def _parse_report(location: str, entry: Any, names: Mapping[str, str]) -> ReplicationReport:
    values = arguments(location, ReplicationReport, entry)
    values["date"] = str(values["date"])  # YAML reads 2025-03-21 as a date, 2025 as an integer
    for key, value in values.items():
        check_value(f"{location}.{key}", kinds(ReplicationReport)[key], value)
    paper, exhibit, who = values["paper"], values["exhibit"], values["who"]
    if paper not in names:
        raise ConfigError(f"{location}.paper", paper, f"one of {', '.join(names)}; `papers` can name another")
    if values["tier"] != (tier := TIERS.get(who, "third party")):
        raise ConfigError(f"{location}.tier", values["tier"], f"{tier}, because who is {who!r}")
    report = ReplicationReport(**values | {"name": names[paper]})
    if paper in paper_versions() and report.share is not None:
        labels = {"method": report.method, "model": report.model, "task": report.task, "metric": "speedup"}
        stated = [number.value for number in find_numbers(paper, exhibit, **labels)]
        if report.printed not in stated:
            expected = f"the value in results.csv: {stated or 'none for this exhibit, method, model and task'}"
            raise ConfigError(f"{location}.printed", report.printed, expected)
    return report


def report_table(reports: Sequence[ReplicationReport]) -> pd.DataFrame:
    """Return the reports as texts, one row each."""
    rows = [
        {
            "paper": report.name,
            "model": report.model,
            "task": report.task,
            "metric": report.method if report.metric == RATIO else report.metric,
            "printed": _text(report.printed) + (f" ({report.printed_for})" if report.printed_for else ""),
            "came back": _text(report.came_back),
            "share": "–" if report.share is None else f"{100 * report.share:.0f} %",
            "who": report.who + (f", {report.hardware}" if report.hardware != UNSTATED else ""),
            "date": report.date,
            "source": report.source,
        }
        for report in reports
    ]
    return pd.DataFrame(rows)


def shares(reports: Sequence[ReplicationReport]) -> list[float]:
    """Return the shares of printed speedups that came back to third parties, in percent."""
    return [100 * report.share for report in _third_party(reports) if report.share is not None]


def _third_party(reports: Sequence[ReplicationReport]) -> list[ReplicationReport]:
    return [report for report in reports if report.tier == "third party" and report.metric != RATIO]


def summary(reports: Sequence[ReplicationReport]) -> str:
    """Return the median share of printed speedups that came back to third parties, overall and by paper."""
    speedups = _third_party(reports)
    named = pd.Series(shares(reports), [report.name for report in speedups if report.share is not None])
    by_paper = [f"{name} {part.median():.0f} %, n = {len(part)}" for name, part in named.groupby(level=0, sort=False)]
    slower = sum(_middle(report.came_back) < 1 for report in speedups)
    return (
        f"Third parties got back a median of {named.median():.0f} % of a printed gain ({named.min():.0f} to "
        f"{named.max():.0f} %), n = {len(named)} reports on a model that the paper prints: {'; '.join(by_paper)}. "
        f"Share: (came back - 1) / (printed - 1), at the middle of ranges. {slower} of all {len(speedups)} speedups "
        f"are below 1. {CAVEAT}"
    )


def terminal_text(reports: Sequence[ReplicationReport]) -> str:
    """Return the reports and their summary for a terminal."""
    widths = [None, 16, 10, 12, 14, None, None, 14, None, 24]
    return f"{tables.terminal(report_table(reports), right=('share',), wrap=widths)}\n\n{summary(reports)}"


def _middle(value: float | Sequence[float]) -> float:
    return sum(value) / len(value) if isinstance(value, Sequence) else value


def _text(value: float | Sequence[float] | None) -> str:
    bounds = value if isinstance(value, Sequence) else [value]
    return "–" if value is None else " to ".join(map(str, bounds))
