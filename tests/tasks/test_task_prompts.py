"""Prompts of all tasks byte for byte, from files on disk: order, demonstrations, limits, refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest

from ssd_bench.contract.task import Prompt, Task
from ssd_bench.data import LocalSource
from ssd_bench.errors import ConfigError
from tasks.selection import CONTEXT
from tasks.stream import Stream
from tests.runs import ROOT
from tests.tasks.test_tasks import make

Rows = list[dict[str, Any]]

ARTICLE = {"id": "c0", "article": "Rain fell.\nRoads shut.", "highlights": "Rain shut roads .\nNone hurt ."}
NEWS_SHOT = {"id": "c9", "article": "A fair\nopened.", "highlights": "Fair opens .\nCrowds come ."}
DOCUMENT = {"id": "x0", "document": "A club won.", "summary": "Club wins."}
SENTENCE = {"id": "w0", "source_de": "Es regnet.", "target_en": "It rains."}
SENTENCE_SHOT = {"id": "w9", "source_de": "Guten Tag.", "target_en": "Good\nday."}
QUERY = {"id": "s0", "question": "Count users.", "query": "SELECT COUNT(*) FROM users"}
STORY = {"id": "t0", "text": "Tim ran.\n\nTim slept."}
INSTRUCTION = {"id": "a0", "instruction": "Name a color.", "input": "", "output": "Red."}
PROBLEM = {"id": "p0", "problem": "Find $1+1$.", "answer": "002"}
FUNCTION = {
    "id": "h0",
    "prompt": 'def add(a, b):\n    """ Add.\n        >>> add(1, 2)\n    """\n',
    "canonical_solution": "    return a + b\n",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    "entry_point": "add",
}
AIME_TEXT = (
    "Solve the following math problem. Make sure to put the answer (and only the answer) inside \\boxed{}.\n\n"
    "Find $1+1$.\n <think> Let's think step by step. </think>\n"
)
REPORT = {"id": "g0", "report": "One.\n\nTwo.", "summary": "It is late."}
BOOK = {"id": "b0", "text": "One.\n\nTwo."}
CHAPTER = {"id": "k0", "chapter": "One.\n\nTwo.", "summary_text": "It is late."}
SUMMARIZE = "Summarize the following text:\n\nOne.\n\nTwo.\n\nSummary:"


def folder(root: Path, files: Mapping[str, Rows]) -> LocalSource:
    for name, rows in files.items():
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return LocalSource(root)


def text(prompt: Prompt) -> str:
    return prompt.head + prompt.body + prompt.tail


@pytest.mark.parametrize(
    ("task", "template", "files", "expected", "reference"),
    [
        (
            make("cnn_dm"),
            "plain",
            {"cnndm": [ARTICLE], "cnndm.fewshot": [NEWS_SHOT]},
            "Article: A fair\nopened.\nSummary: Fair opens .Crowds come .\nArticle: Rain fell.\nRoads shut.\nSummary:",
            ARTICLE["highlights"],
        ),
        (
            make("cnn_dm"),
            "chat",
            {"cnndm": [ARTICLE]},
            "Article: Rain fell.\nRoads shut.\nSummary:",
            ARTICLE["highlights"],
        ),
        (make("xsum"), "plain", {"xsum": [DOCUMENT]}, "Article: A club won.\nSummary:", DOCUMENT["summary"]),
        (
            make("tinystories"),
            "plain",
            {"tinystories": [STORY]},
            "Write a tiny story: Tim ran.\n\nTim slept.\nWrite a tiny story:",
            STORY["text"],
        ),
        (
            make("tinystories"),
            "chat",
            {"tinystories": [STORY]},
            "Write a tiny story: Tim ran.\n\nTim slept.\nWrite a tiny story:",
            STORY["text"],
        ),
        (
            make("wmt16", shots=1),
            "plain",
            {"wmt16_deen": [SENTENCE], "wmt16_deen.fewshot": [SENTENCE_SHOT]},
            "Translate German to English: Guten Tag.\nAnswer: Goodday.\n"
            "Translate German to English: Es regnet.\nAnswer:",
            "It rains.",
        ),
        (
            make("wmt16"),
            "chat",
            {"wmt16_deen": [SENTENCE]},
            "Translate German to English: Es regnet.\nAnswer:",
            "It rains.",
        ),
        (
            make("wmt14"),
            "plain",
            {"wmt14_deen": [SENTENCE]},
            "Translate German to English:\nGerman: Es regnet.\nEnglish:",
            "It rains.",
        ),
        (
            make("wmt14"),
            "chat",
            {"wmt14_deen": [SENTENCE]},
            "Translate German to English:\nGerman: Es regnet.\nEnglish:",
            "It rains.",
        ),
        (make("aime24"), "plain", {"aime24": [PROBLEM]}, AIME_TEXT, "2"),
        (make("aime25"), "chat", {"aime25": [PROBLEM]}, AIME_TEXT, "2"),
        (make("govreport"), "plain", {"govreport": [REPORT]}, SUMMARIZE, "It is late."),
        (make("govreport"), "chat", {"govreport": [REPORT]}, SUMMARIZE, "It is late."),
        (make("pg19"), "plain", {"pg19": [BOOK]}, SUMMARIZE, ""),
        (make("pg19"), "chat", {"pg19": [BOOK]}, SUMMARIZE, ""),
        (make("booksum"), "plain", {"booksum": [CHAPTER]}, SUMMARIZE, "It is late."),
        (make("booksum"), "chat", {"booksum": [CHAPTER]}, SUMMARIZE, "It is late."),
    ],
)
def test_prompt_is_the_papers_byte_for_byte(
    task: Task, template: str, files: dict[str, Rows], expected: str, reference: str, tmp_path: Path
) -> None:
    (prompt,) = task.prompts(folder(tmp_path, files), template, None, seed=0)
    assert text(prompt) == expected
    assert (prompt.reference, prompt.domain) == (reference, task.name)
    assert [spec.name for spec in task.files(template)] == list(files)
    assert prompt.id == next(iter(files.values()))[0]["id"]


@pytest.mark.parametrize("template", ["plain", "chat"])
def test_humaneval_prompt_is_the_papers_byte_for_byte(template: str, tmp_path: Path) -> None:
    (prompt,) = make("humaneval").prompts(folder(tmp_path, {"humaneval": [FUNCTION]}), template, None, seed=0)
    assert text(prompt) == 'def add(a, b):\n\t""" Add.\n\t\t>>> add(1, 2)\n\t"""\n'
    assert json.loads(prompt.reference) == {key: FUNCTION[key] for key in ("prompt", "test", "entry_point")}


def test_only_the_text_of_articles_and_stories_may_be_clipped(tmp_path: Path) -> None:
    source = folder(
        tmp_path,
        {"cnndm": [ARTICLE], "cnndm.fewshot": [NEWS_SHOT], "xsum": [DOCUMENT], "tinystories": [STORY]}
        | {
            "wmt16_deen": [SENTENCE],
            "wmt14_deen": [SENTENCE],
            "spider2_lite": [QUERY],
            "spider": [QUERY],
            "alpaca": [INSTRUCTION],
        }
        | {"aime24": [PROBLEM], "humaneval": [FUNCTION]},
    )
    bodies = {"cnn_dm": ARTICLE["article"], "xsum": DOCUMENT["document"], "tinystories": STORY["text"]}
    for name, body in bodies.items():
        task = make(name)
        assert [prompt.body for prompt in task.prompts(source, "plain", None, 0)] == [body]
        assert (task.max_prompt_tokens, task.clip_reserve) == (CONTEXT, 250)
    for name in ("wmt16", "wmt14", "spider2", "alpaca", "aime24", "humaneval"):
        task = make(name)
        assert [prompt.body for prompt in task.prompts(source, "chat", None, 0)] == [""]
        assert (task.max_prompt_tokens, task.clip_reserve) == (None, 0)


def numbered(row: dict[str, str], count: int, *fields: str, prefix: str = "i") -> Rows:
    return [
        row | {"id": f"{prefix}{n}"} | {field: f"{row[field]} {prefix}{n}" for field in fields} for n in range(count)
    ]


@pytest.mark.parametrize(
    ("name", "file", "row", "field"),
    [
        ("cnn_dm", "cnndm", ARTICLE, "article"),
        ("xsum", "xsum", DOCUMENT, "document"),
        ("tinystories", "tinystories", STORY, "text"),
        ("wmt16", "wmt16_deen", SENTENCE, "source_de"),
        ("wmt14", "wmt14_deen", SENTENCE, "source_de"),
        ("spider2", "spider2_lite", QUERY, "question"),
        ("alpaca", "alpaca", INSTRUCTION, "instruction"),
    ],
)
def test_order_is_the_seeded_shuffle_of_the_released_code(
    name: str, file: str, row: dict[str, str], field: str, tmp_path: Path
) -> None:
    rows = numbered(row, 20, field)
    source = folder(tmp_path, {file: rows})
    for seed in (0, 2024):
        theirs = list(datasets.Dataset.from_list(rows).shuffle(seed=seed)["id"])
        assert [prompt.id for prompt in make(name).prompts(source, "chat", None, seed)] == theirs
        assert [prompt.id for prompt in make(name).prompts(source, "chat", 3, seed)] == theirs[:3]


@pytest.mark.parametrize(("name", "row"), [("aime24", PROBLEM), ("aime25", PROBLEM), ("humaneval", FUNCTION)])
def test_order_is_that_of_the_data(name: str, row: dict[str, str], tmp_path: Path) -> None:
    source = folder(tmp_path, {name: numbered(row, 5)})
    for seed in (0, 1):
        assert [prompt.id for prompt in make(name).prompts(source, "plain", 4, seed)] == ["i0", "i1", "i2", "i3"]


@pytest.mark.parametrize(
    ("name", "file", "row", "field", "shots"),
    [
        ("cnn_dm", "cnndm", ARTICLE, "article", 1),
        ("wmt16", "wmt16_deen", SENTENCE, "source_de", 5),
        ("spider2", "spider2_lite", QUERY, "question", 3),
        ("spider", "spider", QUERY, "question", 3),
    ],
)
def test_demonstrations_are_as_many_as_the_paper_has_and_no_items(
    name: str, file: str, row: dict[str, str], field: str, shots: int, tmp_path: Path
) -> None:
    items, pool = numbered(row, 3, field), numbered(row, 12, field, prefix="shot")
    source = folder(tmp_path, {file: items, f"{file}.fewshot": [*items, *pool]})
    order = list(datasets.Dataset.from_list([*items, *pool]).shuffle(seed=7)["id"])
    shown = [identity for identity in order if identity.startswith("shot")][:shots]
    for prompt in make(name).prompts(source, "plain", None, 7):
        found = [prompt.head.find(f"{row[field]} {identity}") for identity in shown]
        assert -1 not in found
        assert found == sorted(found)
        assert prompt.head.count(f"{row[field]} shot") == shots
    with pytest.raises(ConfigError, match=rf"task\.shots=13 .*at most 12, the demonstrations of {file}\.fewshot"):
        make(name, shots=13).prompts(source, "plain", None, 7)


def test_the_papers_limits_and_metrics() -> None:
    expected = {
        "cnn_dm": (64, "rougeL"),
        "xsum": (64, "rougeL"),
        "tinystories": (128, "rougeL"),
        "wmt16": (64, "chrF"),
        "wmt14": (512, "chrF"),
        "spider": (64, "exact_match"),
        "spider2": (64, "exact_match"),
        "mmlu_pro": (4096, "accuracy"),
        "math": (64, "exact_match"),
        "natural_questions": (512, "exact_match"),
        "govreport": (1024, "rougeL"),
        "pg19": (1024, "rougeL"),
        "booksum": (1024, "rougeL"),
        "humaneval": (512, "pass@1"),
        "alpaca": (64, "rougeL"),
        "aime24": (32768, "exact_match"),
        "aime25": (32768, "exact_match"),
    }
    for name, (tokens, metric) in expected.items():
        task = make(name)
        assert (task.name, task.max_new_tokens, task.metric) == (name, tokens, metric)


def test_every_task_has_its_own_config() -> None:
    names = [path.stem for path in sorted((ROOT / "conf" / "task").glob("*.yaml"))]
    assert [make(name).name for name in names] == names


@pytest.mark.parametrize(
    "name",
    [
        *("cnn_dm", "xsum", "tinystories", "wmt16", "wmt14", "spider", "spider2", "humaneval", "alpaca", "aime24"),
        *("aime25", "math", "mmlu_pro", "natural_questions", "pg19", "booksum"),
    ],
)
def test_an_unknown_template_is_refused_before_anything_is_read(name: str, tmp_path: Path) -> None:
    task = make(name)
    with pytest.raises(ConfigError, match=r"model\.template='raw' .*chat, plain"):
        task.files("raw")
    with pytest.raises(ConfigError, match=r"model\.template='raw' .*chat, plain"):
        task.prompts(LocalSource(tmp_path), "raw", 1, 0)


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("aime24", PROBLEM | {"answer": "1000"}, r"aime24 p0 answer='1000' .*integer from 0 to 999"),
        ("aime25", PROBLEM | {"answer": "336^\\circ"}, r"aime25 p0 answer=.*integer from 0 to 999"),
        ("humaneval", FUNCTION | {"entry_point": "sub"}, r"humaneval h0 entry_point='sub' .*that the prompt defines"),
        (
            "humaneval",
            FUNCTION | {"entry_point": "add("},
            r"humaneval h0 entry_point='add\(' .*that the prompt defines",
        ),
        ("humaneval", FUNCTION | {"test": "assert add(1, 2) == 3"}, r"humaneval h0 test=.*the function check"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(name: str, row: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        make(name).prompts(folder(tmp_path, {name: [row]}), "chat", None, 0)


UNPINNED = ("spider", "humaneval", "mbpp", "speed_bench")


def test_hub_data_sets_are_pinned_and_have_a_number_of_rows() -> None:
    """Except for copies that no public code pins, and those absent from the hub."""
    for path in sorted((ROOT / "conf" / "task").glob("*.yaml")):
        task = make(path.stem)
        for spec in task.files("plain") if not isinstance(task, Stream) else ():
            if not spec.hub:
                assert spec.name in ("spider2_lite.fewshot", "spec_bench", "jsonl")
                continue
            assert re.fullmatch("[0-9a-f]{40}", spec.hub["revision"]) or spec.name.startswith(UNPINNED)
            assert spec.hub.get("rows", 164) >= 30 or spec.name == "mbpp.fewshot"
