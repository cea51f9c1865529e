r"""Alpaca: instructions with answers by a language model (Taori et al. 2023, tatsu-lab/stanford_alpaca).

Two prompt formats, as the released code of the papers builds them:

- `knn_ssd`: KNN-SSD, `evaluation_llama/utils.py` at mbsong/KNN-SSD cfa8532: `Instruction: …`, the input on the next
  line, which stays empty where an item has none, and `Answer:`. A demonstration has no line for the input.
- `conflayers`: ConfLayers, `evaluation/eval.py` at WA225/ConfLayers 8f04171: `### Instruction: …`, `### Input: …`,
  `### Response: ` in one line, zero-shot; without an input two spaces stand between the last two.

Where we differ: the papers' code would cut the end of an instruction that exceeds the context; here it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ssd_bench.errors import ConfigError
from ssd_bench.task import DataSource, DataSpec, Prompt
from tasks.scoring import rouge_l
from tasks.selection import checked_count, checked_variant, of_variant
from tasks.shots import FewShot, in_one_line


class Alpaca:
    """An instruction, with its input where it has one. A chat model gets it as one user turn without demonstrations.

    Args:
        variant: `knn_ssd` or `conflayers`.
        shots: demonstrations in a `plain` prompt; `conflayers` has none.
        max_new_tokens: the limit of each variant's paper.
        hub: `datasets.load_dataset` arguments of each variant's items.
        fewshot_hub: the same for the rows of the demonstrations.
    """

    name: str = "alpaca"
    metric: str = "rougeL"
    version: int = 1
    max_prompt_tokens: int | None = None
    clip_reserve: int = 0

    def __init__(
        self,
        variant: str,
        shots: int,
        max_new_tokens: Mapping[str, int],
        hub: Mapping[str, Mapping[str, str]],
        fewshot_hub: Mapping[str, str],
    ) -> None:
        self.variant = checked_variant(variant, ("knn_ssd", "conflayers"))
        if variant == "conflayers" and shots != 0:
            raise ConfigError("task.shots", shots, "0 for the variant conflayers, which is zero-shot")
        self.max_new_tokens = checked_count("max_new_tokens", of_variant("max_new_tokens", max_new_tokens, variant), 1)
        # 28 rows of the data set have no output (tatsu-lab/stanford_alpaca issue 265); the papers' code keeps them.
        fields, optional = ("instruction",), ("input", "output")
        items = DataSpec("alpaca", fields, hub=dict(of_variant("hub", hub, variant)), optional=optional)
        fewshot = DataSpec("alpaca.fewshot", fields, hub=dict(fewshot_hub), optional=("output",))
        self._few = FewShot(items, fewshot, shots, key="instruction")

    def files(self, template: str) -> tuple[DataSpec, ...]:
        """The items, and the demonstrations where the template has any."""
        return self._few.files(template)

    def prompts(self, source: DataSource, template: str, limit: int | None, seed: int) -> Sequence[Prompt]:
        """The first `limit` items of a shuffle with the run's seed."""
        return self._few.prompts(source, template, limit, seed, self._demonstration, self._prompt)

    def score(self, reference: str, text: str) -> float:
        """ROUGE-L F1 with stemming; 0 where the item has no output."""
        return rouge_l(reference, text)

    def _demonstration(self, row: dict[str, str]) -> str:
        return f"Instruction: {row['instruction']}\nAnswer: {in_one_line(row['output'])}\n"

    def _prompt(self, row: dict[str, str], shots: str) -> Prompt:
        asked, given = row["instruction"], row["input"]
        if self.variant == "knn_ssd":
            text = f"{shots}Instruction: {asked}\n{given}\nAnswer:"
        else:
            text = f"### Instruction: {asked} ### Input: {given} ### Response: "
        return Prompt(row["id"], head=text, body="", tail="", reference=row["output"], domain=self.name)
