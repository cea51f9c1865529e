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

from collections.abc import Mapping, Sequence

from ssd_bench.errors import ConfigError
from ssd_bench.task import DataSource, DataSpec, Prompt
from tasks.scoring import exact_match, final_number
from tasks.selection import checked_count, checked_variant, of_variant
from tasks.shots import FewShot, in_one_line

VARIANTS = ("knn_ssd", "conflayers")


class GSM8K:
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
    max_prompt_tokens: int | None = None
    clip_reserve: int = 0

    def __init__(
        self,
        variant: str,
        shots: int,
        max_new_tokens: Mapping[str, int],
        hub: Mapping[str, str],
        fewshot_hub: Mapping[str, str],
    ) -> None:
        self.variant = checked_variant(variant, VARIANTS)
        self.max_new_tokens = checked_count("max_new_tokens", of_variant("max_new_tokens", max_new_tokens, variant), 1)
        fields = ("question", "answer")
        items = DataSpec(name="gsm8k", fields=fields, hub=dict(hub))
        fewshot = DataSpec(name="gsm8k.fewshot", fields=fields, hub=dict(fewshot_hub))
        self._few = FewShot(items, fewshot, shots, key="question")

    def files(self, template: str) -> tuple[DataSpec, ...]:
        """The test items, and the demonstrations where the template has any."""
        return self._few.files(template)

    def prompts(self, source: DataSource, template: str, limit: int | None, seed: int) -> Sequence[Prompt]:
        """The first `limit` items of a shuffle with the run's seed (KNN-SSD and ConfLayers code)."""
        return self._few.prompts(source, template, limit, seed, self._demonstration, self._prompt)

    def score(self, reference: str, text: str) -> float:
        """1.0 if the answer's final number is the reference's."""
        return exact_match(reference, text)

    def _demonstration(self, row: dict[str, str]) -> str:
        if self.variant == "knn_ssd":
            return f"Question: {row['question']}\nAnswer: {in_one_line(row['answer'])}\n"
        return f"Q: {row['question'].strip()}\nA: {row['answer'].strip()}\n\n"

    def _prompt(self, row: dict[str, str], shots: str) -> Prompt:
        reference = row["answer"].rpartition("####")[2].strip()
        if "####" not in row["answer"] or final_number(reference) is None:
            raise ConfigError(f"gsm8k {row['id']} answer", row["answer"][-40:], "it must end in #### and a number")
        if self.variant == "knn_ssd":
            question = f"Question: {row['question']}\nAnswer:"
        else:
            question = f"Q: {row['question'].strip()}\nA:"
        return Prompt(row["id"], head=shots + question, body="", tail="", reference=reference, domain=self.name)
