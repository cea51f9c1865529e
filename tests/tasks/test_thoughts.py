"""Text before the end of a model's thoughts is no answer, for any scorer and task."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ssd_bench.contract.task import Prompt, Turn
from ssd_bench.data.prompting import scored_text
from ssd_bench.model.template import PLAIN, Template
from tasks.scoring.rouge import Rouge
from tasks.scoring.thoughts import without_thoughts
from tests.conftest import CHAT, make_tokenizer
from tests.runs import executed, local_model
from tests.tasks.test_tasks import make, score


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 5.", "The answer is 5."),
        ("", ""),
        ("<think>\n3 or 4\n</think>\n\nIt is 5.", "\n\nIt is 5."),
        ("\n<think>3</think>5", "5"),
        ("3 or 4\n</think>\n\nIt is 5.", "\n\nIt is 5."),  # the template has opened it in the prompt
        ("<think>\n\n</think>\n\n5", "\n\n5"),  # thinking switched off
        ("<think>\n3 or 4", ""),  # truncated
        ("Let me see, 7.\n<think>\n3 or 4", ""),
        ("<think>3</think>", ""),
        ("<think>1</think>It is 5.\n<think>2</think>It is 6.", "It is 6."),
        ("<think>1</think>It is 5.\n<think>2", "It is 5.\n"),
        ("1</think>It is 5.</think>", "It is 5."),  # a closing tag twice
        ("<think>1\n<think>2</think>It is 5.", "It is 5."),
        ("<THINK>1</Think>5", "5"),
        ("<thinking>1</thinking>\n<output>5</output>", "\n<output>5</output>"),
        ("<Thought>1</Thought>5", "5"),
        ("<|begin_of_thought|>1<|end_of_thought|>5", "5"),
        ("<think>\n```python\nx = 3\n</think>\n5", "\n5"),  # a fence that the thoughts leave open
        ("So that's it</think>It's 5.", "It's 5."),
        ('<think>I say "yes".</think>The answer is "yes".', 'The answer is "yes".'),
    ],
)
def test_the_answer_after_the_thoughts(text: str, answer: str) -> None:
    assert without_thoughts(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        "The tag `</think>` ends the thoughts of a model; `<think>` begins them.",
        'def answer(text):\n    return text.split("</think>")[-1]\n',
        '    return re.sub(r"<think>.*?</think>", "", text)\n',
        "Write <think> first.",
        "1 < think > 2",
    ],
)
def test_an_answer_may_be_about_the_tags(text: str) -> None:
    assert without_thoughts(text) == text


PROGRAM = {"prompt": "def one():\n", "entry_point": "one", "test": "def check(f):\n    assert f() == 1\n"}
# task -> reference, right and wrong answer; scored_answers.jsonl has thoughts ahead of answers of other tasks
ANSWERS = {
    "natural_questions": (json.dumps(["Paris"]), "Paris", "London"),
    "humaneval": (json.dumps(PROGRAM), "    return 1\n", "    return 2\n"),
    "wmt14": ("The dog sleeps.", "The dog sleeps.", "no"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_task_scores_what_follows_the_thoughts(name: str) -> None:
    options = {"sandbox": "best_effort"} if name == "humaneval" else {}
    task, (reference, right, wrong) = make(name, **options), ANSWERS[name]
    assert score(task, reference, f"<think>\n{wrong}\n</think>{right}") == 1.0
    assert score(task, reference, f"{right}\n</think>{wrong}") == score(task, reference, wrong) < 1.0
    assert score(task, reference, f"<think>\n{right}") == score(task, reference, "") == 0.0


def test_scores_of_many_answers_are_of_what_follows_the_thoughts() -> None:
    task = make("natural_questions")
    prompt = Prompt("p", "", "", "", json.dumps(["Paris"]), task.name)
    texts = ["<think>London</think>It is Paris.", "<think>Paris</think>London", "<think>Paris"]
    assert task.scores([prompt] * 3, texts)["contains"] == pytest.approx(1 / 3)


OPENED = [("chat", "<think>\n", True), ("chat", "<think>", True), ("plain", "<think>\n", False)]
OPENED += [("chat", "<think>\n\n</think>\n\n", False), ("chat", "", False)]


@pytest.mark.parametrize(("form", "opening", "opened"), OPENED)
def test_a_template_that_opens_the_thoughts_leaves_no_answer(form: str, opening: str, opened: bool) -> None:
    tokenizer = make_tokenizer(CHAT + opening.replace("\n", "{{ '\\n' }}"))
    template = Template("chat") if form == "chat" else PLAIN
    prompt = Prompt("p", "How many?", "", "", "5", "d", turns=(Turn("And now?"),))
    for turn in (0, 1):
        text = scored_text(prompt, turn, "Perhaps 5", tokenizer, template)
        assert without_thoughts(text) == ("" if opened else "Perhaps 5")
        assert without_thoughts(f"{text}</think>6") == "6"
    asked = Prompt("p", "How many? <think>", "", "", "5", "d")
    assert without_thoughts(scored_text(asked, 0, "Perhaps 5", tokenizer, PLAIN)) == ""


def test_a_run_does_not_score_thoughts_that_its_template_opens(
    small_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rouge, "item", lambda self, prediction, reference: float(bool(prediction)))
    monkeypatch.setattr(Rouge, "corpus", lambda self, predictions, references: {"answered": float(any(predictions))})
    folder = tmp_path / "model"
    shutil.copytree(small_checkpoint, folder)
    for opening, answered in (("<think>", 0.0), ("", 1.0)):
        (folder / "chat_template.jinja").write_text(CHAT + opening, encoding="utf-8")
        options = ("task=alpaca", "limit=1", "method=ar", "decode.max_new_tokens=4")
        run = executed(tmp_path / f"runs{answered}", *local_model(folder), *options)
        assert set(run.prompts["score"]) == {answered} == set(run.header.scores["ar"].values())
