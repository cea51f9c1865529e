r"""News translation from German to English: WMT16 (Bojar et al. 2016) and WMT14 (Bojar et al. 2014).

Two tasks, each in the format of a paper's released code:

- `wmt16`: KNN-SSD, `evaluation_llama/utils.py` at mbsong/KNN-SSD cfa8532: `Translate German to English: …`,
  `Answer:`, five demonstrations for base models.
- `wmt14`: ConfLayers, `evaluation/eval.py` at WA225/ConfLayers 8f04171: `Translate German to English:`,
  `German: …`, `English:`, zero-shot. Section 4.3.1 of the paper says English to German; the code does not.

Difference: the papers' code would truncate a sentence that exceeds the context; here it is refused.
"""

from __future__ import annotations

from ssd_bench.contract.task import Prompt
from ssd_bench.data.rows import Row
from ssd_bench.settings import settings
from tasks.rows import FewShotTask, HubTask
from tasks.scoring.translation import Translation
from tasks.settings import FewshotHub, Hub, MaxNewTokens, ShotCount, System
from tasks.shots import in_one_line

FIELDS = ("source_de", "target_en")
COLUMNS = {"translation.de": "source_de", "translation.en": "target_en"}


@settings("task")
class WMT16(FewShotTask):
    """WMT16, German to English (KNN-SSD). Chat models get the sentence alone in the same format, zero-shot."""

    name = "wmt16"
    scorer = Translation()
    version = 3
    file = "wmt16_deen"
    fields = FIELDS
    rename = COLUMNS

    shots: ShotCount
    max_new_tokens: MaxNewTokens
    hub: Hub
    fewshot_hub: FewshotHub
    system: System = None

    def _demonstration(self, row: Row) -> str:
        return f"Translate German to English: {row['source_de']}\nAnswer: {in_one_line(row['target_en'])}\n"

    def _prompt(self, row: Row) -> Prompt:
        return self._make_prompt(
            row, f"Translate German to English: {row['source_de']}\nAnswer:", reference=row["target_en"]
        )


class WMT14(HubTask):
    """WMT14, German to English (ConfLayers), zero-shot. Chat models get the same text as one user turn."""

    name = "wmt14"
    scorer = Translation()
    version = 3
    file = "wmt14_deen"
    fields = FIELDS
    rename = COLUMNS

    def _prompt(self, row: Row) -> Prompt:
        text = f"Translate German to English:\nGerman: {row['source_de']}\nEnglish:"
        return self._make_prompt(row, text, reference=row["target_en"])
