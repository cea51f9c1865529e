"""GSM8K: grade-school arithmetic word problems with worked solutions (Cobbe et al. 2021, arXiv:2110.14168).

Three prompt formats, from the papers' released code:

- `knn_ssd`: KNN-SSD, `evaluation_llama/utils.py` at mbsong/KNN-SSD cfa8532: `Question: …`, `Answer: …`; newlines inside
  a demonstration's answer are deleted, and one follows it.
- `conflayers`: ConfLayers, `evaluation/eval.py` at WA225/ConfLayers d9f157e: `Q: …`, `A: …`, texts stripped, a blank
  line after each demonstration.
- `knapspec`: the AIME prompt of KnapSpec's code (`data.py` at kaist-flexml-lab/knapspec 8eef1a2), zero-shot, in the
  data set's order. Neither its paper nor its code has GSM8K: no table or figure uses it.

Difference: the papers' code would truncate a question that exceeds the context; here it is refused, since a problem
without its end has no answer.
"""

from __future__ import annotations

from ssd_bench.contract.task import Prompt
from ssd_bench.data.rows import Row
from ssd_bench.errors import ConfigError
from tasks.aime import boxed_prompt
from tasks.rows import VariantTask
from tasks.scoring.numbers import FinalNumber, final_number
from tasks.shots import in_one_line


class GSM8K(VariantTask):
    """Five worked examples and a question for base models, the question alone for chat models.

    The demonstrations are from the train split, shuffled with the run's seed, the same for every item. Chat models get
    the same format as one user turn (KNN-SSD App. B; ConfLayers has none).
    """

    name: str = "gsm8k"
    scorer = FinalNumber()
    version: int = 3
    variants = ("knn_ssd", "conflayers", "knapspec")
    file = "gsm8k"
    fields = ("question", "answer")
    zero_shot = "knapspec"

    def _demonstration(self, row: Row) -> str:
        if self.variant == "knn_ssd":
            return f"Question: {row['question']}\nAnswer: {in_one_line(row['answer'])}\n"
        return f"Q: {row['question'].strip()}\nA: {row['answer'].strip()}\n\n"

    def _prompt(self, row: Row) -> Prompt:
        reference = row["answer"].rpartition("####")[2].strip()
        if "####" not in row["answer"] or final_number(reference) is None:
            raise ConfigError(f"gsm8k {row['id']} answer", row["answer"][-40:], "a text that ends in #### and a number")
        question = {
            "knn_ssd": f"Question: {row['question']}\nAnswer:",
            "conflayers": f"Q: {row['question'].strip()}\nA:",
            "knapspec": boxed_prompt(row["question"]),
        }
        return self._make_prompt(row, question[self.variant], reference=reference)
