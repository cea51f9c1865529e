r"""News articles to summarise: CNN/DailyMail (See et al. 2017, arXiv:1704.04368) and XSum (Narayan et al. 2018,
arXiv:1808.08745).

The format is the same in the released code of KNN-SSD (`evaluation_llama/utils.py` at mbsong/KNN-SSD cfa8532),
ConfLayers (`evaluation/eval.py` at WA225/ConfLayers 8f04171), SWIFT and Self-SD: `Article: …`, `Summary:`; newlines
inside a demonstration's summary are deleted, and one follows it. Variants differ in demonstrations or new tokens.

If prompt and new tokens exceed the context, the article loses its end, as in KNN-SSD and ConfLayers; demonstrations are
kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ssd_bench.contract.task import Prompt
from ssd_bench.data.rows import Row
from ssd_bench.settings import check_value
from tasks.rows import VariantTask
from tasks.scoring.rouge import Rouge
from tasks.selection import CONTEXT
from tasks.settings import ClipReserve
from tasks.shots import in_one_line

MARK = "\nSummary:"


class News(VariantTask):
    """Base of CNN/DailyMail and XSum: an article and its summary, in the seeded shuffle of the papers' code.

    A `chat` prompt is one user turn without demonstrations (KNN-SSD App. B).

    Args:
        clip_reserve: tokens kept free besides prompt and summary when an article is truncated.

    Others are as in `VariantTask`.

    Attributes:
        fields: fields of the article and of its summary.
    """

    scorer = Rouge()
    version: int = 2
    max_prompt_tokens: int | None = CONTEXT

    def __init__(
        self,
        variant: str | None,
        shots: int | Mapping[str, int],
        max_new_tokens: int | Mapping[str, int],
        clip_reserve: int,
        hub: Mapping[str, Any],
        fewshot_hub: Mapping[str, Any],
        system: str | None = None,
    ) -> None:
        super().__init__(variant, shots, max_new_tokens, hub, fewshot_hub, system)
        self.clip_reserve = check_value("task.clip_reserve", ClipReserve, clip_reserve)

    def _demonstration(self, row: Row) -> str:
        article, summary = (row[field] for field in self.fields)
        return f"Article: {article}{MARK} {in_one_line(summary)}\n"

    def _prompt(self, row: Row) -> Prompt:
        article, summary = (row[field] for field in self.fields)
        return self._make_prompt(row, "Article: ", article, MARK, reference=summary)


class CnnDm(News):
    """CNN/DailyMail, one demonstration for base models; `knn_ssd` or `conflayers`, which Self-SD equals."""

    name = "cnn_dm"
    file = "cnndm"
    fields = ("article", "highlights")
    variants = ("knn_ssd", "conflayers")


class XSum(News):
    """XSum, summaries of one sentence: `knn_ssd` (Table 4) or `self_ssd`."""

    name = "xsum"
    file = "xsum"
    fields = ("document", "summary")
    variants = ("knn_ssd", "self_ssd")
