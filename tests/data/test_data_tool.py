"""`python -m ssd_bench data`: the tasks' data, fetched from repositories on disk, and a folder of files checked."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import huggingface_hub
import pytest

from ssd_bench.commands.data import main
from ssd_bench.compose.build import task_named, task_names
from ssd_bench.contract.task import DataSpec
from ssd_bench.data import SampleSource, fetching, listing
from ssd_bench.errors import ConfigError
from tests.sources import write_rows

Capture = pytest.CaptureFixture[str]
Hub = dict[str, dict[str, Any]]
SAMPLE = SampleSource().root


def good(number: int) -> dict[str, object]:
    return {"id": number, "question": f"q{number}?", "answer": f"#### {number}"}


def outcome(capsys: Capture, *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    assert printed.err.count("error:") == (1 if code else 0)
    return code, printed.out, printed.err


@pytest.mark.parametrize("words", ["", "nothing", "list gsm8k", "fetch", "check", "fetch nothing", "check /nowhere"])
def test_arguments_that_cannot_work(words: str, capsys: Capture) -> None:
    code, _, error = outcome(capsys, *words.split())
    assert code == 2 and "is invalid" in error
    code, shown, error = outcome(capsys, *words.split(), "--help")
    assert code == 0 and "list | fetch TASK… | check DIR [TASK…]" in shown and not error


def test_the_list_has_every_task_and_file(capsys: Capture) -> None:
    code, shown, _ = outcome(capsys, "list")
    assert code == 0
    for name in task_names():
        assert any(line.startswith(f"{name} ") for line in shown.splitlines())
        for spec in task_named(name).files("plain"):
            assert f"{spec.name}.jsonl" in shown
    assert "(input), (output)" in shown and "openai/gsm8k main test @" in shown


def test_the_list_goes_on_after_a_task_that_cannot_be_made(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> object:
        raise ConfigError("task.shots", -1, "at least 0")

    names = {"bad": broken, "good": lambda _: stub(DataSpec("toy", ("a", "b"), {}, lists=("b",)))}
    monkeypatch.setattr(listing, "task_names", lambda: list(names))
    monkeypatch.setattr(listing, "task_named", lambda name: names[name](name))
    code, shown, error = outcome(capsys, "list")
    assert code == 2 and "bad: task.shots=-1" in error
    (line,) = (line for line in shown.splitlines() if line.startswith("good "))
    assert line.split() == ["good", "toy.jsonl", "a,", "[b]", "none", "5", "exact", "no"]


def test_a_variant_is_a_task_of_its_own() -> None:
    assert (task_named("gsm8k:conflayers").max_new_tokens, task_named("gsm8k").max_new_tokens) == (512, 64)
    for text, message in (
        ("none", r"task='none' .*one of .*gsm8k"),
        ("gsm8k:x", r"task\.variant='x' .*knn_ssd, conflayers"),
        ("gsm8k:", r"task\.variant='' .*knn_ssd, conflayers"),
        ("humaneval:x", r"task\.variant='x' .*humaneval has no variants"),
    ):
        with pytest.raises(ConfigError, match=message):
            task_named(text)


def stub(*specs: DataSpec) -> Any:
    return SimpleNamespace(files=lambda template: specs, max_new_tokens=5, metric="exact")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """Settings of tasks with folders as repositories, the only ones that `fetch` knows."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    write_rows(tmp_path / "toy" / "test.jsonl", good(0), good(1))
    write_rows(tmp_path / "toy" / "train.jsonl", good(2), good(3), good(4))

    def source(split: str, **changes: object) -> dict[str, object]:
        folder = str(tmp_path / "toy")
        return {"path": folder, "name": "default", "split": split, "revision": "main", "rows": None} | changes

    settings: Hub = {
        "whole": {"hub": {"a": source("test", rows=2), "b": source("train")}},
        "pinned": {"hub": source("test", revision=None)},
        "short": {"hub": source("test", rows=3), "fewshot_hub": source("train", rows=3)},
        "wrong": {"hub": source("test", name="none")},
        "absent": {"hub": {}},
    }
    fields = ("question", "answer")

    def task(name: str) -> Any:
        found = settings[name]
        shots = [DataSpec("toy.fewshot", fields, found["fewshot_hub"])] if "fewshot_hub" in found else []
        return stub(DataSpec("toy", fields, found["hub"].get("a", found["hub"])), *shots)

    monkeypatch.setattr(fetching, "task_named", task)
    monkeypatch.setattr(fetching, "task_settings", settings.__getitem__)
    monkeypatch.setattr("ssd_bench.commands.data.task_names", lambda: list(settings))
    return settings


def test_fetch_tells_rows_of_folders(hub: Hub, capsys: Capture) -> None:
    code, shown, _ = outcome(capsys, "fetch", "whole", "pinned")
    assert code == 0
    assert "2 rows (as expected), a folder without commits" in shown
    assert "2 rows (expected number not set), a folder without commits" in shown and "pin with" not in shown


def test_fetch_goes_on_after_an_error_and_ends_with_it(hub: Hub, capsys: Capture) -> None:
    code, shown, error = outcome(capsys, "fetch", "wrong", "short", "absent", "whole")
    assert code == 2 and "TASK='wrong, short, absent'" in error
    assert "toy: FAILED" in shown and "has 2 rows; task.hub.rows=null accepts" in shown
    assert "toy.fewshot: " in shown and "3 rows (as expected)" in shown
    assert "this task has no data on the hub" in shown and "2 rows (as expected)" in shown


def test_fetch_all_takes_every_task_and_leaves_out_what_the_hub_does_not_have(hub: Hub, capsys: Capture) -> None:
    del hub["wrong"], hub["short"]
    code, shown, _ = outcome(capsys, "fetch", "all")
    assert code == 0 and "toy: not on the hub; data=local data.root=DIR reads DIR/toy.jsonl" in shown
    assert [line for line in shown.splitlines() if not line.startswith(" ")] == list(hub)


