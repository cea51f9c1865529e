r"""AIME: the thirty problems of one year's American Invitational Mathematics Examination, answers from 0 to 999.

The prompt is from KnapSpec's released code (`data.py` at kaist-flexml-lab/knapspec 8eef1a2), as plain text. It ends
with a closed `<think>` block of one sentence, after a space and before a newline.
"""

from __future__ import annotations

from typing import Literal

from ssd_bench.contract.task import DataSpec, Prompt
from ssd_bench.data.rows import Row
from ssd_bench.errors import ConfigError
from ssd_bench.settings import settings
from tasks.rows import RowTask
from tasks.scoring.numbers import FinalNumber
from tasks.settings import Hub, MaxNewTokens, System

ASK = "Solve the following math problem. Make sure to put the answer (and only the answer) inside \\boxed{}.\n\n"
THINK = "\n <think> Let's think step by step. </think>\n"


def boxed_prompt(problem: str) -> str:
    return f"{ASK}{problem}{THINK}"


@settings("task")
class AIME(RowTask):
    r"""One problem, zero-shot, in the data set's order (KnapSpec Table 2).

    The seed has no effect. Chat models get the same text as one user turn.
    """

    scorer = FinalNumber()
    version = 3
    in_order = True

    year: Literal[2024, 2025]
    """Year of the examination, part of the task's and the file's name."""
    max_new_tokens: MaxNewTokens
    hub: Hub
    system: System = None

    def __post_init__(self) -> None:
        self.name = f"aime{self.year % 100}"
        rename = {"question": "problem"} if self.year == 2025 else {}  # columns of the data set of KnapSpec's code
        super().__init__(DataSpec(self.name, ("problem", "answer"), self.hub, rename), self.max_new_tokens)

    def _prompt(self, row: Row) -> Prompt:
        answer = row["answer"].strip()
        if not (answer.isascii() and answer.isdigit() and int(answer) <= 999):
            raise ConfigError(f"{self.name} {row['id']} answer", row["answer"], "an integer from 0 to 999")
        return self._make_prompt(row, boxed_prompt(row["problem"]), reference=str(int(answer)))
