"""Your own prompts: a JSONL file with one `prompt` per line, a text or a list of the user's messages in a conversation.

    {"prompt": "Explain how a lease works."}
    {"prompt": ["Name three rivers.", "Which is the longest?"], "category": "geography", "reference": "…"}

The task adds nothing to the text. Optional: `id` (default: the line number), `category` (the domain in tables) and
`reference` (the expected first answer, for `task.score_by`). Items keep the file's order.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from ssd_bench.contract.task import DataSource, DataSpec, Prompt, Turn
from ssd_bench.data.local import LocalSource
from ssd_bench.data.rows import Row
from ssd_bench.errors import ConfigError
from ssd_bench.paths import local_path
from ssd_bench.settings import Fits, settings
from tasks.rows import RowTask
from tasks.scoring.math_answer import MathAnswer
from tasks.scoring.numbers import FinalNumber
from tasks.scoring.rouge import Rouge
from tasks.scoring.scorer import Scorer
from tasks.scoring.unscored import Unscored
from tasks.settings import Hub, MaxNewTokens, System

PromptFile = Annotated[str, Fits("a file NAME.jsonl", lambda path: Path(path).suffix == ".jsonl")]
SCORERS: dict[str, type[Scorer]] = {"none": Unscored, "rouge": Rouge, "number": FinalNumber, "math": MathAnswer}


@settings("task")
class Jsonl(RowTask):
    """Prompts of a JSONL file."""

    name = "jsonl"
    version = 3
    in_order = True
    conversations = True
    reference_hint = "; task.score_by=none turns scoring off"

    path: PromptFile | None
    """File of the prompts; null: DIR/jsonl.jsonl (data=local data.root=DIR), or the data set in `hub` (data=hub)."""
    score_by: Literal["none", "rouge", "number", "math"]
    """Scorer of an answer by its reference: none, ROUGE-L, the final number, or equal expressions."""
    max_new_tokens: MaxNewTokens
    hub: Hub
    system: System = None

    def __post_init__(self) -> None:
        file = local_path("task.path", self.path) if self.path is not None else None
        if file is not None and not file.is_file():
            raise ConfigError("task.path", self.path, "an existing file")
        # with a file the task has a source of its own, whatever `data` is: it reads STEM.jsonl in the file's folder
        self.source: DataSource | None = None if file is None else LocalSource(file.parent)
        self.scorer: Scorer = SCORERS[self.score_by]()
        prompt_file = DataSpec(
            self.name if file is None else file.stem,
            ("prompt",),
            self.hub,
            optional=("category", "reference"),
            lists=("prompt",),
            singles=("prompt",),
            numbered=True,
        )
        super().__init__(prompt_file, self.max_new_tokens)

    def _prompt(self, row: Row) -> Prompt:
        first_message, *later_messages = row["prompt"]
        domain = row["category"] or None  # None: the domain is the task's name
        prompt = self._make_prompt(row, first_message, reference=row["reference"], domain=domain)
        return replace(prompt, turns=tuple(map(Turn, later_messages)))
