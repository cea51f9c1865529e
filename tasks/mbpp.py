"""MBPP: short Python functions from a sentence and three tests (Austin et al. 2021, arXiv:2108.07732).

The sanitized set: 427 problems checked by the authors, 257 of them for tests. The prompt is the paper's: the task, its
tests, and `[BEGIN]`. Base models first see three solved problems, drawn with the run's seed (the paper's are always
numbers 2, 3 and 4); chat models see none. A base model's answer is its text up to `[DONE]`; a chat model's is the code
that defines the tested functions, fenced or not.
"""

from __future__ import annotations

import json

from ssd_bench.contract.task import Prompt
from ssd_bench.data.rows import Row
from ssd_bench.settings import settings
from tasks.programs import ProgramTask
from tasks.rows import FewShotTask
from tasks.scoring.code import PassesAsserts
from tasks.settings import FewshotHub, ShotCount


@settings("task", kw_only=True)
class MBPP(ProgramTask, FewShotTask):
    """One function to write, run against the item's tests: pass@1."""

    name = "mbpp"
    version = 2
    scorer_class = PassesAsserts
    fields = ("prompt", "code", "test_list")
    optional = ("test_imports",)
    lists = ("test_list", "test_imports")

    shots: ShotCount
    fewshot_hub: FewshotHub

    def _demonstration(self, row: Row) -> str:
        return f"{_problem_text(row)}{row['code']}\n[DONE]\n\n"

    def _prompt(self, row: Row) -> Prompt:
        reference = json.dumps({"imports": row["test_imports"], "tests": row["test_list"]}, ensure_ascii=False)
        return self._make_prompt(row, _problem_text(row), reference=reference)


def _problem_text(row: Row) -> str:
    tests = "\n".join(row["test_list"])
    return (
        f"You are an expert Python programmer, and here is your task: {row['prompt']} "
        f"Your code should pass these tests:\n\n{tests}\n[BEGIN]\n"
    )
