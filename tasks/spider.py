r"""Questions to databases, answered in SQL: Spider (Yu et al. 2018, arXiv:1809.08887) and Spider 2.0-lite (Lei et al.
2024, arXiv:2411.07763).

The format is that of KNN-SSD's released code (`evaluation_llama/utils.py` at mbsong/KNN-SSD cfa8532), which reads
unpublished JSON files: `Instruction: …`, `SQL Query:`. As there, a demonstration lacks the question's newline ahead of
`SQL Query:`.

Differences: that code draws items and demonstrations with replacement by Python's `random`; here both are a seeded
shuffle. It shows one demonstration; here three, as in its paper. It would truncate an instruction that exceeds the
context; here only a schema may lose its end.
"""

from __future__ import annotations

from typing import ClassVar

from ssd_bench.contract.task import Prompt
from ssd_bench.data.rows import Row
from ssd_bench.errors import ConfigError
from ssd_bench.settings import settings
from tasks.rows import FewShotTask
from tasks.scoring.sql import SqlMatch
from tasks.selection import CONTEXT
from tasks.settings import ClipReserve, FewshotHub, Hub, MaxNewTokens, ShotCount, System
from tasks.shots import in_one_line

LEAD = "Instruction: "
MARK = "SQL Query:"


@settings("task")
class TextToSql(FewShotTask):
    """Demonstrations and an instruction for base models, the instruction alone for chat models."""

    scorer = SqlMatch()
    version = 4
    drawn: ClassVar = {"differs": {"fields": ("question", "query"), "optional": ("schema",)}}

    shots: ShotCount
    schema: bool
    """Put the database's schema ahead of the question, even in demonstrations."""
    max_new_tokens: MaxNewTokens
    clip_reserve: ClipReserve
    hub: Hub
    fewshot_hub: FewshotHub
    system: System = None

    def __post_init__(self) -> None:
        self.max_prompt_tokens = CONTEXT if self.schema else None
        self.clip_reserve = self.clip_reserve if self.schema else 0
        super().__post_init__()

    def _demonstration(self, row: Row) -> str:
        return f"{LEAD}{self._schema_text(row)}{row['question']}{MARK} {in_one_line(row['query'])}\n"

    def _prompt(self, row: Row) -> Prompt:
        schema = self._schema_text(row)
        body, end = schema[:-1], schema[-1:]
        return self._make_prompt(row, LEAD, body, f"{end}{row['question']}\n{MARK}", reference=row["query"])

    def _schema_text(self, row: Row) -> str:
        if not self.schema:
            return ""
        if not row["schema"].strip():
            raise ConfigError("task.schema", True, f"false: {row['id']} has no schema (the hub has none at all)")
        return f"{row['schema']}\n"


class Spider(TextToSql):
    """Spider, dev split: queries to small SQLite databases. No paper here uses it; the settings are Spider2's."""

    name = "spider"
    fields = ("question", "query")
    optional = ("schema",)


class Spider2(TextToSql):
    """Spider 2.0-lite, Spider 2.0's text-to-SQL tasks (KNN-SSD); the hub has no gold queries."""

    name = "spider2"
    version = 5
    file = "spider2_lite"
    fields = ("question",)
    optional = ("query", "schema")  # items without a query are not scored
