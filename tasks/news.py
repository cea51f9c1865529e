r"""News articles to summarise: CNN/DailyMail (See et al. 2017, arXiv:1704.04368) and XSum (Narayan et al. 2018,
arXiv:1808.08745).

The format is that of the released code of KNN-SSD (`evaluation_llama/utils.py` at mbsong/KNN-SSD cfa8532) and
ConfLayers (`evaluation/eval.py` at WA225/ConfLayers 8f04171), the same in both: `Article: …`, `Summary:`; newlines
inside a demonstration's summary are deleted, not replaced by spaces, and one newline follows each demonstration.

Where prompt and new tokens exceed the context, the article loses its end, as in both; demonstrations are kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from ssd_bench.task import DataSpec, Prompt
from tasks.rows import RowTask
from tasks.scoring import rouge_l
from tasks.selection import CONTEXT, Row, checked_count, checked_variant, of_variant
from tasks.shots import Shots, in_one_line

MARK = "\nSummary:"


class News(RowTask):
    """What CNN/DailyMail and XSum share: an article and its summary, in the seeded shuffle of the papers' code.

    Args:
        shots: demonstrations in a `plain` prompt; a `chat` prompt is one user turn without any (KNN-SSD App. B).
        max_new_tokens: most tokens of a summary.
        clip_reserve: tokens kept free besides prompt and summary where an article is clipped.
        hub: `datasets.load_dataset` arguments of the test split.
        fewshot_hub: the same for the split of the demonstrations.

    Attributes:
        file: name of the file of the test articles.
        fields: that of the article and that of its summary.
    """

    metric: str = "rougeL"
    version: int = 1
    max_prompt_tokens: int | None = CONTEXT
    file: str
    fields: tuple[str, str]

    def __init__(
        self, shots: int, max_new_tokens: int, clip_reserve: int, hub: Mapping[str, str], fewshot_hub: Mapping[str, str]
    ) -> None:
        items = DataSpec(self.file, self.fields, hub)
        super().__init__(items, max_new_tokens, Shots(items, fewshot_hub, shots, self._demonstration))
        self.clip_reserve = checked_count("clip_reserve", clip_reserve, 0)

    def score(self, prompt: Prompt, text: str) -> float:
        """ROUGE-L F1 with stemming."""
        return rouge_l(prompt.reference, text)

    def _demonstration(self, row: Row) -> str:
        article, summary = (row[field] for field in self.fields)
        return f"Article: {article}{MARK} {in_one_line(summary)}\n"

    def _prompt(self, row: Row) -> Prompt:
        article, summary = (row[field] for field in self.fields)
        return self._made(row, "Article: ", article, MARK, reference=summary)


class CnnDm(News):
    """CNN/DailyMail, one demonstration for base models.

    Args:
        variant: the paper whose limit of new tokens applies, `knn_ssd` or `conflayers`; their prompts are the same.
        max_new_tokens: the limit of each variant's paper.
        shots, clip_reserve, hub, fewshot_hub: as in `News`.
    """

    name = "cnn_dm"
    file = "cnndm"
    fields = ("article", "highlights")

    def __init__(
        self,
        variant: str,
        shots: int,
        max_new_tokens: Mapping[str, int],
        clip_reserve: int,
        hub: Mapping[str, str],
        fewshot_hub: Mapping[str, str],
    ) -> None:
        self.variant = checked_variant(variant, ("knn_ssd", "conflayers"))
        limit = of_variant("max_new_tokens", max_new_tokens, variant)
        super().__init__(shots, limit, clip_reserve, hub, fewshot_hub)


class XSum(News):
    """XSum, summaries of one sentence (KNN-SSD Table 4)."""

    name = "xsum"
    file = "xsum"
    fields = ("document", "summary")
