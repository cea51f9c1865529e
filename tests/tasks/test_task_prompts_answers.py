"""MATH by subject; Spider and Spider2 with and without schemas, and what the hub cannot give."""

from __future__ import annotations

from pathlib import Path

import datasets
import pytest

from ssd_bench.data import HubSource
from ssd_bench.errors import ConfigError
from tasks.math500 import SUBJECTS
from tasks.selection import CONTEXT
from tests.sources import local_source
from tests.tasks.test_task_prompts import PROBLEM, PROBLEM_SHOT, QUERY, QUERY_SHOT, SQL, Row, numbered, text
from tests.tasks.test_tasks import SAMPLE, make


def of_subjects(row: Row, count: int, prefix: str) -> list[Row]:
    rows = numbered(row, count * len(SUBJECTS), "problem", prefix=prefix)
    return [made | {"subject": SUBJECTS[i % len(SUBJECTS)].replace("_", " ").title()} for i, made in enumerate(rows)]


def test_math_subjects_choose_items(tmp_path: Path) -> None:
    source = local_source(tmp_path, {"math500": of_subjects(PROBLEM, 3, "i")})
    assert {prompt.domain for prompt in make("math").prompts(source, "chat", None, 0)} == set(SUBJECTS)
    chosen = make("math", subjects=["geometry", "counting_and_probability"])
    for prompts in (chosen.prompts(source, "chat", None, 0), chosen.pool(source, "chat", 0)):
        assert sorted(prompt.domain for prompt in prompts) == ["counting_and_probability"] * 3 + ["geometry"] * 3
    assert len(chosen.prompts(source, "chat", 2, 0)) == 2
    only = local_source(tmp_path, {"math500": [PROBLEM]})
    with pytest.raises(ConfigError, match=r"task\.subjects=\['geometry'\] .*that have problems in the data"):
        make("math", subjects=["geometry"]).prompts(only, "chat", None, 0)


def test_math_demonstrations_are_of_the_items_subject_and_no_items(tmp_path: Path) -> None:
    """KNN-SSD's code draws them from the subject's train folder."""
    items, pool = of_subjects(PROBLEM, 2, "i"), of_subjects(PROBLEM_SHOT, 6, "shot")
    given = [PROBLEM_SHOT | row for row in items] + pool
    source = local_source(tmp_path, {"math500": items, "math500.fewshot": given})
    order = list(datasets.Dataset.from_list(given).shuffle(seed=7)["id"])
    subject_of = {row["id"]: row["subject"] for row in (*items, *pool)}
    for prompt in make("math").prompts(source, "plain", None, 7):
        own = [shot for shot in order if shot.startswith("shot") and subject_of[shot] == subject_of[prompt.id]][:5]
        found = [prompt.head.find(f"Find $2$. {identity}\n") for identity in own]
        assert len(own) == 5 and -1 not in found and found == sorted(found)
        assert prompt.head.count("Question: ") == 6
    allowed = r"at most 6, the demonstrations of math500\.fewshot for \w+ that are not test items"
    with pytest.raises(ConfigError, match=rf"task\.shots=7 .*{allowed}"):
        make("math", shots=7).prompts(source, "plain", None, 7)


@pytest.mark.parametrize("subjects", [[], "algebra", ["algebra", "Topology"], ["Algebra"]])
def test_unknown_subjects_are_refused(subjects: object) -> None:
    with pytest.raises(Exception, match=r"task\.subjects=.* list of algebra, counting_and_probability, ") as caught:
        make("math", subjects=subjects)
    assert isinstance(caught.value.__cause__, ConfigError)


def test_sample_demonstrations_are_enough_for_every_subject() -> None:
    prompts = make("math").prompts(SAMPLE, "plain", None, 0)
    assert {prompt.domain for prompt in prompts} == set(SUBJECTS)
    assert all(prompt.head.count("Question: ") == 6 for prompt in prompts)


SCHEMA = "CREATE TABLE users (\n  name TEXT\n);"


@pytest.mark.parametrize("name", SQL)
def test_a_schema_stands_ahead_of_the_question_and_may_be_clipped(name: str, tmp_path: Path) -> None:
    task, file = make(name, shots=1, schema=True), SQL[name].file
    shot = QUERY_SHOT | {"schema": "CREATE TABLE users (id INT);"}
    source = local_source(tmp_path, {file: [QUERY | {"schema": SCHEMA}], f"{file}.fewshot": [shot]})
    (prompt,) = task.prompts(source, "plain", None, seed=0)
    shown = "Instruction: CREATE TABLE users (id INT);\nList names.SQL Query: SELECT nameFROM users\n"
    assert text(prompt) == f"{shown}Instruction: {SCHEMA}\nCount users.\nSQL Query:"
    assert (prompt.body, prompt.max_tokens, prompt.clip_reserve) == (SCHEMA, CONTEXT, 250)
    (prompt,) = task.prompts(source, "chat", None, seed=0)
    assert text(prompt) == f"Instruction: {SCHEMA}\nCount users.\nSQL Query:"
    with pytest.raises(ConfigError, match=r"task\.schema=True .*false: s0 has no schema"):
        task.prompts(local_source(tmp_path, {file: [QUERY]}), "chat", None, 0)


def test_an_item_without_a_query_is_not_scored(tmp_path: Path) -> None:
    task = make("spider2")
    (prompt,) = task.prompts(local_source(tmp_path, {"spider2_lite": [QUERY | {"query": ""}]}), "chat", None, 0)
    assert prompt.reference == "" and task.score(prompt, "SELECT 1") is None
    with pytest.raises(ConfigError, match=r"spider\.jsonl:1 query='' .*non-empty string"):
        make("spider").prompts(local_source(tmp_path, {"spider": [QUERY | {"query": ""}]}), "chat", None, 0)


def test_demonstrations_need_queries_where_items_do_not(tmp_path: Path) -> None:
    files = {"spider2_lite": [QUERY], "spider2_lite.fewshot": [QUERY_SHOT | {"query": ""}]}
    with pytest.raises(ConfigError, match=r"spider2_lite\.fewshot\.jsonl:1 query='' .*non-empty string"):
        make("spider2", shots=1).prompts(local_source(tmp_path, files), "plain", None, 0)


def test_spider2_of_the_hub_has_no_demonstrations() -> None:
    with pytest.raises(ConfigError, match=r"fewshot_hub of spider2_lite\.fewshot=\{\} .*task\.shots=0 needs none"):
        HubSource().rows(make("spider2").files("plain")[1])
