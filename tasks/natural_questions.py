"""Natural Questions in its open form: questions that people searched for, with short answers (Lee et al. 2019,
arXiv:1906.00300).

SWIFT has the data set in Figure 7, but its paper and released code have no prompt for it. The format is KNN-SSD's for
such questions (`nq` in `evaluation_llama/utils.py` at mbsong/KNN-SSD cfa8532, in none of its tables and figures):
`Question: …`, `Answer:`.

Difference: that code reads another copy, with long answers, and shows one demonstration, here none.
"""

from __future__ import annotations

import json

from ssd_bench.contract.task import Prompt
from ssd_bench.data.rows import Row
from tasks.rows import HubTask
from tasks.scoring.qa import ShortAnswer


class NaturalQuestions(HubTask):
    """One question, zero-shot, in the seeded shuffle of SWIFT's code; chat models get it as one user turn."""

    name = "natural_questions"
    scorer = ShortAnswer()
    version = 2
    fields = ("question", "answer")
    lists = ("answer",)

    def _prompt(self, row: Row) -> Prompt:
        accepted = json.dumps(row["answer"], ensure_ascii=False)
        return self._make_prompt(row, f"Question: {row['question']}\nAnswer:", reference=accepted)
