r"""Spider2: questions to databases, answered in SQL (Lei et al. 2024, arXiv:2411.07763).

The format is that of KNN-SSD's released code (`evaluation_llama/utils.py` at mbsong/KNN-SSD cfa8532), which reads a
folder of JSON files that is not published: `Instruction: …`, `SQL Query:`. A demonstration lacks the newline ahead of
`SQL Query:` that the question has; so it does here.

Where we differ: that code draws items and demonstrations with replacement by Python's `random`; here both are a seeded
shuffle, without repeats. It shows one demonstration, its paper says three; here three. It would cut the end of an
instruction that exceeds the context; here such a prompt is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ssd_bench.task import DataSource, DataSpec, Prompt
from tasks.selection import checked_count
from tasks.shots import FewShot, in_one_line
from tasks.sql import sql_match


class Spider2:
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
    max_prompt_tokens: int | None = None
    clip_reserve: int = 0

    def __init__(self, shots: int, max_new_tokens: int, hub: Mapping[str, str], fewshot_hub: Mapping[str, str]) -> None:
        self.max_new_tokens = checked_count("max_new_tokens", max_new_tokens, 1)
        fields = ("instruction", "query")
        items = DataSpec(name="spider2", fields=fields, hub=dict(hub))
        fewshot = DataSpec(name="spider2.fewshot", fields=fields, hub=dict(fewshot_hub))
        self._few = FewShot(items, fewshot, shots, key="instruction")

    def files(self, template: str) -> tuple[DataSpec, ...]:
        """The items, and the demonstrations where the template has any."""
        return self._few.files(template)

    def prompts(self, source: DataSource, template: str, limit: int | None, seed: int) -> Sequence[Prompt]:
        """The first `limit` items of a shuffle with the run's seed."""
        return self._few.prompts(source, template, limit, seed, self._demonstration, self._prompt)

    def score(self, reference: str, text: str) -> float:
        """1.0 if the answer is the reference query, white space and case outside quotes aside."""
        return sql_match(reference, text)

    def _demonstration(self, row: dict[str, str]) -> str:
        return f"Instruction: {row['instruction']}SQL Query: {in_one_line(row['query'])}\n"

    def _prompt(self, row: dict[str, str], shots: str) -> Prompt:
        asked = f"{shots}Instruction: {row['instruction']}\nSQL Query:"
        return Prompt(row["id"], head=asked, body="", tail="", reference=row["query"], domain=self.name)
