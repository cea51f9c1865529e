r"""Spider2: questions to databases, answered in SQL (Lei et al. 2024, arXiv:2411.07763).

The format is that of KNN-SSD's released code (`evaluation_llama/utils.py` at mbsong/KNN-SSD cfa8532), which reads a
folder of JSON files that is not published: `Instruction: …`, `SQL Query:`. A demonstration lacks the newline ahead of
`SQL Query:` that the question has; so it does here.

Where we differ: that code draws items and demonstrations with replacement by Python's `random`; here both are a seeded
shuffle, without repeats. It shows one demonstration, its paper says three; here three. It would cut the end of an
instruction that exceeds the context; here such a prompt is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from ssd_bench.task import DataSpec, Prompt
from tasks.rows import RowTask
from tasks.selection import Row
from tasks.shots import Shots, in_one_line
from tasks.sql import sql_match


class Spider2(RowTask):
    """Demonstrations and an instruction for base models, the instruction alone for chat models.

    Args:
        shots: demonstrations in a `plain` prompt.
        max_new_tokens: most tokens of a query.
        hub: `datasets.load_dataset` arguments of the items.
        fewshot_hub: the same for the demonstrations.
    """

    name: str = "spider2"
    metric: str = "exact_match"
    version: int = 1

    def __init__(self, shots: int, max_new_tokens: int, hub: Mapping[str, str], fewshot_hub: Mapping[str, str]) -> None:
        items = DataSpec("spider2", ("instruction", "query"), hub)
        super().__init__(items, max_new_tokens, Shots(items, fewshot_hub, shots, self._demonstration))

    def score(self, prompt: Prompt, text: str) -> float:
        """1.0 if the answer is the reference query, white space and case outside quotes aside."""
        return sql_match(prompt.reference, text)

    def _demonstration(self, row: Row) -> str:
        return f"Instruction: {row['instruction']}SQL Query: {in_one_line(row['query'])}\n"

    def _prompt(self, row: Row) -> Prompt:
        return self._made(row, f"Instruction: {row['instruction']}\nSQL Query:", reference=row["query"])
