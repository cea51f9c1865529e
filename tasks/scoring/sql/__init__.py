"""Answers that are SQL queries."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tasks.scoring.scorer import Scorer, mean
from tasks.scoring.sql.text import answered, statements, tokens
from tasks.scoring.worker import Worker

MEMORY_MIB = 1024
# Dialects that SQLite reads; "" is an unknown one, which it may read.
SQLITE = ("sqlite", "")


class SqlExecution(Scorer):
    """1.0 where an answer gives what the reference query gives on several small databases, else 0.0.

    A reference is JSON: `query`, `schema` (CREATE TABLE statements, "" if unknown) and `dialect` (`sqlite`, `bigquery`,
    `snowflake`, or "" if unknown). The databases are made of schema and query (`databases`), the same in every run;
    an answer that agrees but speaks of other values must agree on databases with these, too.
    Rows are compared as a multiset, in their order where the query has an ORDER BY outside of subqueries; names of
    columns do not count, their order does. Where the query does not run on SQLite or finds nothing in those databases,
    answers are compared by `sql_match` instead.

    Queries run in a process of their own. One that exceeds its limits (`engine`) or hangs, on which that process is
    killed, is wrong.

    Args:
        seconds: longest that one answer may take on the clock.
    """

    metric = "execution"

    def __init__(self, seconds: float = 15.0) -> None:
        command = (sys.executable, "-P", "-m", "tasks.scoring.sql.worker", str(MEMORY_MIB))
        self.worker = Worker(command, seconds, {"PYTHONPATH": str(Path(__file__).parents[3])})
        self._executable: dict[tuple[str, str], bool] = {}

    def item(self, prediction: str, reference: str) -> float | None:
        """By execution where that is possible, else by `sql_match`; of several statements the first is run."""
        if not (known := _known(reference)):
            return None
        if not self._can_execute(known):
            return sql_match(known["query"], prediction)
        answer = next(iter(statements(answered(prediction))), "")
        return float(self.worker.ask([known["query"], known["schema"], answer]) is True)

    def corpus(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Means of `sql_match`, and of whether execution was possible (`executable`)."""
        pairs = [(p, known) for p, r in zip(predictions, references, strict=True) if (known := _known(r))]
        return mean(
            {"exact_match": sql_match(known["query"], p), "executable": float(self._can_execute(known))}
            for p, known in pairs
        )

    def _can_execute(self, known: dict[str, str]) -> bool:
        """Whether the reference query runs on SQLite and finds something in databases made for it."""
        if known["dialect"].lower() not in SQLITE:
            return False
        asked = (known["query"], known["schema"])
        if asked not in self._executable:
            self._executable[asked] = self.worker.ask(asked) is True
        return self._executable[asked]


def sql_match(reference: str, text: str) -> float:
    """1.0 if the query in `text`, as `answered` finds it, equals `reference`, else 0.0.

    White space, comments and closing semicolons do not count, nor does the case of what is not quoted.
    """
    expected = tokens(reference)
    return float(bool(expected) and tokens(answered(text)) == expected)


def _known(reference: str) -> dict[str, str]:
    """The parts of a reference; empty where it has no query."""
    known = {"query": "", "schema": "", "dialect": ""} | (json.loads(reference) if reference.strip() else {})
    return known if known["query"].strip() else {}
