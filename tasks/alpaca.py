r"""Alpaca: instructions with answers by a language model (Taori et al. 2023, tatsu-lab/stanford_alpaca).

Two prompt formats, from the papers' released code:

- `knn_ssd` (mbsong/KNN-SSD @ cfa8532, `evaluation_llama/utils.py`): lines `Instruction: …`, the input (may be empty),
  and `Answer:`. Demonstrations have no input line.
- `conflayers` (WA225/ConfLayers @ 8f04171, `evaluation/eval.py`): `### Instruction: …`, `### Input: …` and `###
  Response: ` on one line, zero-shot. Without an input, two spaces follow `### Input:`.

Difference: the papers' code truncates overlong instructions; here they are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ssd_bench.contract.task import DataSpec, Prompt
from ssd_bench.data.rows import Row
from tasks.rows import VariantTask
from tasks.scoring.rouge import Rouge
from tasks.selection import checked_variant, of_variant
from tasks.shots import in_one_line


class Alpaca(VariantTask):
    """One instruction per prompt; for a chat model one user message, without demonstrations.

    Arguments as in `VariantTask`; `hub` has `datasets.load_dataset` arguments of the items, per variant.
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
        variant_name = checked_variant(variant, self.variants)
        # 28 rows of the data set have no output (tatsu-lab/stanford_alpaca issue 265); the papers' code keeps them.
        optional = ("input", "output")
        load_arguments: Mapping[str, Any] = of_variant("hub", hub, variant_name)
        place = f"task.hub.{variant_name}"
        items = DataSpec("alpaca", ("instruction",), load_arguments, optional=optional, place=place)
        super().__init__(variant_name, shots, max_new_tokens, items, fewshot_hub, system)

    def _demonstration(self, row: Row) -> str:
        return f"Instruction: {row['instruction']}\nAnswer: {in_one_line(row['output'])}\n"

    def _prompt(self, row: Row) -> Prompt:
        instruction, input_text = row["instruction"], row["input"]
        if self.variant == "knn_ssd":
            text = f"Instruction: {instruction}\n{input_text}\nAnswer:"
        else:
            text = f"### Instruction: {instruction} ### Input: {input_text} ### Response: "
        return self._make_prompt(row, text, reference=row["output"])
