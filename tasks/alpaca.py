r"""Alpaca: instructions with answers by a language model (Taori et al. 2023, tatsu-lab/stanford_alpaca).

Two prompt formats, as the released code of the papers builds them:

- `knn_ssd`: KNN-SSD, `evaluation_llama/utils.py` at mbsong/KNN-SSD cfa8532: `Instruction: …`, the input on the next
  line, which is empty for an item without input, and `Answer:`. A demonstration has no line for the input.
- `conflayers`: ConfLayers, `evaluation/eval.py` at WA225/ConfLayers 8f04171: `### Instruction: …`, `### Input: …`,
  `### Response: ` in one line, zero-shot; without an input there are two spaces between the last two.

Where we differ: the papers' code would cut the end of an instruction that exceeds the context; here it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ssd_bench.contract.task import DataSpec, Prompt
from ssd_bench.settings import check_value
from tasks.rows import VariantTask
from tasks.scoring.rouge import Rouge
from tasks.selection import Row, checked_variant, of_variant
from tasks.settings import System
from tasks.shots import in_one_line


class Alpaca(VariantTask):
    """An instruction, with its input if it has one. A chat model gets it as one user turn without demonstrations.

    Args:
        variant: one of `variants`; None: `knn_ssd`.
        shots: demonstrations in a `plain` prompt; `conflayers` has none.
        max_new_tokens: most tokens of an answer, of each variant's paper or one number for all.
        hub: `datasets.load_dataset` arguments of each variant's items.
        fewshot_hub: the same for the rows of the demonstrations.
        system: system message ahead of every prompt, for chat templates; None: none.
    """

    name: str = "alpaca"
    scorer = Rouge()
    version: int = 2
    variants = ("knn_ssd", "conflayers")
    zero_shot = "conflayers"

    def __init__(
        self,
        variant: str | None,
        shots: int,
        max_new_tokens: int | Mapping[str, int],
        hub: Mapping[str, Mapping[str, Any]],
        fewshot_hub: Mapping[str, Any],
        system: str | None = None,
    ) -> None:
        chosen = checked_variant(variant, self.variants)
        # 28 rows of the data set have no output (tatsu-lab/stanford_alpaca issue 265); the papers' code keeps them.
        optional = ("input", "output")
        rows: Mapping[str, Any] = of_variant("hub", hub, chosen)
        items = DataSpec("alpaca", ("instruction",), rows, optional=optional, place=f"task.hub.{chosen}")
        super().__init__(chosen, shots, max_new_tokens, items, fewshot_hub)
        self.system = check_value("task.system", System, system)

    def _demonstration(self, row: Row) -> str:
        return f"Instruction: {row['instruction']}\nAnswer: {in_one_line(row['output'])}\n"

    def _prompt(self, row: Row) -> Prompt:
        instruction, context = row["instruction"], row["input"]
        if self.variant == "knn_ssd":
            text = f"Instruction: {instruction}\n{context}\nAnswer:"
        else:
            text = f"### Instruction: {instruction} ### Input: {context} ### Response: "
        return self._make_prompt(row, text, reference=row["output"])
