"""MMLU-Pro: questions with up to ten options (Wang et al. 2024, arXiv:2406.01574).

The prompt is from KnapSpec's released code (`data.py` at kaist-flexml-lab/knapspec 8eef1a2), as plain text.
"""

from __future__ import annotations

from ssd_bench.contract.task import DataSpec, Prompt
from ssd_bench.data.rows import Row
from ssd_bench.errors import ConfigError
from ssd_bench.settings import settings
from tasks.rows import RowTask
from tasks.scoring.choice import MultipleChoice
from tasks.settings import Hub, MaxNewTokens, System

LETTERS = "ABCDEFGHIJ"
ASK = (
    "Answer the question by selecting the correct option. Think step by step and then provide your final answer in "
    'the format: "Answer: [OPTION]".'
)


@settings("task")
class MmluPro(RowTask):
    """One question with its options, zero-shot, in the data set's order (KnapSpec Table 2).

    The seed has no effect. Chat models get the same text as one user turn.
    """

    name = "mmlu_pro"
    scorer = MultipleChoice()
    version = 3
    in_order = True

    max_new_tokens: MaxNewTokens
    hub: Hub
    system: System = None

    def __post_init__(self) -> None:
        items = DataSpec("mmlu_pro", ("question", "options", "answer"), self.hub, lists=("options",))
        super().__init__(items, self.max_new_tokens)

    def _prompt(self, row: Row) -> Prompt:
        letters = LETTERS[: len(row["options"])]
        if len(letters) < len(row["options"]):
            raise ConfigError(f"mmlu_pro {row['id']} options", len(row["options"]), "at most 10, A to J")
        answer = row["answer"].strip()
        if answer not in tuple(letters):
            raise ConfigError(f"mmlu_pro {row['id']} answer", row["answer"], f"one of {', '.join(letters)}")
        options = "".join(f"{letter}. {option}\n" for letter, option in zip(letters, row["options"]))
        return self._make_prompt(row, f"Question:\n{row['question']}\n\nOptions:\n{options}\n{ASK}", reference=answer)
