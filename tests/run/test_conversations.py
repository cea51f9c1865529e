"""Items of several turns: lossless by turn, AR's answers in the prompts, one unit to resume, shard and count."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hydra.utils import instantiate

from ssd_bench.contract.task import Prompt, Turn
from ssd_bench.data.local import LocalSource
from ssd_bench.engine.engine import Engine
from ssd_bench.errors import ConfigError
from ssd_bench.model.checkpoint import Checkpoint
from ssd_bench.model.template import Template
from ssd_bench.records.reader import Run, load_run
from ssd_bench.records.writer import RunWriter
from ssd_bench.results.digest import summarise
from ssd_bench.results.prompt_table import PromptTable
from ssd_bench.results.quantity import QUANTITIES
from ssd_bench.results.rows import UNIT, arm_rows
from ssd_bench.run.shards import execute_shard
from tests.runs import composed, equal, executed, local_model, planned

ROWS = [
    {"id": 1, "category": "writing", "turns": ["the report of the ferry", "shorter", "and once more"]},
    {"id": 2, "category": "maths", "turns": ["one and one"]},
    {"id": 3, "category": "writing", "turns": ["a café", "and its text"]},
]
TURNS = [3, 1, 2]
FIXED = ("method=fixed_layers", "method.ratio=0.25")  # whose drafts are wrong at times


@pytest.fixture(scope="module")
def options(small_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A run on conversations of one to three turns."""
    folder = tmp_path_factory.mktemp("data")
    text = "".join(json.dumps(row) + "\n" for row in ROWS)
    (folder / "spec_bench.jsonl").write_text(text, encoding="utf-8")
    data = ("task=spec_bench", "data=local", f"data.root={folder}", "decode.max_new_tokens=24")
    return [*local_model(small_checkpoint), *data]


