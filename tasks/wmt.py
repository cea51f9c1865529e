r"""News translation from German to English: WMT16 (Bojar et al. 2016) and WMT14 (Bojar et al. 2014).

Two tasks, each in the format of one paper's released code:

- `wmt16`: KNN-SSD, `evaluation_llama/utils.py` at mbsong/KNN-SSD cfa8532: `Translate German to English: …`,
  `Answer:`, five demonstrations for base models.
- `wmt14`: ConfLayers, `evaluation/eval.py` at WA225/ConfLayers 8f04171: `Translate German to English:`,
  `German: …`, `English:`, zero-shot. Section 4.3.1 of the paper says English to German; the code does not.

Where we differ: the papers' code would cut the end of a sentence that exceeds the context; here it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ssd_bench.task import DataSource, DataSpec, Prompt
from tasks.scoring import rouge_l
from tasks.selection import checked_count, checked_template, first, shuffled
from tasks.shots import FewShot, in_one_line

FIELDS = ("source_de", "target_en")
COLUMNS = {"translation.de": "source_de", "translation.en": "target_en"}


class WMT16:
    """WMT16, German to English (KNN-SSD). A chat model gets the sentence alone in the same format, zero-shot.

    Args:
        shots: demonstrations in a `plain` prompt.
        max_new_tokens: most tokens of a translation.
        hub: `datasets.load_dataset` arguments of the test split.
        fewshot_hub: the same for the split of the demonstrations.
    """

    name: str = "wmt16"
    metric: str = "rougeL"
    version: int = 1
    max_prompt_tokens: int | None = None
    clip_reserve: int = 0

    def __init__(self, shots: int, max_new_tokens: int, hub: Mapping[str, str], fewshot_hub: Mapping[str, str]) -> None:
        self.max_new_tokens = checked_count("max_new_tokens", max_new_tokens, 1)
        items = DataSpec(name="wmt16_deen", fields=FIELDS, hub=dict(hub), rename=COLUMNS)
        fewshot = DataSpec(name="wmt16_deen.fewshot", fields=FIELDS, hub=dict(fewshot_hub), rename=COLUMNS)
        self._few = FewShot(items, fewshot, shots, key="source_de")

    def files(self, template: str) -> tuple[DataSpec, ...]:
        """The test sentences, and the demonstrations where the template has any."""
        return self._few.files(template)

    def prompts(self, source: DataSource, template: str, limit: int | None, seed: int) -> Sequence[Prompt]:
        """The first `limit` sentences of a shuffle with the run's seed."""
        return self._few.prompts(source, template, limit, seed, self._demonstration, self._prompt)

    def score(self, reference: str, text: str) -> float:
        """ROUGE-L F1 with stemming."""
        return rouge_l(reference, text)

    def _demonstration(self, row: dict[str, str]) -> str:
        return f"Translate German to English: {row['source_de']}\nAnswer: {in_one_line(row['target_en'])}\n"

    def _prompt(self, row: dict[str, str], shots: str) -> Prompt:
        asked = f"{shots}Translate German to English: {row['source_de']}\nAnswer:"
        return Prompt(row["id"], head=asked, body="", tail="", reference=row["target_en"], domain=self.name)


class WMT14:
    """WMT14, German to English (ConfLayers), zero-shot. A chat model gets the same text as one user turn.

    Args:
        max_new_tokens: most tokens of a translation.
        hub: `datasets.load_dataset` arguments.
    """

    name: str = "wmt14"
    metric: str = "rougeL"
    version: int = 1
    max_prompt_tokens: int | None = None
    clip_reserve: int = 0

    def __init__(self, max_new_tokens: int, hub: Mapping[str, str]) -> None:
        self.max_new_tokens = checked_count("max_new_tokens", max_new_tokens, 1)
        self._items = DataSpec(name="wmt14_deen", fields=FIELDS, hub=dict(hub), rename=COLUMNS)

    def files(self, template: str) -> tuple[DataSpec, ...]:
        """The test sentences."""
        checked_template(template)
        return (self._items,)

    def prompts(self, source: DataSource, template: str, limit: int | None, seed: int) -> Sequence[Prompt]:
        """The first `limit` sentences of a shuffle with the run's seed."""
        checked_template(template)
        return [self._prompt(row) for row in first(shuffled(source.rows(self._items), seed), limit)]

    def score(self, reference: str, text: str) -> float:
        """ROUGE-L F1 with stemming."""
        return rouge_l(reference, text)

    def _prompt(self, row: dict[str, str]) -> Prompt:
        asked = f"Translate German to English:\nGerman: {row['source_de']}\nEnglish:"
        return Prompt(row["id"], head=asked, body="", tail="", reference=row["target_en"], domain=self.name)
