"""Scorer of answers that are SQL queries."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tasks.scoring.scorer import Scorer, mean
from tasks.scoring.sql.text import sql_of_answer, statements, tokens
from tasks.scoring.worker import Worker

MEMORY_MIB = 1024
# dialects that SQLite reads; "" is an unknown dialect, which it may be able to read
SQLITE = ("sqlite", "")


class SqlExecution(Scorer):
    """A score of 1.0 if answer and reference query have equal results on several small databases, else 0.0.

    A reference is JSON: `query`, `schema` (CREATE TABLE statements, "" if unknown) and `dialect` (`sqlite`, `bigquery`,
    `snowflake`, or "" if unknown). The databases are generated from schema and query (`databases`), equal in every run.
    An answer that agrees but has other literals must agree on databases with these, too. Rows are compared as a
    multiset, or in their order if the query has an ORDER BY outside of subqueries; names of columns do not count, their
    order does. If the query does not run on SQLite or finds nothing in those databases, answers are compared by
    `sql_match`.

    Queries run in a process of their own. A query that exceeds its limits (`engine`) or hangs (the process is then
    killed) is wrong.

    Args:
        seconds: most wall-clock time for one answer.
    """

    metric = "execution"

    def __init__(self, seconds: float = 15.0) -> None:
        command = (sys.executable, "-P", "-m", "tasks.scoring.sql.worker", str(MEMORY_MIB))
        self.worker = Worker(command, seconds, {"PYTHONPATH": str(Path(__file__).parents[3])})
        self._executable: dict[tuple[str, str], bool] = {}

    def item(self, prediction: str, reference: str) -> float | None:
        """Return the score by execution if possible, else by `sql_match`; of several statements the first is run."""
        if not (parts := _parts_of(reference)):
            return None
        if not self._can_execute(parts):
            return sql_match(parts["query"], prediction)
        answer = next(iter(statements(sql_of_answer(prediction))), "")
        return float(self.worker.ask([parts["query"], parts["schema"], answer]) is True)

    def corpus(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Return the means of `sql_match` and of whether execution was possible (`executable`)."""
        pairs = [(p, parts) for p, r in zip(predictions, references, strict=True) if (parts := _parts_of(r))]
        return mean(
            {"exact_match": sql_match(parts["query"], p), "executable": float(self._can_execute(parts))}
            for p, parts in pairs
        )

    def _can_execute(self, parts: dict[str, str]) -> bool:
        """Return whether the reference query runs on SQLite and finds something in the databases generated for it."""
        if parts["dialect"].lower() not in SQLITE:
            return False
        request = (parts["query"], parts["schema"])
        if request not in self._executable:
            self._executable[request] = self.worker.ask(request) is True
        return self._executable[request]


def sql_match(reference: str, text: str) -> float:
    """Return 1.0 if the query in `text` (`sql_of_answer`) equals `reference`, else 0.0.

    White space, comments, closing semicolons, and the case of unquoted text do not count.
    """
    expected = tokens(reference)
    return float(bool(expected) and tokens(sql_of_answer(text)) == expected)


def _parts_of(reference: str) -> dict[str, str]:
    """Return the parts of a reference; empty if it has no query."""
    parts = {"query": "", "schema": "", "dialect": ""} | (json.loads(reference) if reference.strip() else {})
    return parts if parts["query"].strip() else {}
