"""TinyStories: short stories in the words of a small child (Eldan and Li 2023, arXiv:2305.07759).

The format is that of KNN-SSD's released code (`evaluation_llama/utils.py` at mbsong/KNN-SSD cfa8532): the item's own
story is the demonstration of its prompt, for base and chat models alike, and nothing is drawn from the train split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ssd_bench.task import DataSource, DataSpec, Prompt
from tasks.scoring import rouge_l
from tasks.selection import CONTEXT, checked_count, checked_template, first, shuffled


class TinyStories:
    """A story, and the request for one. The score tells how much of the shown story the answer repeats.

    Args:
        max_new_tokens: most tokens of a story.
        clip_reserve: tokens kept free besides prompt and new tokens where a story is clipped.
        hub: `datasets.load_dataset` arguments.
    """

    name: str = "tinystories"
    metric: str = "rougeL"
    version: int = 1
    max_prompt_tokens: int | None = CONTEXT

    def __init__(self, max_new_tokens: int, clip_reserve: int, hub: Mapping[str, str]) -> None:
        self.max_new_tokens = checked_count("max_new_tokens", max_new_tokens, 1)
        self.clip_reserve = checked_count("clip_reserve", clip_reserve, 0)
        self._items = DataSpec(name="tinystories", fields=("text",), hub=dict(hub))

    def files(self, template: str) -> tuple[DataSpec, ...]:
        """The stories."""
        checked_template(template)
        return (self._items,)

    def prompts(self, source: DataSource, template: str, limit: int | None, seed: int) -> Sequence[Prompt]:
        """The first `limit` stories of a shuffle with the run's seed (KNN-SSD code)."""
        checked_template(template)
        return [self._prompt(row) for row in first(shuffled(source.rows(self._items), seed), limit)]

    def score(self, reference: str, text: str) -> float:
        """ROUGE-L F1 with stemming, against the story that the prompt shows."""
        return rouge_l(reference, text)

    def _prompt(self, row: dict[str, str]) -> Prompt:
        lead, story = "Write a tiny story:", row["text"]
        return Prompt(row["id"], f"{lead} ", body=story, tail=f"\n{lead}", reference=story, domain=self.name)
