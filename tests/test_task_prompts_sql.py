"""Prompts of Spider and Spider2: byte for byte, with and without schemas, and what the hub cannot give."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest

from ssd_bench.data import HubSource
from ssd_bench.errors import ConfigError
from tasks.selection import CONTEXT
from tests.test_task_prompts import Rows, folder, text
from tests.test_tasks import make

QUERY = {"id": "s0", "question": "Count users.", "query": "SELECT COUNT(*) FROM users"}
SHOT = {"id": "s9", "question": "List names.", "query": "SELECT name\nFROM users"}
SCHEMA = "CREATE TABLE users (\n  name TEXT\n);"
FILES = {"spider": "spider", "spider2": "spider2_lite"}
SHOWN = "Instruction: List names.SQL Query: SELECT nameFROM users\n"


def given(name: str, item: dict[str, str], shot: dict[str, str] | None = None) -> dict[str, Rows]:
    files: dict[str, Rows] = {FILES[name]: [item]}
    return files | ({f"{FILES[name]}.fewshot": [shot]} if shot else {})


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("template", "shots", "shot", "expected"),
    [
        ("plain", 1, SHOT, f"{SHOWN}Instruction: Count users.\nSQL Query:"),
        ("plain", 0, None, "Instruction: Count users.\nSQL Query:"),
        ("chat", 3, None, "Instruction: Count users.\nSQL Query:"),
    ],
)
def test_prompt_is_the_papers_byte_for_byte(
    name: str, template: str, shots: int, shot: dict[str, str] | None, expected: str, tmp_path: Path
) -> None:
    task, files = make(name, shots=shots), given(name, QUERY | {"schema": SCHEMA}, shot)
    (prompt,) = task.prompts(folder(tmp_path, files), template, None, seed=0)
    assert text(prompt) == expected
    assert (prompt.body, prompt.max_tokens, prompt.domain) == ("", None, name)
    assert [spec.name for spec in task.files(template)] == list(files)


@pytest.mark.parametrize("name", FILES)
def test_a_schema_stands_ahead_of_the_question_and_may_be_clipped(name: str, tmp_path: Path) -> None:
    task = make(name, shots=1, schema=True)
    files = given(name, QUERY | {"schema": SCHEMA}, SHOT | {"schema": "CREATE TABLE users (id INT);"})
    source = folder(tmp_path, files)
    (prompt,) = task.prompts(source, "plain", None, seed=0)
    shown = "Instruction: CREATE TABLE users (id INT);\nList names.SQL Query: SELECT nameFROM users\n"
    assert text(prompt) == f"{shown}Instruction: {SCHEMA}\nCount users.\nSQL Query:"
    assert (prompt.body, prompt.max_tokens, prompt.clip_reserve) == (SCHEMA, CONTEXT, 250)
    (prompt,) = task.prompts(source, "chat", None, seed=0)
    assert text(prompt) == f"Instruction: {SCHEMA}\nCount users.\nSQL Query:"


def test_a_reference_has_query_schema_and_dialect(tmp_path: Path) -> None:
    rows = {"spider": [QUERY], "spider2_lite": [QUERY | {"schema": SCHEMA, "dialect": "snowflake"}]}
    source = folder(tmp_path, rows)
    found = {name: json.loads(make(name).prompts(source, "chat", None, 0)[0].reference) for name in FILES}
    assert found["spider"] == {"query": QUERY["query"], "schema": "", "dialect": "sqlite"}
    assert found["spider2"] == {"query": QUERY["query"], "schema": SCHEMA, "dialect": "snowflake"}


def test_an_item_without_a_query_is_not_scored(tmp_path: Path) -> None:
    task = make("spider2")
    (prompt,) = task.prompts(folder(tmp_path, {"spider2_lite": [QUERY | {"query": ""}]}), "chat", None, 0)
    assert prompt.reference == "" and task.score(prompt, "SELECT 1") is None
    with pytest.raises(ConfigError, match=r"spider\.jsonl:1 query='' .*non-empty string"):
        make("spider").prompts(folder(tmp_path, {"spider": [QUERY | {"query": ""}]}), "chat", None, 0)


def test_the_right_query_scores_1(tmp_path: Path) -> None:
    for name in FILES:
        task = make(name)
        source = folder(tmp_path, given(name, QUERY | {"schema": SCHEMA, "dialect": "sqlite"}))
        (prompt,) = task.prompts(source, "chat", None, 0)
        assert task.score(prompt, "select count(*) from users;") == 1.0


@pytest.mark.parametrize("name", FILES)
def test_a_schema_that_is_asked_for_must_be_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task\.schema=True .*false: s0 has no schema"):
        make(name, schema=True).prompts(folder(tmp_path, {FILES[name]: [QUERY]}), "chat", None, 0)


def test_demonstrations_need_queries_where_items_do_not(tmp_path: Path) -> None:
    files = {"spider2_lite": [QUERY], "spider2_lite.fewshot": [SHOT | {"query": ""}]}
    with pytest.raises(ConfigError, match=r"spider2_lite\.fewshot\.jsonl:1 query='' .*non-empty string"):
        make("spider2", shots=1).prompts(folder(tmp_path, files), "plain", None, 0)


def test_spider2_of_the_hub_has_no_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"instance_id": "bq1", "db": "shop", "question": "Count users.", "external_knowledge": None}
    monkeypatch.setattr(datasets, "load_dataset", lambda **_: datasets.Dataset.from_list([row]))
    task = make("spider2", hub={"rows": 1})
    with pytest.raises(
        ConfigError, match=r"task\.fewshot_hub of spider2_lite\.fewshot=\{\} .*task\.shots=0 needs none"
    ):
        task.prompts(HubSource(), "plain", None, 0)
    for prompts in (
        task.prompts(HubSource(), "chat", None, 0),
        make("spider2", hub={"rows": 1}, shots=0).prompts(HubSource(), "plain", None, 0),
    ):
        assert [(text(prompt), prompt.reference) for prompt in prompts] == [
            ("Instruction: Count users.\nSQL Query:", "")
        ]
