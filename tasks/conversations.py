"""Conversations of the field's benchmarks, each with a category and without a score.

- MT-Bench: Zheng et al. 2023, arXiv:2306.05685; 80 questions of 8 categories, each with a second turn. GPT-4 judges its
  answers; here they serve speed and losslessness alone.
- Spec-Bench: Xia et al. 2024, arXiv:2401.07851; 480 questions: MT-Bench's, and 80 each of translation, summarization,
  question answering, mathematical reasoning and retrieval-augmented generation, in one turn.
- SPEED-Bench: Abramovich et al. 2026, arXiv:2604.09557; its qualitative set has 880 of 11 categories, some of several
  turns. Some rows on the hub are placeholders that its authors' script fills in from other data sets, so run the task
  on the script's file (`data=local`).

A chat model gets each turn as the user's message, a base model as `Question: …`, `Answer:`. Later turns' prompts hold
AR's answers to the earlier ones, so that both arms read the same. Items keep the data's order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from ssd_bench.contract.task import DataSource, Prompt, Turn
from ssd_bench.data.rows import Row
from tasks.rows import HubTask
from tasks.scoring.unscored import Unscored


class Conversations(HubTask):
    """A task whose rows have a category and one or several turns."""

    version = 1
    scorer = Unscored()
    in_order = True
    conversations = True
    fields = ("category", "turns")
    lists = ("turns",)
    rename: ClassVar = {"turns": "turns", "question_id": "id"}  # names in FastChat's and Spec-Bench's files

    def _prepare(self, source: DataSource, template: str, seed: int) -> tuple[Sequence[Row], Callable[[Row], Prompt]]:
        ordered, prompt_of = super()._prepare(source, template, seed)
        return ordered, prompt_of if template == "chat" else lambda row: _as_plain_text(prompt_of(row))

    def _prompt(self, row: Row) -> Prompt:
        first, *following = row["turns"]
        prompt = self._make_prompt(row, first, reference="", domain=row["category"])
        return replace(prompt, turns=tuple(map(Turn, following)))


def _as_plain_text(prompt: Prompt) -> Prompt:
    first, *following = (f"Question: {text}\nAnswer:" for text in prompt.user_texts)
    return replace(prompt, head=first, turns=tuple(Turn(f"\n\n{text}") for text in following))


class MTBench(Conversations):
    """MT-Bench: 80 conversations of two turns, of 8 categories."""

    name = "mt_bench"
    rename: ClassVar = {"prompt": "turns", "question_id": "id"}


class SpecBench(Conversations):
    """Spec-Bench: 480 conversations of 13 categories; MT-Bench's have two turns."""

    name = "spec_bench"


class SpeedBench(Conversations):
    """SPEED-Bench's qualitative set: 880 conversations of 11 categories."""

    name = "speed_bench"
