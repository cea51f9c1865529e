"""MBPP: the paper's prompt, and answers run against the item's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from ssd_bench.contract.task import Task
from ssd_bench.data.local import SampleSource
from tests.sources import local_source
from tests.tasks.test_tasks import make

ROW = {"id": "601", "prompt": "Write a function to add.", "code": "def add(a, b):\n    return a + b"}
ROW |= {
    "test_list": ["assert add(1, 2) == 3", "assert math.isclose(add(0.5, 0.5), 1)"],
    "test_imports": ["import math"],
}
SHOWN = {"id": "2", "prompt": "Write a function to negate.", "code": "def neg(a):\n    return -a"}
SHOWN |= {"test_list": ["assert neg(1) == -1"], "test_imports": []}
ASKED = (
    "You are an expert Python programmer, and here is your task: Write a function to add. Your code should pass these "
    "tests:\n\nassert add(1, 2) == 3\nassert math.isclose(add(0.5, 0.5), 1)\n[BEGIN]\n"
)
SHOT = (
    "You are an expert Python programmer, and here is your task: Write a function to negate. Your code should pass "
    "these tests:\n\nassert neg(1) == -1\n[BEGIN]\ndef neg(a):\n    return -a\n[DONE]\n\n"
)


@pytest.fixture
def task() -> Task:
    return make("mbpp", shots=1)


def test_the_prompt_is_the_papers(task: Task, tmp_path: Path) -> None:
    source = local_source(tmp_path, {"mbpp": [ROW], "mbpp.fewshot": [SHOWN]})
    (plain,), (chat,) = (task.prompts(source, template, None, 0) for template in ("plain", "chat"))
    assert plain.user_texts == [SHOT + ASKED] and chat.user_texts == [ASKED]
    assert task.score(chat, f"{ROW['code']}\n[DONE]\n\nYou are") == 1.0
    bare = {"id": "601", "prompt": "Add.", "code": "x", "test_list": ["assert add(1, 2) == 3"]}
    local_source(tmp_path, {"mbpp": [bare]})
    assert task.prompts(source, "chat", None, 0)[0].user_texts[0].endswith("== 3\n[BEGIN]\n")


def test_the_samples_own_solutions_pass(task: Task) -> None:
    (spec, *_) = task.files("chat")
    rows = SampleSource().rows(spec)
    for row, prompt in list(zip(rows, task.prompts(SampleSource(), "chat", None, 0), strict=True))[::10]:
        assert task.score(prompt, row["code"]) == 1.0 and task.score(prompt, "pass") == 0.0
