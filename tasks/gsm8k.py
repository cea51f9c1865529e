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
from tasks.selection import checked_template, first, shuffled

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
        if variant not in VARIANTS:
            raise ConfigError("task.variant", variant, f"one of {', '.join(VARIANTS)}")
        if shots < 0:
            raise ConfigError("task.shots", shots, "an integer of at least 0")
        if variant not in max_new_tokens:
            raise ConfigError("task.max_new_tokens", dict(max_new_tokens), f"it must have a value for {variant}")
        self.variant, self.shots = variant, shots
        self.max_new_tokens = max_new_tokens[variant]
        fields = ("question", "answer")
        self._items = DataSpec(name="gsm8k", fields=fields, hub=dict(hub))
        self._fewshot = DataSpec(name="gsm8k.fewshot", fields=fields, hub=dict(fewshot_hub))

    def files(self, template: str) -> tuple[DataSpec, ...]:
        """The test items, and the demonstrations where the template has any."""
        few = checked_template(template) == "plain" and self.shots > 0
        return (self._items, self._fewshot) if few else (self._items,)

    def prompts(self, source: DataSource, template: str, limit: int | None, seed: int) -> Sequence[Prompt]:
        """The first `limit` items of a shuffle with the run's seed (KNN-SSD and ConfLayers code)."""
        items = source.rows(self._items)
        few = self._fewshot in self.files(template)
        shots = "".join(self._demonstration(row) for row in self._draw_shots(source, items, seed)) if few else ""
        return [self._prompt(row, shots) for row in first(shuffled(items, seed), limit)]

    def score(self, reference: str, text: str) -> float:
        """1.0 if the answer's final number is the reference's."""
        return exact_match(reference, text)

    def _draw_shots(self, source: DataSource, items: list[dict[str, str]], seed: int) -> list[dict[str, str]]:
        # Checked against every item, not only the first `limit`, so that the demonstrations do not depend on it.
        asked = {row["question"].strip() for row in items} | {row["id"] for row in items}
        rows = shuffled(source.rows(self._fewshot), seed)
        pool = [row for row in rows if row["question"].strip() not in asked and row["id"] not in asked]
        if len(pool) < self.shots:
            allowed = f"at most {len(pool)}, the demonstrations of {self._fewshot.name} that are not test items"
            raise ConfigError("task.shots", self.shots, allowed)
        return pool[: self.shots]

    def _demonstration(self, row: dict[str, str]) -> str:
        if self.variant == "knn_ssd":
            answer = row["answer"].replace("\n", "")
            return f"Question: {row['question']}\nAnswer: {answer}\n"
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
