"""MMLU-Pro: questions with up to ten options (Wang et al. 2024, arXiv:2406.01574).

The prompt is from KnapSpec's released code (`data.py` at kaist-flexml-lab/knapspec 8eef1a2), as plain text.
"""

from __future__ import annotations

from ssd_bench.contract.task import Prompt
from ssd_bench.data.rows import Row
from ssd_bench.errors import ConfigError
from tasks.rows import HubTask
from tasks.scoring.choice import MultipleChoice

LETTERS = "ABCDEFGHIJ"
ASK = (
    "Answer the question by selecting the correct option. Think step by step and then provide your final answer in "
    'the format: "Answer: [OPTION]".'
)


class MmluPro(HubTask):
    """One question with its options, zero-shot, in the data set's order (KnapSpec Table 2).

    The seed has no effect. Chat models get the same text as one user turn.
    """

    name = "mmlu_pro"
    scorer = MultipleChoice()
    version = 3
    in_order = True
    fields = ("question", "options", "answer")
    lists = ("options",)

    def _prompt(self, row: Row) -> Prompt:
        letters = LETTERS[: len(row["options"])]
        if len(letters) < len(row["options"]):
            raise ConfigError(f"mmlu_pro {row['id']} options", len(row["options"]), "at most 10, A to J")
        answer = row["answer"].strip()
        if answer not in tuple(letters):
            raise ConfigError(f"mmlu_pro {row['id']} answer", row["answer"], f"one of {', '.join(letters)}")
        options = "".join(f"{letter}. {option}\n" for letter, option in zip(letters, row["options"]))
        return self._make_prompt(row, f"Question:\n{row['question']}\n\nOptions:\n{options}\n{ASK}", reference=answer)
