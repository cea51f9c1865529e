"""Variants of tasks: each paper's prompt byte for byte, its numbers, the default, refusals."""

from __future__ import annotations

from pathlib import Path

import datasets
import pytest
from hydra.utils import instantiate

from ssd_bench.contract.task import Task
from ssd_bench.errors import ConfigError
from tasks.rows import RowTask
from tests.runs import composed
from tests.tasks.test_task_prompts import (
    AIME_TEXT,
    ARTICLE,
    DOCUMENT,
    INSTRUCTION,
    NEWS_SHOT,
    Rows,
    folder,
    numbered,
    text,
)
from tests.tasks.test_tasks import make

SUM = {"id": "q0", "question": "Find $1+1$.", "answer": "It is 2.\n#### 2"}
SUM_SHOT = {"id": "q9", "question": "What is 2+2? ", "answer": "It is\n4.\n#### 4"}
DOCUMENT_SHOT = {"id": "x9", "document": "A ship sank.", "summary": "Ship\nsinks."}
WITH_INPUT = {"id": "a1", "instruction": "Translate.", "input": "Hund", "output": "Dog."}
TASK_SHOT = {"id": "a9", "instruction": "Say hello.", "input": "politely", "output": "Good\nday."}
PROBLEM = {"id": "m0", "problem": "Find $1+1$.", "answer": "2", "subject": "Counting & Probability"}
PROBLEM_SHOT = {"id": "m9", "problem": "Find $2$.", "solution": "It is\n2.", "subject": "Counting & Probability"}

# What YAML and `variant=` can name, with the numbers of each: shots, new tokens.
NUMBERS = {
    "gsm8k": {"knn_ssd": (5, 64), "conflayers": (5, 512), "knapspec": (0, 32768)},
    "math": {"knn_ssd": (5, 64), "knapspec": (0, 32768)},
    "cnn_dm": {"knn_ssd": (1, 64), "conflayers": (1, 512)},
    "xsum": {"knn_ssd": (0, 64), "self_ssd": (1, 512)},
    "alpaca": {"knn_ssd": (0, 64), "conflayers": (0, 512)},
}
EACH = [(task, variant) for task, variants in NUMBERS.items() for variant in variants]


NEWS = "Article: A fair\nopened.\nSummary: Fair opens .Crowds come .\nArticle: Rain fell.\nRoads shut.\nSummary:"
SUMS = {"gsm8k": [SUM], "gsm8k.fewshot": [SUM_SHOT]}
MATHS = {"math500": [PROBLEM], "math500.fewshot": [PROBLEM_SHOT]}
CHAT_SUM, CHAT_PROBLEM = {"gsm8k": [SUM]}, {"math500": [PROBLEM]}


@pytest.mark.parametrize(
    ("task", "template", "files", "expected"),
    [
        (
            make("gsm8k", shots=1),
            "plain",
            SUMS,
            "Question: What is 2+2? \nAnswer: It is4.#### 4\nQuestion: Find $1+1$.\nAnswer:",
        ),
        (
            make("gsm8k", variant="conflayers", shots=1),
            "plain",
            SUMS,
            "Q: What is 2+2?\nA: It is\n4.\n#### 4\n\nQ: Find $1+1$.\nA:",
        ),
        (make("gsm8k"), "chat", CHAT_SUM, "Question: Find $1+1$.\nAnswer:"),
        (make("gsm8k", variant="conflayers"), "chat", CHAT_SUM, "Q: Find $1+1$.\nA:"),
        (make("gsm8k", variant="knapspec"), "plain", CHAT_SUM, AIME_TEXT),
        (make("gsm8k", variant="knapspec"), "chat", CHAT_SUM, AIME_TEXT),
        (
            make("math", shots=1),
            "plain",
            MATHS,
            "Question: Find $2$.\nAnswer: It is2.\nQuestion: Find $1+1$.\nAnswer:",
        ),
        (make("math"), "chat", CHAT_PROBLEM, "Question: Find $1+1$.\nAnswer:"),
        (make("math", variant="knapspec"), "plain", CHAT_PROBLEM, AIME_TEXT),
        (make("math", variant="knapspec"), "chat", CHAT_PROBLEM, AIME_TEXT),
        (make("cnn_dm"), "plain", {"cnndm": [ARTICLE], "cnndm.fewshot": [NEWS_SHOT]}, NEWS),
        (make("cnn_dm", variant="conflayers"), "plain", {"cnndm": [ARTICLE], "cnndm.fewshot": [NEWS_SHOT]}, NEWS),
        (
            make("cnn_dm", variant="conflayers"),
            "chat",
            {"cnndm": [ARTICLE]},
            "Article: Rain fell.\nRoads shut.\nSummary:",
        ),
        (make("xsum"), "plain", {"xsum": [DOCUMENT]}, "Article: A club won.\nSummary:"),
        (
            make("xsum", variant="self_ssd"),
            "plain",
            {"xsum": [DOCUMENT], "xsum.fewshot": [DOCUMENT_SHOT]},
            "Article: A ship sank.\nSummary: Shipsinks.\nArticle: A club won.\nSummary:",
        ),
        (make("xsum", variant="self_ssd"), "chat", {"xsum": [DOCUMENT]}, "Article: A club won.\nSummary:"),
        (make("alpaca"), "plain", {"alpaca": [INSTRUCTION]}, "Instruction: Name a color.\n\nAnswer:"),
        (make("alpaca"), "chat", {"alpaca": [WITH_INPUT]}, "Instruction: Translate.\nHund\nAnswer:"),
        (
            make("alpaca", shots=1),
            "plain",
            {"alpaca": [WITH_INPUT], "alpaca.fewshot": [TASK_SHOT]},
            "Instruction: Say hello.\nAnswer: Goodday.\nInstruction: Translate.\nHund\nAnswer:",
        ),
        (
            make("alpaca", variant="conflayers"),
            "plain",
            {"alpaca": [INSTRUCTION]},
            "### Instruction: Name a color. ### Input:  ### Response: ",
        ),
        (
            make("alpaca", variant="conflayers"),
            "chat",
            {"alpaca": [WITH_INPUT]},
            "### Instruction: Translate. ### Input: Hund ### Response: ",
        ),
    ],
)
def test_prompt_of_a_variant_is_its_papers_byte_for_byte(
    task: Task, template: str, files: dict[str, Rows], expected: str, tmp_path: Path
) -> None:
    (prompt,) = task.prompts(folder(tmp_path, files), template, None, seed=0)
    assert text(prompt) == expected
    assert [spec.name for spec in task.files(template)] == list(files)


