"""Numbers of the papers with ours: long tables, one row per number, with counts and sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ssd_bench.papers.ours import agreement
from ssd_bench.papers.ours.cells import TOY_MODEL as TRAINED_HERE
from ssd_bench.papers.ours.cells import Replication
from ssd_bench.papers.ours.match import Matcher
from ssd_bench.papers.printed.reported import METRICS, Number, find_numbers, numbers
from ssd_bench.results.models import model_names, parameter_counts

TEXTS = ("id", "paper", "exhibit", "model", "task", "method", "setting", "bound", "metric", "unit", "printed")
FLOATS = ("value", "ours", "low", "high", "difference", "relative", "decode", "decode_low", "decode_high", "estimate")
COLUMNS = (
    *(*TEXTS, *FLOATS, "kind", "verdict", "order", "scale", "toy", "model_ran"),
    *("params", "runs", "result", "repeats", "reason"),
)
"""Columns of the long table, which docs/glossary.md explains."""
NO_NUMBERS = pd.DataFrame(columns=list(COLUMNS))


def long_table(replications: Sequence[Replication], paper: str, exhibit: str) -> pd.DataFrame:
    """Return every reported number of a table or figure with ours, one per row, in the paper's order, in `COLUMNS`."""
    return _long(Matcher(replications), paper, exhibit)


def long_tables(replications: Sequence[Replication], only: str | None = None) -> dict[tuple[str, str], pd.DataFrame]:
    """Return the long tables of all reported numbers (or a paper's), keyed by (paper, exhibit) in order.

    Numbers of figures, abstracts and the text have separate tables ("Figure 4", "text §5.2").
    """
    matcher = Matcher(replications)
    exhibits = dict.fromkeys((number.paper, number.exhibit) for number in numbers() if only in (None, number.paper))
    return {(paper, exhibit): _long(matcher, paper, exhibit) for paper, exhibit in exhibits}


def _long(matcher: Matcher, paper: str, exhibit: str) -> pd.DataFrame:
    rows = [_row(number, matcher) for number in find_numbers(paper, exhibit)]
    floats = dict.fromkeys(FLOATS, "float64")
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype(floats)
    for order in agreement.rank_orders(frame):
        frame.loc[list(order.rows), "order"] = order.text
    first = frame.groupby("result")["id"].transform("first")
    frame["repeats"] = first.where((frame["result"] != "") & (first != frame["id"]), "")
    return frame


def _row(number: Number, matcher: Matcher) -> dict[str, Any]:
    match = matcher.counterpart(number)
    row: dict[str, Any] = {name: getattr(number, name) for name in TEXTS} | {"value": number.value}
    if match.value is not None:
        difference = match.value.value - number.value
        row |= {"ours": match.value.value, "low": match.value.low, "high": match.value.high, "difference": difference}
        row |= {"relative": difference / number.value if number.value else None, "estimate": match.value.estimate}
    if match.decode is not None:
        row |= {"decode": match.decode.value, "decode_low": match.decode.low, "decode_high": match.decode.high}
    return row | {
        "kind": METRICS[number.metric].kind,
        "verdict": match.verdict,
        "order": "",
        "scale": match.scale if match.value is not None else "",
        "toy": match.setup == TRAINED_HERE,
        "model_ran": model_names(match.models),
        "params": parameter_counts(match.models),
        "runs": "; ".join(match.runs),
        "result": match.value.result if match.value is not None else "",
        "repeats": "",
        "reason": match.reason,
    }


def file_stem(paper: str, exhibit: str) -> str:
    """Return the stem of file names: `knn_ssd_table1`, also the experiment's name, or `swift_text_5_2`."""
    numbered = re.sub(r"(Table|Figure) (?=\d)", r"\1", exhibit)
    return re.sub(r"[^a-z0-9]+", "_", f"{paper} {numbered}".lower()).strip("_")


def distinct_results(frame: pd.DataFrame) -> list[str]:
    return [result for result in dict.fromkeys(frame["result"]) if result]


def count_phrase(count: int, name: str) -> str:
    """Return a count with its noun: "3 runs"."""
    return f"{count} {name}{'' if count == 1 else 's'}"


def verdict_sentences(frame: pd.DataFrame) -> list[str]:
    """Return sentences on algorithmic verdicts, speed verdicts and, by metric over distinct valid pairs, ranking."""
    lines = []
    for name in (agreement.ALGORITHMIC, agreement.SPEED):
        totals = frame.loc[frame["kind"] == name, "verdict"].value_counts()
        parts = ", ".join(f"{totals[word]} {word}" for word in agreement.VERDICTS if word in totals)
        distinct = count_phrase(len(distinct_results(frame[frame["kind"] == name])), "distinct result")
        lines += [f"{name.capitalize()} numbers: {parts}; {distinct} of ours."] if parts else []
    groups = agreement.rank_orders(frame)
    subjects = ((True, "methods within a setting", "method"), (False, "settings of one method", "setting"))
    for methods, subject, item in subjects:
        groups_of_kind = [group for group in groups if group.methods == methods]
        text = ", ".join(entry.text for entry in agreement.order_agreements(groups_of_kind))
        if text:
            n_same = sum(group.same_best for group in groups_of_kind)
            best = f"same best {item} in {n_same} of {len(groups_of_kind)} groups"
            lines.append(f"Pairs ranked as in the paper, {subject}: {text}; {best}.")
    return lines


def run_ids(frame: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(run for runs in frame["runs"] for run in runs.split("; ") if run))
