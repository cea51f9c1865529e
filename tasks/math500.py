r"""MATH: competition problems of seven subjects (Hendrycks et al. 2021, arXiv:2103.03874), the 500 of Lightman et al.
2023 (arXiv:2305.20050).

Two prompt formats, from the papers' released code:

- `knn_ssd`: KNN-SSD, `evaluation_llama/utils.py` at mbsong/KNN-SSD cfa8532: `Question: …`, `Answer: …`; newlines inside
  a demonstration's solution are deleted, and one follows it. Demonstrations are of the item's subject.
- `knapspec`: the AIME prompt of KnapSpec's code (`data.py` at kaist-flexml-lab/knapspec 8eef1a2), zero-shot, in the
  data set's order. Neither its paper nor its code has MATH: no table or figure uses it.

Differences: KNN-SSD's code draws items of one subject from all 5,000 test problems, with replacement; here they are a
seeded shuffle of the 500, of all subjects or some. A problem that exceeds the context is refused, not truncated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ssd_bench.contract.task import Prompt
from ssd_bench.data.rows import Row
from ssd_bench.errors import ConfigError
from tasks.aime import boxed_prompt
from tasks.rows import VariantTask
from tasks.scoring.math_answer import MathAnswer
from tasks.shots import in_one_line

SUBJECTS = (
    *("algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory", "prealgebra"),
    "precalculus",
)


def known_subject(row: Row) -> str | None:
    """Return the row's subject, such as `counting_and_probability`, if it is one of `SUBJECTS`."""
    subject = re.sub(r"[^a-z]+", "_", row.get("subject", "").lower().replace("&", "and")).strip("_")
    return subject if subject in SUBJECTS else None


class Math(VariantTask):
    """A problem; its subject is its domain (KNN-SSD Table 3 and Figures 6 and 7). Chat models are zero-shot.

    Args:
        subjects: subset of `SUBJECTS`; None: all.

    Others are as in `VariantTask`.
    """

    name: str = "math"
    scorer = MathAnswer()
    version: int = 3
    variants = ("knn_ssd", "knapspec")
    file = "math500"
    fields = ("problem", "answer", "subject")
    zero_shot = "knapspec"
    # the hub's train split has no column of answers, and another name for the subject
    drawn: ClassVar[Mapping[str, Any]] = {
        "differs": {"fields": ("problem", "solution", "subject"), "rename": {"type": "subject"}},
        "group": known_subject,
    }

    def __init__(
        self,
        variant: str | None,
        shots: int | Mapping[str, int],
        subjects: Sequence[str] | None,
        max_new_tokens: int | Mapping[str, int],
        hub: Mapping[str, Any],
        fewshot_hub: Mapping[str, Any],
        system: str | None = None,
    ) -> None:
        if subjects is not None and (isinstance(subjects, str) or not subjects or set(subjects) - set(SUBJECTS)):
            raise ConfigError("task.subjects", subjects, f"null or a list of {', '.join(SUBJECTS)}")
        self.subjects = SUBJECTS if subjects is None else tuple(subjects)
        super().__init__(variant, shots, max_new_tokens, hub, fewshot_hub, system)

    def _select_items(self, rows: Sequence[Row]) -> Sequence[Row]:
        # a row of unknown subject may be of any: it stops a run that uses it, unless the run asks for certain subjects
        wanted = (*self.subjects, None) if self.subjects == SUBJECTS else self.subjects
        items = [row for row in rows if known_subject(row) in wanted]
        if not items:
            raise ConfigError("task.subjects", list(self.subjects), "subjects that have problems in the data")
        return items

    def _demonstration(self, row: Row) -> str:
        return f"Question: {row['problem']}\nAnswer: {in_one_line(row['solution'])}\n"

    def _prompt(self, row: Row) -> Prompt:
        text = f"Question: {row['problem']}\nAnswer:" if self.variant == "knn_ssd" else boxed_prompt(row["problem"])
        if (subject := known_subject(row)) is None:
            raise ConfigError(f"math {row['id']} subject", row["subject"], f"one of {', '.join(SUBJECTS)}")
        return self._make_prompt(row, text, reference=row["answer"], domain=subject)
