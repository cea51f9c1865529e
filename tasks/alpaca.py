r"""Alpaca: instructions with answers by a language model (Taori et al. 2023, tatsu-lab/stanford_alpaca).

Two prompt formats, from the papers' released code:

- `knn_ssd` (mbsong/KNN-SSD @ cfa8532, `evaluation_llama/utils.py`): lines `Instruction: …`, the input (may be empty),
  and `Answer:`. Demonstrations have no input line.
- `conflayers` (WA225/ConfLayers @ 8f04171, `evaluation/eval.py`): `### Instruction: …`, `### Input: …` and `###
  Response: ` on one line, zero-shot. Without an input, two spaces follow `### Input:`.

Difference: the papers' code truncates overlong instructions; here they are refused.
"""

from __future__ import annotations

from ssd_bench.contract.task import Prompt
from ssd_bench.data.rows import Row
from tasks.rows import VariantTask
from tasks.scoring.rouge import Rouge
from tasks.shots import in_one_line


class Alpaca(VariantTask):
    """One instruction per prompt; for a chat model one user message, without demonstrations."""

    name: str = "alpaca"
    scorer = Rouge()
    version: int = 2
    variants = ("knn_ssd", "conflayers")
    file = "alpaca"
    fields = ("instruction",)
    # 28 rows of the data set have no output (tatsu-lab/stanford_alpaca issue 265); the papers' code keeps them.
    optional = ("input", "output")
    zero_shot = "conflayers"
    hub_by_variant = True

    def _demonstration(self, row: Row) -> str:
        return f"Instruction: {row['instruction']}\nAnswer: {in_one_line(row['output'])}\n"

    def _prompt(self, row: Row) -> Prompt:
        instruction, input_text = row["instruction"], row["input"]
        if self.variant == "knn_ssd":
            text = f"Instruction: {instruction}\n{input_text}\nAnswer:"
        else:
            text = f"### Instruction: {instruction} ### Input: {input_text} ### Response: "
        return self._make_prompt(row, text, reference=row["output"])