def test_a_file_of_several_tasks_is_read_once(hub: Hub, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    load = datasets.load_dataset

    def counted(*arguments: str, **options: Any) -> object:
        loaded.append(options["split"])
        return load(*arguments, **options)

    monkeypatch.setattr(datasets, "load_dataset", counted)
    hub["again"] = hub["pinned"]
    code, shown, _ = outcome(capsys, "fetch", "pinned", "again")
    assert code == 0 and loaded == ["test"] and shown.count("2 rows") == 2


def test_fetch_without_a_network_fails_at_once(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def unreachable(url: str, timeout: float) -> None:
        tried.append(url)
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.utils, "get_session", lambda: SimpleNamespace(head=unreachable))
    code, _, error = outcome(capsys, "fetch", "gsm8k", "alpaca")
    assert code == 2 and "HF_HUB_OFFLINE='1'" in error and "data=sample" in error and not tried
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    code, _, error = outcome(capsys, "fetch", "gsm8k", "alpaca")
    assert code == 2 and "ConnectionError: no route" in error and "HF_HUB_OFFLINE=1" in error and len(tried) == 1


def test_the_samples_pass_the_check(capsys: Capture) -> None:
    code, shown, _ = outcome(capsys, "check", SAMPLE, "gsm8k", "gsm8k:conflayers", "alpaca", "cnn_dm")
    assert code == 0 and "gsm8k.jsonl: 60 rows, 0 problems" in shown
    assert shown.count("60 prompts") == 8 and shown.count("gsm8k.jsonl: ") == 1


def test_every_problem_is_told(tmp_path: Path, capsys: Capture) -> None:
    bad = {"id": 9, "question": "", "answer": 3}
    write_rows(tmp_path / "gsm8k.jsonl", good(0), bad, "{", good(0), "", good(5))
    code, shown, error = outcome(capsys, "check", tmp_path, "gsm8k")
    assert code == 2 and "5 problems are listed above" in error
    for place in ("2 question=''", "2 answer=3", "3='{'", "4 id='0'"):
        assert f"PROBLEM {tmp_path}/gsm8k.jsonl:{place}" in shown
    assert "gsm8k.jsonl: 5 rows, 4 problems" in shown
    assert "chat: no prompts; missing or with problems: gsm8k.jsonl" in shown
    assert f"PROBLEM {tmp_path}/gsm8k.fewshot.jsonl is missing" in shown


def test_a_file_of_prompts_is_checked_as_its_task_would(tmp_path: Path, capsys: Capture) -> None:
    file = write_rows(tmp_path / "mine.jsonl", {"prompt": "a"}, {"prompt": ["b", "c"]})
    code, shown, _ = outcome(capsys, "check", file)
    assert code == 0 and "mine.jsonl: 2 rows, 0 problems" in shown and shown.count(": 2 prompts") == 2
    write_rows(file, {"prompt": "a"}, {"prompt": ""})
    code, shown, error = outcome(capsys, "check", file)
    assert code == 2 and f"PROBLEM {file}:2 prompt=''" in shown and f"DIR='{file}'" in error
    for line in ((file, "gsm8k"), (tmp_path / "none.jsonl",)):
        code, _, error = outcome(capsys, "check", *line)
        assert code == 2 and "folder of JSONL files, or one file NAME.jsonl of prompts, without a TASK" in error


def test_a_file_full_of_problems_is_cut_short(tmp_path: Path, capsys: Capture) -> None:
    write_rows(tmp_path / "humaneval.jsonl", *["[]"] * 50)
    code, shown, _ = outcome(capsys, "check", tmp_path, "humaneval")
    assert code == 2 and shown.count("humaneval.jsonl:") == 20 + 1
    assert "PROBLEM humaneval.jsonl has 30 more" in shown and "50 rows, 50 problems" in shown


def test_what_only_the_task_knows_is_checked(tmp_path: Path, capsys: Capture) -> None:
    write_rows(tmp_path / "gsm8k.jsonl", good(0))
    write_rows(tmp_path / "gsm8k.fewshot.jsonl", good(1))
    code, shown, _ = outcome(capsys, "check", tmp_path)
    assert code == 0 and "plain: no prompts; task.shots=5 is invalid: expected at most 1" in shown
    write_rows(tmp_path / "gsm8k.jsonl", good(0), {"id": "b", "question": "q?", "answer": "seven"})
    code, shown, _ = outcome(capsys, "check", tmp_path, "gsm8k")
    assert code == 2 and "gsm8k.jsonl: 2 rows, 0 problems" in shown
    assert "PROBLEM chat: gsm8k b answer='seven'" in shown
    assert "PROBLEM plain: task.shots=5 is invalid: expected at most 1" in shown


def test_a_folder_is_checked_for_all_tasks_that_read_it(tmp_path: Path, capsys: Capture) -> None:
    assert SAMPLE is not None
    for name in ("alpaca", "gsm8k"):
        shutil.copy(SAMPLE / f"{name}.jsonl", tmp_path)
    write_rows(tmp_path / "other.jsonl", "not looked at")
    code, shown, _ = outcome(capsys, "check", tmp_path)
    assert code == 0
    assert "files that no task reads: other.jsonl" in shown
    lacking = shown.partition("tasks that lack files: ")[2]
    assert "gsm8k: gsm8k.fewshot.jsonl" in lacking and "humaneval: humaneval.jsonl" in lacking
    assert "alpaca:" not in lacking and "plain: no prompts; missing or with problems: gsm8k.fewshot.jsonl" in shown