@pytest.fixture(scope="module")
def run(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Run:
    return executed(tmp_path_factory.mktemp("run"), *options, *FIXED)


def prompts_of(task: str, folder: Path) -> Sequence[Prompt]:
    """A task's prompts from a file in the folder."""
    found: Sequence[Prompt] = instantiate(composed(f"task={task}").task).prompts(LocalSource(folder), "chat", None, 0)
    return found


def test_the_files_of_their_authors_are_read_as_they_are(tmp_path: Path) -> None:
    """FastChat's and Spec-Bench's, whose ids have another name, and a row of the hub's MT-Bench."""
    files = {
        "spec_bench": {"question_id": 1, "category": "rag", "turns": ["a café"]},
        "mt_bench": {"question_id": 81, "category": "writing", "turns": ["a café", "shorter"], "reference": []},
        "speed_bench": {"question_id": "0f", "category": "rag", "turns": ["a café"], "difficulty": None},
    }
    for name, row in files.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_text(json.dumps(row) + "\n", encoding="utf-8")
        (made,) = prompts_of(name, tmp_path)
        assert (made.id, made.domain, list(made.user_texts)) == (str(row["question_id"]), row["category"], row["turns"])
    path = tmp_path / "mt_bench.jsonl"
    path.write_text(json.dumps({"id": 1, "category": "writing", "prompt": ["one", "two"]}), encoding="utf-8")
    assert [list(made.user_texts) for made in prompts_of("mt_bench", tmp_path)] == [["one", "two"]]


def sha256(ids: Sequence[int]) -> str:
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()


def asked(row: dict[str, object], turn: int, form: str) -> list[str]:
    """The user's messages by then, in the task's form."""
    said = [str(text) for text in row["turns"]][: turn + 1]  # type: ignore[attr-defined]
    if form == "chat":
        return said
    return ["\n\n" * (i > 0) + f"Question: {text}\nAnswer:" for i, text in enumerate(said)]


@pytest.mark.parametrize("form", ["chat", "plain"])
def test_each_turn_reads_the_answers_of_ar(
    form: str, options: list[str], run: Run, small_checkpoint: Path, tmp_path: Path
) -> None:
    run = run if form == "chat" else executed(tmp_path, *options, *FIXED, f"model.template={form}")
    tokenizer = Checkpoint(small_checkpoint).tokenizer
    assert len(run.prompts) == 2 * sum(TURNS)
    domains = run.prompts.drop_duplicates(["prompt_index", "turn"])["domain"]
    assert list(domains) == ["writing"] * 3 + ["maths"] + ["writing"] * 2
    for (index, turn), rows in run.prompts.groupby(["prompt_index", "turn"]):
        before = arm_rows(run.prompts[run.prompts["prompt_index"] == index], "ar").sort_values("turn")
        answers = list(before["text"])[:turn]
        ids = Template(form).ids(tokenizer, asked(ROWS[index], turn, form), answers)
        assert set(rows["prompt_sha256"]) == {sha256(ids)}
        assert set(rows["arm"]) == {"ar", "method"} and set(rows["prompt_len"]) == {len(ids)}
    method = arm_rows(run.prompts, "method")
    assert (method["lossless"] == "identical").all() and method["score"].isna().all()
    assert (arm_rows(run.steps, "method")["accepted_len"] > 0).any()
    emitted = run.steps.groupby([*UNIT, "arm"])["emitted"].sum()
    told = run.prompts.set_index([*UNIT, "arm"])["new_tokens"] - 1
    assert (emitted.reindex(told.index, fill_value=0) == told).all()


@pytest.mark.parametrize(("baseline", "answering"), [("paired", "ar"), ("none", "method")])
def test_answers_that_differ_are_those_of_ar_where_there_is_one(
    baseline: str, answering: str, options: list[str], small_checkpoint: Path, tmp_path: Path
) -> None:
    drawn = ("decode=sample", "decode.temperature=1.5", f"baseline={baseline}")
    run = executed(tmp_path / "runs", *options, *FIXED, *drawn)
    texts = run.prompts.set_index(["prompt_index", "turn", "arm"])["text"]
    if baseline == "paired":
        assert (texts.xs("ar", level="arm") != texts.xs("method", level="arm")).any()
    else:
        assert set(run.prompts["arm"]) == {"method"} and run.prompts["lossless"].isna().all()
    tokenizer = Checkpoint(small_checkpoint).tokenizer
    for (index, turn), rows in run.prompts[run.prompts["turn"] > 0].groupby(["prompt_index", "turn"]):
        answers = [texts[index, before, answering] for before in range(turn)]
        ids = Template("chat").ids(tokenizer, asked(ROWS[index], turn, "chat"), answers)
        assert set(rows["prompt_sha256"]) == {sha256(ids)}


@pytest.mark.parametrize(("new", "turns"), [(20, 3), (100, 2)])
def test_a_turn_that_does_not_fit_after_its_answers_is_not_asked(
    new: int, turns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens of answers that are no text are read again as three; the run goes on with the next conversation."""
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": ["the report", "shorter", "and again"]}\n{"prompt": "one"}\n', encoding="utf-8")
    line = ("task=jsonl", f"task.path={file}", f"decode.max_new_tokens={new}", *FIXED, "model=miniature")
    tokenizer = planned(tmp_path, *line).model.checkpoint.tokenizer
    byte = next(i for i in range(2048) if tokenizer.decode([i] * 9) == "\ufffd" * 9)
    monkeypatch.setattr(Engine, "accept", lambda *_: ([0], byte))
    run = executed(tmp_path / "runs", *line)
    made = arm_rows(run.prompts, "method")
    assert list(zip(made["prompt_index"], made["turn"])) == [*((0, turn) for turn in range(turns)), (1, 0)]
    assert set(made["lossless"]) == {"identical"}
    assert summarise(run).n_prompts == 2
    warned = [text.partition(": ")[0] for text in run.header.warnings if "turns" in text]
    assert warned == [f"{3 - turns} of 4 turns were left out"] * (turns < 3)


def test_a_unit_is_a_conversation(options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the first, the run goes on with the second; shards have whole ones."""
    whole = executed(tmp_path / "whole", *options, *FIXED, "repeats=2")
    add: Callable[..., None] = RunWriter.add

    def killed(self: RunWriter, index: int, *rest: object) -> None:
        if index == 1:
            raise KeyboardInterrupt
        add(self, index, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(RunWriter, "add", killed)
        with pytest.raises(KeyboardInterrupt):
            executed(tmp_path / "resumed", *options, *FIXED, "repeats=2")
    resumed = executed(tmp_path / "resumed", *options, *FIXED, "repeats=2")
    assert len(resumed.header.resumed) == 1
    equal(resumed, whole)
    made = [execute_shard(planned(tmp_path / "shared", *options, *FIXED, "repeats=2", f"shard={n}/2")) for n in (2, 1)]
    assert made[0] is None and made[1] is not None
    equal(load_run(made[1]), whole)


def test_intervals_are_over_conversations(run: Run) -> None:
    summary = summarise(run).row
    assert summary["n_prompts"] == 3 and summary["lossless_identical"] == sum(TURNS)
    times = PromptTable(run.prompts).frame(QUANTITIES["method_tokens_per_s"])
    tokens = arm_rows(run.prompts, "method").groupby("prompt_index")["new_tokens"].sum()
    assert np.array_equal(times["tokens"], tokens - np.array(TURNS))


def test_a_conversation_has_room_for_all_of_its_answers(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ssd_bench.run.run.load_model", lambda plan: pytest.fail("the engine was loaded"))
    with pytest.raises(ConfigError, match=r"decode\.max_new_tokens=1500.*at most (\d+), so that the 3 turns of 1 fit"):
        executed(tmp_path, *options, "decode.max_new_tokens=1500")
    assert planned(tmp_path, *options, "decode.max_new_tokens=1250").prompts.context <= 4096
    row = {"id": 9, "category": "writing", "turns": ["the ferry"] * 80}
    (tmp_path / "spec_bench.jsonl").write_text(json.dumps(row), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"prompt='9' .*a conversation whose 80 turns and their answers fit"):
        planned(tmp_path, *options, f"data.root={tmp_path}")


def test_a_conversation_is_never_clipped() -> None:
    with pytest.raises(ValueError, match="never truncated"):
        Prompt("x", "", "text", "", "", "d", max_tokens=10, turns=(Turn("more"),))


def test_the_reference_of_a_turn_is_its_own() -> None:
    prompt = Prompt("x", "a", "b", "c", "first", "d", turns=(Turn("more", "second"),))
    assert [prompt.at(turn).reference for turn in (0, 1)] == ["first", "second"]
    assert prompt.user_texts == ["abc", "more"]