@pytest.mark.parametrize(("name", "variant"), EACH)
def test_a_variant_has_its_papers_numbers(name: str, variant: str) -> None:
    shots, tokens = NUMBERS[name][variant]
    task = make(name, variant=variant)
    assert isinstance(task, RowTask)
    assert (task._shots.count if task._shots else 0, task.max_new_tokens) == (shots, tokens)
    assert len(task.files("plain")) == (2 if shots else 1)


@pytest.mark.parametrize("name", NUMBERS)
def test_the_default_is_the_first_variant(name: str) -> None:
    task, chosen = make(name), make(name, variant=next(iter(NUMBERS[name])))
    assert make(name, variant=None).files("plain") == task.files("plain") == chosen.files("plain")
    assert task.max_new_tokens == chosen.max_new_tokens


@pytest.mark.parametrize(("name", "variant"), EACH)
def test_variant_without_a_prefix_reaches_the_task(name: str, variant: str) -> None:
    task = composed(f"task={name}", f"variant={variant}").task
    assert task.variant == instantiate(task).variant == variant


def test_one_number_for_all_variants() -> None:
    assert make("gsm8k", variant="conflayers", shots=2, max_new_tokens=7).max_new_tokens == 7
    assert len(make("gsm8k", variant="conflayers", shots=0).files("plain")) == 1
    assert len(make("xsum", shots=5).files("plain")) == 2


@pytest.mark.parametrize("name", ["gsm8k", "math"])
def test_knapspec_keeps_the_order_of_the_data(name: str, tmp_path: Path) -> None:
    file, row = ("gsm8k", SUM) if name == "gsm8k" else ("math500", PROBLEM)
    source = folder(tmp_path, {file: numbered(row, 9)})
    for seed in (0, 1):
        in_order = make(name, variant="knapspec").prompts(source, "plain", 4, seed)
        assert [prompt.id for prompt in in_order] == ["i0", "i1", "i2", "i3"]
    shuffled = [prompt.id for prompt in make(name).prompts(source, "chat", None, 0)]
    assert shuffled == list(datasets.Dataset.from_list(numbered(row, 9)).shuffle(seed=0)["id"])


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("gsm8k", {"variant": "swift"}, r"task\.variant='swift' .*knn_ssd, conflayers, knapspec"),
        ("cnn_dm", {"variant": "self_ssd"}, r"task\.variant='self_ssd' .*knn_ssd, conflayers"),
        ("xsum", {"variant": "conflayers"}, r"task\.variant='conflayers' .*knn_ssd, self_ssd"),
        ("alpaca", {"variant": "swift"}, r"task\.variant='swift' .*knn_ssd, conflayers"),
        ("math", {"variant": "conflayers"}, r"task\.variant='conflayers' .*knn_ssd, knapspec"),
        ("alpaca", {"variant": "conflayers", "shots": 2}, r"task\.shots=2 .*0 for the variant conflayers"),
        ("gsm8k", {"variant": "knapspec", "shots": 2}, r"task\.shots=2 .*0 for the variant knapspec"),
        ("math", {"variant": "knapspec", "shots": 2}, r"task\.shots=2 .*0 for the variant knapspec"),
        ("cnn_dm", {"shots": -1}, r"task\.shots=-1 .*>= 0"),
        ("cnn_dm", {"clip_reserve": -1}, r"task\.clip_reserve=-1 .*>= 0"),
        ("cnn_dm", {"max_new_tokens": {"knn_ssd": 0}}, r"task\.max_new_tokens=0 .*>= 1"),
        ("gsm8k", {"shots": -1}, r"task\.shots=-1 .*>= 0"),
        ("gsm8k", {"max_new_tokens": {"knn_ssd": 0}}, r"task\.max_new_tokens=0 .*>= 1"),
        ("xsum", {"max_new_tokens": 0}, r"task\.max_new_tokens=0 .*>= 1"),
        ("math", {"shots": {"knn_ssd": -1}}, r"task\.shots=-1 .*>= 0"),
        ("math", {"max_new_tokens": 0}, r"task\.max_new_tokens=0 .*>= 1"),
        ("xsum", {"shots": "five"}, r"task\.shots='five' .*an integer"),
    ],
)
def test_variants_and_numbers_that_cannot_work_are_refused(name: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:  # Hydra wraps what a target raises
        make(name, **changes)
    assert isinstance(caught.value.__cause__, ConfigError)
