"""TinyStories: short stories in the words of a small child (Eldan and Li 2023, arXiv:2305.07759).

The format is that of KNN-SSD's released code (`evaluation_llama/utils.py` at mbsong/KNN-SSD cfa8532): the item's own
story is the demonstration, for base and chat models; the train split is unused.
"""

from __future__ import annotations

from ssd_bench.contract.task import Prompt
from ssd_bench.data.rows import Row
from ssd_bench.settings import settings
from tasks.rows import RowTask
from tasks.scoring.rouge import Rouge
from tasks.selection import CONTEXT
from tasks.settings import ClipReserve, Hub, MaxNewTokens, System


@settings("task")
class TinyStories(RowTask):
    """A story and the request for another; the score is the share of the story that the answer repeats."""

    name = "tinystories"
    scorer = Rouge()
    version = 2
    max_prompt_tokens = CONTEXT
    fields = ("text",)

    max_new_tokens: MaxNewTokens
    clip_reserve: ClipReserve
    hub: Hub
    system: System = None

    def _prompt(self, row: Row) -> Prompt:
        lead, story = "Write a tiny story:", row["text"]
        return self._make_prompt(row, f"{lead} ", story, f"\n{lead}", reference=story)
