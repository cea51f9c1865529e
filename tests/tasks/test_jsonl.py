"""`task=jsonl`: anybody's prompts, with no code."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ssd_bench.errors import ConfigError
from tasks.jsonl import Jsonl
from tests.runs import executed, local_model, planned
from tests.sources import local_source, write_rows

ROWS = [
    {"prompt": "the ferry"},
    {"prompt": ["the report", "and now?"], "category": "reports", "reference": "a report of 12", "id": "b"},
    {"prompt": ["the café"], "category": "", "reference": None, "more": 1},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "mine.jsonl", *ROWS)


def made(path: Path | None, score_by: str = "none") -> Jsonl:
    return Jsonl(None if path is None else str(path), score_by, 32, {})  # type: ignore[arg-type]


def test_a_line_is_a_prompt_as_it_is(file: Path) -> None:
    task = made(file)
    assert task.source is not None
    prompts = task.prompts(task.source, "plain", None, 7)
    assert [prompt.user_texts for prompt in prompts] == [["the ferry"], ["the report", "and now?"], ["the café"]]
    assert [(prompt.id, prompt.domain) for prompt in prompts] == [("1", "jsonl"), ("b", "reports"), ("3", "jsonl")]
    assert [spec.name for spec in task.files("plain")] == ["mine"]
    (first,) = task.prompts(task.source, "chat", 1, 0)
    assert first.turns == ()


SCORED = [("none", "a report of 12", None), ("number", "13", 0.0), ("rouge", "a report of 12", 1.0)]


@pytest.mark.parametrize(("score_by", "answer", "expected"), SCORED)
def test_an_answer_is_scored_as_asked(score_by: str, answer: str, expected: float | None, file: Path) -> None:
    task = made(file, score_by)
    assert task.source is not None
    first, second, _ = task.prompts(task.source, "chat", None, 0)
    assert task.score(second, answer) == expected and task.score(first, answer) is None
    assert task.score(second.at(1), answer) is None, "the reference is of the first answer"


def test_without_a_path_it_reads_what_the_run_reads(tmp_path: Path) -> None:
    task, source = made(None), local_source(tmp_path, {"jsonl": [{"prompt": "x"}]})
    assert task.source is None
    assert [prompt.user_texts for prompt in task.prompts(source, "chat", None, 0)] == [["x"]]


@pytest.mark.parametrize(
    ("path", "message"),
    [("nowhere.jsonl", r"task\.path='nowhere\.jsonl'.*an existing file"), ("prompts.txt", r"a file NAME\.jsonl")],
)
def test_a_file_that_is_not_there_is_refused(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(Path(path))


@pytest.mark.parametrize("row", [{}, {"prompt": []}, {"prompt": ["a", ""]}, {"prompt": "x", "category": 1}])
def test_a_faulty_line_is_named(row: dict[str, object], tmp_path: Path) -> None:
    task = made(write_rows(tmp_path / "mine.jsonl", {"prompt": "x"}, row))
    assert task.source is not None
    with pytest.raises(ConfigError, match=r"mine\.jsonl:2"):
        task.prompts(task.source, "chat", None, 0)


def test_a_run_knows_its_file(small_checkpoint: Path, file: Path, tmp_path: Path) -> None:
    options = (*local_model(small_checkpoint), "task=jsonl", f"task.path={file}", "decode.max_new_tokens=8")
    run = executed(tmp_path / "runs", *options, "method=ar")
    assert run.header.data == {"mine": f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"}
    assert len(run.prompts) == 8 and set(run.prompts["domain"]) == {"jsonl", "reports"}
    before = planned(tmp_path, *options).identity.content_key
    file.write_text(file.read_text(encoding="utf-8").replace("ferry", "boat"), encoding="utf-8")
    assert planned(tmp_path, *options).identity.content_key != before
    with pytest.raises(ConfigError, match=r"data=.*sample, the default: task=jsonl reads a file of its own"):
        planned(tmp_path, *options, "data=local", f"data.root={tmp_path}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["task=jsonl"], r"task\.path is missing.*a file NAME\.jsonl .*or data=local data\.root=DIR"),
        (["task=gsm8k", "task@calibrate=jsonl", "method=oracle"], r"calibrate\.path is missing.*a file NAME\.jsonl"),
        (["task=stream", "+task@task.parts.own=jsonl"], r"task\.parts\.own\.path is missing.*a file NAME\.jsonl"),
        (["task=stream", "+task@task.parts.own=jsonl", "task.parts.own.path=FILE"], r"task\.parts\.own\.path=.*null: "),
        (["task=stream", "+task@task.parts.own=jsonl", "task.parts.own.path=no.jsonl"], r"task\.parts\.own\.path='no"),
    ],
)
def test_samples_do_not_take_the_place_of_a_file_of_ones_own(options: list[str], message: str, file: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        planned(file.parent, *(option.replace("FILE", str(file)) for option in options))
