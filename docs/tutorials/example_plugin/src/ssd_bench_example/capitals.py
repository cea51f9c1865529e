"""Capitals: four questions with a one-word answer, whose rows are in this file."""

import hashlib
import json
from typing import Any

from ssd_bench.contract.task import DataSpec, Prompt
from ssd_bench.data.rows import Row
from ssd_bench.settings import settings
from tasks.rows import RowTask
from tasks.scoring.rouge import Rouge
from tasks.settings import MaxNewTokens

CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Kenya": "Nairobi", "Peru": "Lima"}


class InlineRows:
    """Data source with the rows of this file, so that the task needs no download."""

    def rows(self, spec: DataSpec) -> list[dict[str, Any]]:
        """Return a row for each country."""
        return [{"id": country, "country": country, "capital": capital} for country, capital in CAPITALS.items()]

    def fingerprint(self, spec: DataSpec) -> str:
        """Return a hash of the rows, which the record keeps."""
        return hashlib.sha256(json.dumps(self.rows(spec)).encode()).hexdigest()


@settings("task")
class Capitals(RowTask):
    """A question per country, scored by ROUGE-L against the capital."""

    name = "capitals"
    version = 1  # raise it whenever prompts or scores change
    in_order = True
    scorer = Rouge()
    source = InlineRows()

    max_new_tokens: MaxNewTokens

    def __post_init__(self) -> None:
        super().__init__(DataSpec(self.name, ("country", "capital"), hub={}), self.max_new_tokens)

    def _prompt(self, row: Row) -> Prompt:
        return self._make_prompt(row, f"Q: What is the capital of {row['country']}?\nA:", reference=row["capital"])
