"""MBPP: short Python functions from a sentence and three tests (Austin et al. 2021, arXiv:2108.07732).

The sanitized set: 427 problems that its authors went over, 257 of them for tests. The prompt is the paper's: the task,
its tests, and `[BEGIN]`; a base model sees three solved ones before it, drawn with the run's seed (the paper's are
always those numbered 2, 3 and 4), a chat model none. The answer is what a base model writes up to `[DONE]`; of a chat
model the code in it, in a fenced block or not, that defines the tested functions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ssd_bench.settings import settings
from ssd_bench.task import DataSpec, Prompt
from tasks.programs import ProgramTask
from tasks.rows import RowTask
from tasks.scoring.code import PassesAsserts
from tasks.selection import Row
from tasks.settings import FewshotHub, ShotCount
from tasks.shots import Shots


@settings("task", kw_only=True)
class MBPP(ProgramTask):
    """One function to write. An answer is run against the item's tests: pass@1."""

    name = "mbpp"
    version = 2

    shots: ShotCount
    fewshot_hub: FewshotHub

    def __post_init__(self) -> None:
        fields: Mapping[str, Any] = {"lists": ("test_list", "test_imports"), "optional": ("test_imports",)}
        items = DataSpec(self.name, ("prompt", "code", "test_list"), self.hub, **fields)
        shots = Shots(items, self.fewshot_hub, self.shots, lambda row: f"{_asked(row)}{row['code']}\n[DONE]\n\n")
        RowTask.__init__(self, items, self.max_new_tokens, shots)
        self.scorer: PassesAsserts = PassesAsserts(self.limits, self.required)

    def _prompt(self, row: Row) -> Prompt:
        reference = json.dumps({"imports": row["test_imports"], "tests": row["test_list"]}, ensure_ascii=False)
        return self._made(row, _asked(row), reference=reference)


def _asked(row: Row) -> str:
    tests = "\n".join(row["test_list"])
    return (
        f"You are an expert Python programmer, and here is your task: {row['prompt']} "
        f"Your code should pass these tests:\n\n{tests}\n[BEGIN]\n"
    )
