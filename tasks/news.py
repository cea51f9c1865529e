r"""News articles to summarise: CNN/DailyMail (See et al. 2017, arXiv:1704.04368) and XSum (Narayan et al. 2018,
arXiv:1808.08745).

The format is that of the released code of KNN-SSD (`evaluation_llama/utils.py` at mbsong/KNN-SSD cfa8532) and
ConfLayers (`evaluation/eval.py` at WA225/ConfLayers 8f04171), the same in both: `Article: …`, `Summary:`; newlines
inside a demonstration's summary are deleted, not replaced by spaces, and one newline follows each demonstration.

Where prompt and new tokens exceed the context, the article loses its end, as in both; demonstrations are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ssd_bench.task import DataSource, DataSpec, Prompt
from tasks.scoring import rouge_l
from tasks.selection import CONTEXT, checked_count, checked_variant, of_variant
from tasks.shots import FewShot, in_one_line

MARK = "\nSummary:"


class News:
    """What CNN/DailyMail and XSum share: an article and its summary, in the seeded shuffle of the papers' code.

    Args:
        file: the name of the file of the test articles; with `.fewshot` that of the demonstrations.
        fields: that of the article and that of its summary.
        shots: demonstrations in a `plain` prompt; a `chat` prompt is one user turn without any (KNN-SSD App. B).
        max_new_tokens: most tokens of a summary.
        clip_reserve: tokens kept free besides prompt and summary where an article is clipped.
        hub, fewshot_hub: `datasets.load_dataset` arguments of both.
    """

    name: str
    metric: str = "rougeL"
    version: int = 1
    max_prompt_tokens: int | None = CONTEXT

    def __init__(
        self,
        file: str,
        fields: tuple[str, str],
        shots: int,
        max_new_tokens: int,
        clip_reserve: int,
        hub: Mapping[str, str],
        fewshot_hub: Mapping[str, str],
    ) -> None:
        self._text, self._summary = fields
        fewshot = DataSpec(f"{file}.fewshot", fields, hub=dict(fewshot_hub))
        self._few = FewShot(DataSpec(file, fields, hub=dict(hub)), fewshot, shots, key=self._text)
        self.max_new_tokens = checked_count("max_new_tokens", max_new_tokens, 1)
        self.clip_reserve = checked_count("clip_reserve", clip_reserve, 0)

    def files(self, template: str) -> tuple[DataSpec, ...]:
        """The test articles, and the demonstrations where the template has any."""
        return self._few.files(template)

    def prompts(self, source: DataSource, template: str, limit: int | None, seed: int) -> Sequence[Prompt]:
        """The first `limit` articles of a shuffle with the run's seed."""
        return self._few.prompts(source, template, limit, seed, self._demonstration, self._prompt)

    def score(self, reference: str, text: str) -> float:
        """ROUGE-L F1 with stemming."""
        return rouge_l(reference, text)

    def _demonstration(self, row: dict[str, str]) -> str:
        return f"Article: {row[self._text]}{MARK} {in_one_line(row[self._summary])}\n"

    def _prompt(self, row: dict[str, str], shots: str) -> Prompt:
        head, reference = f"{shots}Article: ", row[self._summary]
        return Prompt(row["id"], head, body=row[self._text], tail=MARK, reference=reference, domain=self.name)


class CnnDm(News):
    """CNN/DailyMail, one demonstration for base models.

    Args:
        variant: the paper whose limit of new tokens applies, `knn_ssd` or `conflayers`; their prompts are the same.
        shots: demonstrations in a `plain` prompt.
        max_new_tokens: the limit of each variant's paper.
        clip_reserve: tokens kept free besides prompt and summary where an article is clipped.
        hub: `datasets.load_dataset` arguments of the test split.
        fewshot_hub: the same for the split of the demonstrations.
    """

    name = "cnn_dm"

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
        super().__init__("cnndm", ("article", "highlights"), shots, limit, clip_reserve, hub, fewshot_hub)


class XSum(News):
    """XSum, summaries of one sentence (KNN-SSD Table 4).

    Args:
        shots: demonstrations in a `plain` prompt.
        max_new_tokens: most tokens of a summary.
        clip_reserve: tokens kept free besides prompt and summary where an article is clipped.
        hub: `datasets.load_dataset` arguments of the test split.
        fewshot_hub: the same for the split of the demonstrations.
    """

    name = "xsum"

    def __init__(
        self, shots: int, max_new_tokens: int, clip_reserve: int, hub: Mapping[str, str], fewshot_hub: Mapping[str, str]
    ) -> None:
        super().__init__("xsum", ("document", "summary"), shots, max_new_tokens, clip_reserve, hub, fewshot_hub)
