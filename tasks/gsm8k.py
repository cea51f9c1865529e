"""GSM8K: grade-school arithmetic word problems with worked solutions (Cobbe et al. 2021, arXiv:2110.14168).

Two prompt formats, as the released code of the papers builds them:

- `knn_ssd`: KNN-SSD, `evaluation_llama/utils.py` at mbsong/KNN-SSD cfa8532: `Question: …`, `Answer: …`; newlines
  inside a demonstration's answer are deleted, not replaced by spaces, and one newline follows each demonstration.
- `conflayers`: ConfLayers, `evaluation/eval.py` at WA225/ConfLayers d9f157e: `Q: …`, `A: …`, texts stripped, a blank
  line after each demonstration.

Where we differ: the papers' code would cut the end of a question that exceeds the context. No question does at their
4096 tokens, and a problem without its end has no answer, so here such a prompt is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from ssd_bench.errors import ConfigError
from ssd_bench.task import DataSpec, Prompt
from tasks.rows import RowTask
from tasks.scoring import exact_match, final_number
from tasks.selection import Row, checked_variant, of_variant
from tasks.shots import Shots, in_one_line

VARIANTS = ("knn_ssd", "conflayers")


class GSM8K(RowTask):
    """Five worked examples and a question for base models, the question alone for chat models.

    Base models (`plain`) get `shots` demonstrations from the train split, shuffled with the run's seed, the same for
    every item. Chat models get the same format zero-shot as one user turn (KNN-SSD App. B; ConfLayers has none).

    Args:
        variant: one of `VARIANTS`.
        shots: demonstrations in a `plain` prompt.
        max_new_tokens: the limit of each variant's paper.
        hub: `datasets.load_dataset` arguments of the test split.
        fewshot_hub: the same for the split of the demonstrations.
    """

    name: str = "gsm8k"
    metric: str = "exact_match"
    version: int = 1

    def __init__(
        self,
        variant: str,
        shots: int,
        max_new_tokens: Mapping[str, int],
        hub: Mapping[str, str],
        fewshot_hub: Mapping[str, str],
    ) -> None:
        self.variant = checked_variant(variant, VARIANTS)
        items = DataSpec("gsm8k", ("question", "answer"), hub)
        limit = of_variant("max_new_tokens", max_new_tokens, variant)
        super().__init__(items, limit, Shots(items, fewshot_hub, shots, self._demonstration))

    def score(self, prompt: Prompt, text: str) -> float:
        """1.0 if the answer's final number is the reference's."""
        return exact_match(prompt.reference, text)

    def _demonstration(self, row: Row) -> str:
        if self.variant == "knn_ssd":
            return f"Question: {row['question']}\nAnswer: {in_one_line(row['answer'])}\n"
        return f"Q: {row['question'].strip()}\nA: {row['answer'].strip()}\n\n"

    def _prompt(self, row: Row) -> Prompt:
        reference = row["answer"].rpartition("####")[2].strip()
        if "####" not in row["answer"] or final_number(reference) is None:
            raise ConfigError(f"gsm8k {row['id']} answer", row["answer"][-40:], "it must end in #### and a number")
        if self.variant == "knn_ssd":
            question = f"Question: {row['question']}\nAnswer:"
        else:
            question = f"Q: {row['question'].strip()}\nA:"
        return self._made(row, question, reference=reference)
