r"""AIME: the thirty problems of one year's American Invitational Mathematics Examination, answers from 0 to 999.

The prompt is that of KnapSpec's released code (`data.py` at kaist-flexml-lab/knapspec 8eef1a2), which gives it to its
models as plain text. A closed `<think>` block with one sentence, a space ahead of it and a newline after it, ends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ssd_bench.errors import ConfigError
from ssd_bench.task import DataSource, DataSpec, Prompt
from tasks.scoring import exact_match
from tasks.selection import checked_count, checked_template, first

NAMES = {2024: "aime24", 2025: "aime25"}
ASK = "Solve the following math problem. Make sure to put the answer (and only the answer) inside \\boxed{}.\n\n"
THINK = "\n <think> Let's think step by step. </think>\n"


class AIME:
    r"""One problem, zero-shot, in the data set's order (KnapSpec Table 2).

    The seed has no effect. A chat model gets the same text as one user turn.

    Args:
        year: one of `NAMES`, which holds the name of the task and of its file.
        max_new_tokens: most tokens of a solution.
        hub: `datasets.load_dataset` arguments.
    """

    metric: str = "exact_match"
    version: int = 1
    max_prompt_tokens: int | None = None
    clip_reserve: int = 0

    def __init__(self, year: int, max_new_tokens: int, hub: Mapping[str, str]) -> None:
        if year not in NAMES:
            raise ConfigError("task.year", year, f"one of {', '.join(map(str, NAMES))}")
        self.name: str = NAMES[year]
        self.max_new_tokens = checked_count("max_new_tokens", max_new_tokens, 1)
        self._items = DataSpec(name=self.name, fields=("problem", "answer"), hub=dict(hub))

    def files(self, template: str) -> tuple[DataSpec, ...]:
        """The problems."""
        checked_template(template)
        return (self._items,)

    def prompts(self, source: DataSource, template: str, limit: int | None, seed: int) -> Sequence[Prompt]:
        """The first `limit` problems in the data set's order."""
        checked_template(template)
        return [self._prompt(row) for row in first(source.rows(self._items), limit)]

    def score(self, reference: str, text: str) -> float:
        r"""1.0 if the answer's final number, that in the last `\boxed{}`, is the reference."""
        return exact_match(reference, text)

    def _prompt(self, row: dict[str, str]) -> Prompt:
        answer = row["answer"].strip()
        if not (answer.isascii() and answer.isdigit() and int(answer) <= 999):
            raise ConfigError(f"{self.name} {row['id']} answer", row["answer"], "an integer from 0 to 999")
        asked = f"{ASK}{row['problem']}{THINK}"
        return Prompt(row["id"], head=asked, body="", tail="", reference=str(int(answer)), domain=self.name)
