"""MBPP: the paper's prompt, and answers run against the item's tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ssd_bench.compose.build import task_named
from ssd_bench.data.local import LocalSource, SampleSource
from tasks.mbpp import MBPP
from tasks.scoring.code import PassesAsserts
from tasks.scoring.sandbox import ProgramLimits

ROW = {
    "id": "601",
    "prompt": "Write a function to add.",
    "code": "def add(a, b):\n    return a + b",
    "test_list": ["assert add(1, 2) == 3", "assert math.isclose(add(0.5, 0.5), 1)"],
    "test_imports": ["import math"],
}
SHOWN = {
    **ROW,
    "id": "2",
    "prompt": "Write a function to negate.",
    "code": "def neg(a):\n    return -a",
    "test_list": ["assert neg(1) == -1"],
    "test_imports": [],
}
ASKED = (
    "You are an expert Python programmer, and here is your task: Write a function to add. Your code should pass these "
    "tests:\n\nassert add(1, 2) == 3\nassert math.isclose(add(0.5, 0.5), 1)\n[BEGIN]\n"
)
SHOT = (
    "You are an expert Python programmer, and here is your task: Write a function to negate. Your code should pass "
    "these tests:\n\nassert neg(1) == -1\n[BEGIN]\ndef neg(a):\n    return -a\n[DONE]\n\n"
)


@pytest.fixture
def task() -> MBPP:
    return MBPP(
        max_new_tokens=512,
        cpu_seconds=5,
        wall_seconds=30,
        memory_mib=1024,
        sandbox="required",
        hub={},
        shots=1,
        fewshot_hub={},
    )


def test_the_prompt_is_the_papers(task: MBPP, tmp_path: Path) -> None:
    for name, row in {"mbpp": ROW, "mbpp.fewshot": SHOWN}.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    source = LocalSource(tmp_path)
    (plain,), (chat,) = (task.prompts(source, template, None, 0) for template in ("plain", "chat"))
    assert plain.user_texts == [SHOT + ASKED] and chat.user_texts == [ASKED]
    assert task.score(chat, f"{ROW['code']}\n[DONE]\n\nYou are") == 1.0
    bare = {"id": "601", "prompt": "Add.", "code": "x", "test_list": ["assert add(1, 2) == 3"]}
    (tmp_path / "mbpp.jsonl").write_text(json.dumps(bare), encoding="utf-8")
    assert task.prompts(source, "chat", None, 0)[0].user_texts[0].endswith("== 3\n[BEGIN]\n")


@pytest.mark.parametrize(
    ("answer", "passes"),
    [
        ("def add(a, b):\n    return a + b\n[DONE]\nadd(", 1.0),
        ("Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nIt adds.", 1.0),
        ("```\nprint(1)\n```\n```python\ndef add(a, b):\n    return b + a\n```", 1.0),
        ("def add(a, b):\n    return a - b", 0.0),
        ("def plus(a, b):\n    return a + b", 0.0),
        ("I cannot.", 0.0),
        ("import os\nos._exit(0)", 0.0),
    ],
)
def test_an_answer_passes_by_its_tests(answer: str, passes: float) -> None:
    scorer = PassesAsserts(ProgramLimits(cpu_seconds=5, wall_seconds=30, memory_mib=1024))
    reference = json.dumps({"imports": ["import math"], "tests": ROW["test_list"]})
    assert scorer.item(answer, reference) == passes


def test_the_samples_own_solutions_pass() -> None:
    task = task_named("mbpp")
    (spec, *_) = task.files("chat")
    rows = SampleSource().rows(spec)
    for row, prompt in list(zip(rows, task.prompts(SampleSource(), "chat", None, 0), strict=True))[::10]:
        assert task.score(prompt, row["code"]) == 1.0 and task.score(prompt, "pass") == 0.0
