"""Prompts of all tasks byte for byte, from files on disk: order, demonstrations, limits, refusals."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pytest

from ssd_bench.contract.task import Prompt
from ssd_bench.errors import ConfigError
from tasks.selection import CONTEXT
from tasks.stream import Stream
from tests.runs import ROOT
from tests.sources import local_source
from tests.tasks.test_tasks import make

Row = dict[str, Any]


@dataclass(frozen=True)
class Item:
    """A row of a file, and what else a prompt has of it."""

    file: str
    row: Row
    reference: str
    body: str = ""
    domain: str = ""


ARTICLE = {"id": "c0", "article": "Rain fell.\nRoads shut.", "highlights": "Rain shut roads .\nNone hurt ."}
NEWS = Item("cnndm", ARTICLE, ARTICLE["highlights"], ARTICLE["article"])
NEWS_SHOT = {"id": "c9", "article": "A fair\nopened.", "highlights": "Fair opens .\nCrowds come ."}
NEWS_TEXT = "Article: Rain fell.\nRoads shut.\nSummary:"
NEWS_SHOWN = f"Article: A fair\nopened.\nSummary: Fair opens .Crowds come .\n{NEWS_TEXT}"
CLUB = Item("xsum", {"id": "x0", "document": "A club won.", "summary": "Club wins."}, "Club wins.", "A club won.")
CLUB_SHOT = {"id": "x9", "document": "A ship sank.", "summary": "Ship\nsinks."}
CLUB_TEXT = "Article: A club won.\nSummary:"
CLUB_SHOWN = f"Article: A ship sank.\nSummary: Shipsinks.\n{CLUB_TEXT}"
RAIN = Item("wmt16_deen", {"id": "w0", "source_de": "Es regnet.", "target_en": "It rains."}, "It rains.")
RAIN14 = Item("wmt14_deen", RAIN.row, "It rains.")
RAIN_SHOT = {"id": "w9", "source_de": "Guten Tag.", "target_en": "Good\nday."}
RAIN_TEXT = "Translate German to English: Es regnet.\nAnswer:"
RAIN_SHOWN = f"Translate German to English: Guten Tag.\nAnswer: Goodday.\n{RAIN_TEXT}"
QUERY = {"id": "s0", "question": "Count users.", "query": "SELECT COUNT(*) FROM users"}
QUERY_SHOT = {"id": "s9", "question": "List names.", "query": "SELECT name\nFROM users"}
QUERY_TEXT = "Instruction: Count users.\nSQL Query:"
QUERY_SHOWN = f"Instruction: List names.SQL Query: SELECT nameFROM users\n{QUERY_TEXT}"
TABLED = QUERY | {"schema": "CREATE TABLE"}
SQL = {"spider": Item("spider", TABLED, QUERY["query"]), "spider2": Item("spider2_lite", TABLED, QUERY["query"])}
STORY = Item("tinystories", {"id": "t0", "text": "Tim ran.\n\nTim slept."}, *["Tim ran.\n\nTim slept."] * 2)
STORY_TEXT = "Write a tiny story: Tim ran.\n\nTim slept.\nWrite a tiny story:"
COLOR = Item("alpaca", {"id": "a0", "instruction": "Name a color.", "input": "", "output": "Red."}, "Red.")
DOG = Item("alpaca", {"id": "a1", "instruction": "Translate.", "input": "Hund", "output": "Dog."}, "Dog.")
HELLO_SHOT = {"id": "a9", "instruction": "Say hello.", "input": "politely", "output": "Good\nday."}
DOG_TEXT = "Instruction: Translate.\nHund\nAnswer:"
SHARP = "### Instruction: {} ### Input: {} ### Response: "
SUM = Item("gsm8k", {"id": "q0", "question": "Find $1+1$.", "answer": "It is 2.\n#### 2"}, "2")
SUM_SHOT = {"id": "q9", "question": "What is 2+2? ", "answer": "It is\n4.\n#### 4"}
BRIEF_TEXT = "Q: What is 2+2?\nA: It is\n4.\n#### 4\n\nQ: Find $1+1$.\nA:"
SUM_TEXT = "Question: Find $1+1$.\nAnswer:"
PROBLEM = {"id": "m0", "problem": "Find $1+1$.", "answer": "2", "subject": "Counting & Probability"}
PROBLEM_SHOT = {"id": "m9", "problem": "Find $2$.", "solution": "It is\n2.", "subject": "Counting & Probability"}
MATH = Item("math500", PROBLEM, "2", domain="counting_and_probability")
AIME = {year: Item(f"aime{year}", {"id": "p0", "problem": "Find $1+1$.", "answer": "002"}, "2") for year in (24, 25)}
AIME_TEXT = (
    "Solve the following math problem. Make sure to put the answer (and only the answer) inside \\boxed{}.\n\n"
    "Find $1+1$.\n <think> Let's think step by step. </think>\n"
)
FUNCTION = {
    "prompt": 'def add(a, b):\n    """ Add.\n        >>> add(1, 2)\n    """\n',
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    "entry_point": "add",
}
ADD = Item("humaneval", FUNCTION | {"id": "h0", "canonical_solution": "    return a + b\n"}, json.dumps(FUNCTION))
ADD_TEXT = 'def add(a, b):\n\t""" Add.\n\t\t>>> add(1, 2)\n\t"""\n'
TEXT = "One.\n\nTwo."
REPORT = Item("govreport", {"id": "g0", "report": TEXT, "summary": "It is late."}, "It is late.", TEXT)
BOOK = Item("pg19", {"id": "b0", "text": TEXT}, "", TEXT)
CHAPTER = Item("booksum", {"id": "k0", "chapter": TEXT, "summary_text": "It is late."}, "It is late.", TEXT)
SUMMARIZE = "Summarize the following text:\n\nOne.\n\nTwo.\n\nSummary:"
CHOICE = {"id": "c0", "question": "Which is red?\nChoose.", "options": ["A rose", "Grass (a plant)"], "answer": "A"}
COLORS = Item("mmlu_pro", CHOICE, "A")
CHOICE_TEXT = (
    "Question:\nWhich is red?\nChoose.\n\nOptions:\nA. A rose\nB. Grass (a plant)\n\n"
    "Answer the question by selecting the correct option. Think step by step and then provide your final answer in the "
    'format: "Answer: [OPTION]".'
)
QUESTION = {"id": "n0", "question": "who wrote it", "answer": ["Ann Lee", "Lee Ä."]}
AUTHOR = Item("natural_questions", QUESTION, '["Ann Lee", "Lee Ä."]')

PLAIN, CHAT, BOTH = ("plain",), ("chat",), ("plain", "chat")
# task, its settings, templates, item, demonstration, prompt
PROMPTS: list[tuple[str, dict[str, Any], tuple[str, ...], Item, Row | None, str]] = [
    ("cnn_dm", {}, PLAIN, NEWS, NEWS_SHOT, NEWS_SHOWN),
    ("cnn_dm", {"variant": "conflayers"}, PLAIN, NEWS, NEWS_SHOT, NEWS_SHOWN),
    ("cnn_dm", {"variant": "conflayers"}, CHAT, NEWS, None, NEWS_TEXT),
    ("xsum", {}, PLAIN, CLUB, None, CLUB_TEXT),
    ("xsum", {"variant": "self_ssd"}, PLAIN, CLUB, CLUB_SHOT, CLUB_SHOWN),
    ("xsum", {"variant": "self_ssd"}, CHAT, CLUB, None, CLUB_TEXT),
    ("tinystories", {}, BOTH, STORY, None, STORY_TEXT),
    ("wmt16", {"shots": 1}, PLAIN, RAIN, RAIN_SHOT, RAIN_SHOWN),
    ("wmt16", {}, CHAT, RAIN, None, RAIN_TEXT),
    ("wmt14", {}, BOTH, RAIN14, None, "Translate German to English:\nGerman: Es regnet.\nEnglish:"),
    ("aime24", {}, PLAIN, AIME[24], None, AIME_TEXT),
    ("aime25", {}, CHAT, AIME[25], None, AIME_TEXT),
    ("govreport", {}, BOTH, REPORT, None, SUMMARIZE),
    ("pg19", {}, BOTH, BOOK, None, SUMMARIZE),
    ("booksum", {}, BOTH, CHAPTER, None, SUMMARIZE),
    ("humaneval", {}, BOTH, ADD, None, ADD_TEXT),
    ("mmlu_pro", {}, BOTH, COLORS, None, CHOICE_TEXT),
    ("natural_questions", {}, BOTH, AUTHOR, None, "Question: who wrote it\nAnswer:"),
    ("gsm8k", {"shots": 1}, PLAIN, SUM, SUM_SHOT, f"Question: What is 2+2? \nAnswer: It is4.#### 4\n{SUM_TEXT}"),
    ("gsm8k", {}, CHAT, SUM, None, SUM_TEXT),
    ("gsm8k", {"variant": "conflayers", "shots": 1}, PLAIN, SUM, SUM_SHOT, BRIEF_TEXT),
    ("gsm8k", {"variant": "conflayers"}, CHAT, SUM, None, "Q: Find $1+1$.\nA:"),
    ("gsm8k", {"variant": "knapspec"}, BOTH, SUM, None, AIME_TEXT),
    ("math", {"shots": 1}, PLAIN, MATH, PROBLEM_SHOT, f"Question: Find $2$.\nAnswer: It is2.\n{SUM_TEXT}"),
    ("math", {}, CHAT, MATH, None, SUM_TEXT),
    ("math", {"variant": "knapspec"}, BOTH, MATH, None, AIME_TEXT),
    ("alpaca", {}, PLAIN, COLOR, None, "Instruction: Name a color.\n\nAnswer:"),
    ("alpaca", {}, CHAT, DOG, None, DOG_TEXT),
    ("alpaca", {"shots": 1}, PLAIN, DOG, HELLO_SHOT, f"Instruction: Say hello.\nAnswer: Goodday.\n{DOG_TEXT}"),
    ("alpaca", {"variant": "conflayers"}, PLAIN, COLOR, None, SHARP.format("Name a color.", "")),
    ("alpaca", {"variant": "conflayers"}, CHAT, DOG, None, SHARP.format("Translate.", "Hund")),
    *((name, {"shots": 0}, PLAIN, item, None, QUERY_TEXT) for name, item in SQL.items()),
    *((name, {"shots": 3}, CHAT, item, None, QUERY_TEXT) for name, item in SQL.items()),
    *((name, {"shots": 1}, PLAIN, item, QUERY_SHOT, QUERY_SHOWN) for name, item in SQL.items()),
]
CLIPPED = dict.fromkeys(("cnn_dm", "xsum", "tinystories"), (CONTEXT, 250))
CLIPPED |= dict.fromkeys(("govreport", "pg19", "booksum"), (16384, 250))
"""Task -> most tokens and those kept free; others clip nothing."""


def text(prompt: Prompt) -> str:
    return prompt.head + prompt.body + prompt.tail


@pytest.mark.parametrize(("name", "settings", "templates", "item", "shot", "expected"), PROMPTS)
def test_prompt_is_the_papers_byte_for_byte(
    name: str,
    settings: dict[str, Any],
    templates: tuple[str, ...],
    item: Item,
    shot: Row | None,
    expected: str,
    tmp_path: Path,
) -> None:
    task = make(name, **settings)
    files = {item.file: [item.row]} | ({f"{item.file}.fewshot": [shot]} if shot else {})
    source = local_source(tmp_path, files)
    for template in templates:
        (prompt,) = task.prompts(source, template, None, seed=0)
        assert text(prompt) == expected
        assert (prompt.id, prompt.reference, prompt.body) == (item.row["id"], item.reference, item.body)
        assert prompt.domain == (item.domain or name)
        assert (prompt.max_tokens, prompt.clip_reserve) == CLIPPED.get(name, (None, 0))
        assert [spec.name for spec in task.files(template)] == list(files)


def numbered(row: Row, count: int, *fields: str, prefix: str = "i") -> list[Row]:
    names = [f"{prefix}{n}" for n in range(count)]
    return [row | {"id": name} | {field: f"{row[field]} {name}" for field in fields} for name in names]


SHUFFLED = {"cnn_dm": NEWS, "xsum": CLUB, "tinystories": STORY, "wmt16": RAIN, "wmt14": RAIN14, "alpaca": COLOR}
SHUFFLED |= {"spider2": SQL["spider2"], "gsm8k": SUM, "math": MATH, "natural_questions": AUTHOR}


@pytest.mark.parametrize("name", SHUFFLED)
def test_order_is_the_seeded_shuffle_of_the_released_code(name: str, tmp_path: Path) -> None:
    rows = numbered(SHUFFLED[name].row, 20)
    task, source = make(name), local_source(tmp_path, {SHUFFLED[name].file: rows})
    for seed in (0, 2024):
        theirs = list(datasets.Dataset.from_list(rows).shuffle(seed=seed)["id"])
        for limit in (None, 3, 100):
            assert [prompt.id for prompt in task.prompts(source, "chat", limit, seed)] == theirs[:limit]


IN_ORDER = {"aime24": AIME[24], "humaneval": ADD, "mmlu_pro": COLORS, "govreport": REPORT, "gsm8k": SUM, "math": MATH}


@pytest.mark.parametrize("name", IN_ORDER)
def test_order_is_that_of_the_data(name: str, tmp_path: Path) -> None:
    item = IN_ORDER[name]
    source = local_source(tmp_path, {item.file: numbered(item.row, 5)})
    task = make(name, **({"variant": "knapspec"} if name in ("gsm8k", "math") else {}))
    for seed in (0, 1):
        assert [prompt.id for prompt in task.prompts(source, "plain", 4, seed)] == ["i0", "i1", "i2", "i3"]
    with pytest.raises(ConfigError, match=r"limit=0 .*>= 1"):
        task.prompts(source, "plain", 0, 0)


SHOWN = {"cnn_dm": ("article", 1), "wmt16": ("source_de", 5), "spider2": ("question", 3), "gsm8k": ("question", 5)}


@pytest.mark.parametrize("name", SHOWN)
def test_demonstrations_are_the_papers_number_and_no_items(name: str, tmp_path: Path) -> None:
    row, file, (field, shots) = SHUFFLED[name].row, SHUFFLED[name].file, SHOWN[name]
    items, pool = numbered(row, 3, field), numbered(row, 12, field, prefix="shot")
    source = local_source(tmp_path, {file: items, f"{file}.fewshot": [*items, *pool]})
    order = list(datasets.Dataset.from_list([*items, *pool]).shuffle(seed=7)["id"])
    shown = [identity for identity in order if identity.startswith("shot")][:shots]
    for prompt in make(name).prompts(source, "plain", None, 7):
        found = [prompt.head.find(f"{row[field]} {identity}") for identity in shown]
        assert -1 not in found and found == sorted(found)
        assert prompt.head.count(f"{row[field]} shot") == shots
    with pytest.raises(ConfigError, match=rf"task\.shots=13 .*at most 12, the demonstrations of {file}\.fewshot"):
        make(name, shots=13).prompts(source, "plain", None, 7)


def test_the_papers_limits_and_metrics() -> None:
    expected = {
        "rougeL": {"cnn_dm": 64, "xsum": 64, "tinystories": 128, "alpaca": 64, "govreport": 1024}
        | {"pg19": 1024, "booksum": 1024},
        "chrF": {"wmt16": 64, "wmt14": 512},
        "accuracy": {"mmlu_pro": 4096},
        "pass@1": {"humaneval": 512},
        "exact_match": {"spider": 64, "spider2": 64, "gsm8k": 64, "math": 64, "natural_questions": 512}
        | {"aime24": 32768, "aime25": 32768},
    }
    for metric, limits in expected.items():
        assert {name: make(name).max_new_tokens for name in limits} == limits
        assert {make(name).metric for name in limits} == {metric}


@pytest.mark.parametrize(
    ("name", "item", "changes", "message"),
    [
        ("aime24", AIME[24], {"answer": "1000"}, r"aime24 p0 answer='1000' .*integer from 0 to 999"),
        ("aime25", AIME[25], {"answer": "336^\\circ"}, r"aime25 p0 answer=.*integer from 0 to 999"),
        ("humaneval", ADD, {"entry_point": "sub"}, r"humaneval h0 entry_point='sub' .*that the prompt defines"),
        ("humaneval", ADD, {"entry_point": "add("}, r"humaneval h0 entry_point='add\(' .*that the prompt defines"),
        ("humaneval", ADD, {"test": "assert add(1, 2) == 3"}, r"humaneval h0 test=.*the function check"),
        ("gsm8k", SUM, {"answer": "42"}, r"gsm8k q0 answer='42' .*#### and a number"),
        ("gsm8k", SUM, {"answer": "#### many"}, r"gsm8k q0 answer=.*#### and a number"),
        ("mmlu_pro", COLORS, {"answer": "C"}, r"mmlu_pro c0 answer='C' .*one of A, B"),
        ("mmlu_pro", COLORS, {"answer": "AB"}, r"mmlu_pro c0 answer='AB' .*one of A, B"),
        ("mmlu_pro", COLORS, {"options": ["x"] * 11}, r"mmlu_pro c0 options=11 .*at most 10"),
        ("mmlu_pro", COLORS, {"options": "A rose"}, r"options='A rose' .*list"),
        ("natural_questions", AUTHOR, {"answer": "Ann"}, r"answer='Ann' .*list"),
        ("math", MATH, {"subject": "Topology"}, r"math m0 subject='Topology' .*one of algebra, "),
        ("math", MATH, {"answer": ""}, r"answer='' .*non-empty string"),
    ],
)
def test_rows_of_no_use_are_refused(name: str, item: Item, changes: Row, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        make(name).prompts(local_source(tmp_path, {item.file: [item.row | changes]}), "chat", None, 0)


UNPINNED = ("spider", "humaneval", "mbpp", "speed_bench")


def test_every_task_has_its_name_and_its_hub_data_are_pinned_and_counted() -> None:
    """Except for copies that no public code pins, and those absent from the hub."""
    for path in sorted((ROOT / "conf" / "task").glob("*.yaml")):
        task = make(path.stem)
        assert task.name == path.stem
        for spec in task.files("plain") if not isinstance(task, Stream) else ():
            if not spec.hub:
                assert spec.name in ("spider2_lite.fewshot", "spec_bench", "jsonl")
                continue
            assert re.fullmatch("[0-9a-f]{40}", spec.hub["revision"]) or spec.name.startswith(UNPINNED)
            assert spec.hub.get("rows", 164) >= 30 or spec.name == "mbpp.fewshot"
