"""Prompts of MATH, MMLU-Pro and Natural Questions: byte for byte, subjects, demonstrations, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest

from ssd_bench.data import HubSource
from ssd_bench.errors import ConfigError
from tasks.math500 import SUBJECTS
from tasks.selection import CONTEXT
from tests.tasks.test_task_prompts import Rows, folder, numbered, text
from tests.tasks.test_task_variants import PROBLEM, PROBLEM_SHOT
from tests.tasks.test_tasks import SAMPLE, make

NAMES = (
    *("Algebra", "Counting & Probability", "Geometry", "Intermediate Algebra", "Number Theory", "Prealgebra"),
    "Precalculus",
)
CHOICE = {"id": "c0", "question": "Which is red?\nChoose.", "options": ["A rose", "Grass (a plant)"], "answer": "A"}
CHOICE_TEXT = (
    "Question:\nWhich is red?\nChoose.\n\nOptions:\nA. A rose\nB. Grass (a plant)\n\n"
    "Answer the question by selecting the correct option. Think step by step and then provide your final answer in the "
    'format: "Answer: [OPTION]".'
)
QUESTION = {"id": "n0", "question": "who wrote it", "answer": ["Ann Lee", "Lee Ä."]}


def of_subjects(row: dict[str, object], count: int, prefix: str) -> Rows:
    rows = numbered(row, count * len(NAMES), "problem", prefix=prefix)  # type: ignore[arg-type]
    return [made | {"subject": NAMES[i % len(NAMES)]} for i, made in enumerate(rows)]


@pytest.mark.parametrize("template", ["plain", "chat"])
def test_mmlu_pro_prompt_is_the_papers_byte_for_byte(template: str, tmp_path: Path) -> None:
    task = make("mmlu_pro")
    (prompt,) = task.prompts(folder(tmp_path, {"mmlu_pro": [CHOICE]}), template, None, seed=0)
    assert text(prompt) == CHOICE_TEXT
    assert (prompt.reference, prompt.domain, prompt.body) == ("A", "mmlu_pro", "")
    assert [task.score(prompt, answer) for answer in ("It is a rose.\nAnswer: A", "Answer: B")] == [1.0, 0.0]


@pytest.mark.parametrize("template", ["plain", "chat"])
def test_natural_questions_prompt_byte_for_byte(template: str, tmp_path: Path) -> None:
    task = make("natural_questions")
    (prompt,) = task.prompts(folder(tmp_path, {"natural_questions": [QUESTION]}), template, None, seed=0)
    assert text(prompt) == "Question: who wrote it\nAnswer:"
    assert (json.loads(prompt.reference), prompt.domain) == (["Ann Lee", "Lee Ä."], "natural_questions")
    assert [task.score(prompt, answer) for answer in (" Ann Lee.", "lee ä", "Ann")] == [1.0, 1.0, 0.0]


def test_mmlu_pro_is_in_the_order_of_the_data_and_questions_are_shuffled(tmp_path: Path) -> None:
    rows = {"mmlu_pro": numbered(CHOICE, 9), "natural_questions": numbered(QUESTION, 9, "question")}
    source = folder(tmp_path, rows)
    for seed in (0, 2024):
        assert [p.id for p in make("mmlu_pro").prompts(source, "plain", 3, seed)] == ["i0", "i1", "i2"]
        theirs = list(datasets.Dataset.from_list(rows["natural_questions"]).shuffle(seed=seed)["id"])
        assert [p.id for p in make("natural_questions").prompts(source, "plain", None, seed)] == theirs


def test_a_math_problems_domain_is_its_subject(tmp_path: Path) -> None:
    source = folder(tmp_path, {"math500": of_subjects(PROBLEM, 1, "i")})
    prompts = sorted(make("math").prompts(source, "chat", None, 0), key=lambda prompt: prompt.id)
    assert [prompt.domain for prompt in prompts] == list(SUBJECTS)
    assert {prompt.reference for prompt in prompts} == {"2"}
    assert [make("math").score(prompts[0], text) for text in (r"\boxed{2}", "3")] == [1.0, 0.0]


def test_math_subjects_choose_items(tmp_path: Path) -> None:
    source = folder(tmp_path, {"math500": of_subjects(PROBLEM, 3, "i")})
    chosen = make("math", subjects=["geometry", "counting_and_probability"])
    for prompts in (chosen.prompts(source, "chat", None, 0), chosen.pool(source, "chat", 0)):
        assert sorted(prompt.domain for prompt in prompts) == ["counting_and_probability"] * 3 + ["geometry"] * 3
    assert len(chosen.prompts(source, "chat", 2, 0)) == 2
    only = folder(tmp_path, {"math500": [PROBLEM]})
    with pytest.raises(ConfigError, match=r"task\.subjects=\['geometry'\] .*that have problems in the data"):
        make("math", subjects=["geometry"]).prompts(only, "chat", None, 0)


def test_math_demonstrations_are_of_the_items_subject_and_no_items(tmp_path: Path) -> None:
    """KNN-SSD's code draws them from the subject's train folder."""
    items, pool = of_subjects(PROBLEM, 2, "i"), of_subjects(PROBLEM_SHOT, 6, "shot")
    given = [PROBLEM_SHOT | row for row in items] + pool
    source = folder(tmp_path, {"math500": items, "math500.fewshot": given})
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


@pytest.mark.parametrize(
    ("name", "file", "row", "message"),
    [
        ("mmlu_pro", "mmlu_pro", CHOICE | {"answer": "C"}, r"mmlu_pro c0 answer='C' .*one of A, B"),
        ("mmlu_pro", "mmlu_pro", CHOICE | {"answer": "AB"}, r"mmlu_pro c0 answer='AB' .*one of A, B"),
        ("mmlu_pro", "mmlu_pro", CHOICE | {"answer": "a"}, r"mmlu_pro c0 answer='a' .*one of A, B"),
        ("mmlu_pro", "mmlu_pro", CHOICE | {"options": ["x"] * 11}, r"mmlu_pro c0 options=11 .*at most 10"),
        ("mmlu_pro", "mmlu_pro", CHOICE | {"options": "A rose"}, r"options='A rose' .*list"),
        ("natural_questions", "natural_questions", QUESTION | {"answer": "Ann"}, r"answer='Ann' .*list"),
        ("natural_questions", "natural_questions", QUESTION | {"answer": []}, r"answer=\[\] .*list"),
        ("math", "math500", PROBLEM | {"subject": "Topology"}, r"math m0 subject='Topology' .*one of algebra, "),
        ("math", "math500", PROBLEM | {"answer": ""}, r"answer='' .*non-empty string"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(
    name: str, file: str, row: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        make(name).prompts(folder(tmp_path, {file: [row]}), "chat", None, 0)


@pytest.mark.parametrize("subjects", [[], "algebra", ["algebra", "Topology"], ["Algebra"]])
def test_unknown_subjects_are_refused(subjects: object) -> None:
    with pytest.raises(Exception, match=r"task\.subjects=.* list of algebra, counting_and_probability, ") as caught:
        make("math", subjects=subjects)
    assert isinstance(caught.value.__cause__, ConfigError)


def test_sample_demonstrations_are_enough_for_every_subject() -> None:
    prompts = make("math").prompts(SAMPLE, "plain", None, 0)
    assert {prompt.domain for prompt in prompts} == set(SUBJECTS)
    assert all(prompt.head.count("Question: ") == 6 for prompt in prompts)


# ---- Spider and Spider2, with and without schemas, and what the hub cannot give


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


def test_an_item_without_a_query_is_not_scored(tmp_path: Path) -> None:
    task = make("spider2")
    (prompt,) = task.prompts(folder(tmp_path, {"spider2_lite": [QUERY | {"query": ""}]}), "chat", None, 0)
    assert prompt.reference == "" and task.score(prompt, "SELECT 1") is None
    with pytest.raises(ConfigError, match=r"spider\.jsonl:1 query='' .*non-empty string"):
        make("spider").prompts(folder(tmp_path, {"spider": [QUERY | {"query": ""}]}), "chat", None, 0)


def test_the_right_query_scores_1(tmp_path: Path) -> None:
    for name in FILES:
        task = make(name)
        source = folder(tmp_path, given(name, QUERY | {"schema": SCHEMA}))
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


def test_spider2_of_the_hub_has_no_demonstrations() -> None:
    spec = make("spider2").files("plain")[1]
    message = r"task\.fewshot_hub of spider2_lite\.fewshot=\{\} .*task\.shots=0 needs none"
    with pytest.raises(ConfigError, match=message):
        HubSource().rows(spec)
