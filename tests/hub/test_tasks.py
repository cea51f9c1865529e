"""Every task with `data=hub`: prompts, and whole runs as a user types them, from a cache without data."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from ssd_bench.conf import choices
from ssd_bench.contract.task import DataSpec
from ssd_bench.records.reader import Run, load_run
from tasks.stream import Stream
from tests.hub.client import Client
from tests.hub.layouts import grouped, jsonl, publish, sample
from tests.runs import CPU
from tests.tasks.test_tasks import make

VARIANTS = {
    "gsm8k": ("conflayers", "knapspec"),
    "math": ("knapspec",),
    "cnn_dm": ("conflayers",),
    "xsum": ("self_ssd",),
    "alpaca": ("conflayers",),
}
MORE = {
    "alpaca": ["task.shots=2"],
    "humaneval": ["task.sandbox=best_effort"],
    "jsonl": ["+task.hub={path: somebody/prompts, name: default, split: test, revision: main}"],
    "mbpp": ["task.sandbox=best_effort"],
    "spider2": ["task.shots=0"],
    "stream": ["task.parts.spider2.shots=0"],
}
UNREAD = re.compile(r"(socratic|1\.0\.0|cs-en|throughput_1k|full)/|pg19.*train|TinyStories.*txt|MMLU.*test-")


def counted(task: str) -> list[str]:
    """Return the options that accept other numbers of rows than the real data sets'."""
    task_of = make(task)
    parts = {f"task.parts.{name}.": part for name, part in task_of.parts.items()} if isinstance(task_of, Stream) else {}
    return [
        f"{spec.option.replace('task.', place, 1)}.rows=null"
        for place, part in (parts or {"task.": task_of}).items()
        for spec in part.files("plain")
        if spec.hub
    ]


def cases() -> dict[str, list[str]]:
    """Return the options of every task and variant that read the hub."""
    options_of = {}
    for name in choices("task"):
        if name == "spec_bench":
            continue
        options = [f"task={name}", *counted(name), *MORE.get(name, [])]
        options += ["task.items=40"] if name.startswith("stream") else []
        options_of[name] = options
        for variant in VARIANTS.get(name, ()):
            options_of[f"{name}:{variant}"] = [*options, f"variant={variant}"]
    options_of["alpaca:conflayers"] = ["task=alpaca", "variant=conflayers", "task.hub.conflayers.rows=null"]
    options_of["alpaca"] += ["task.fewshot_hub.rows=null"]
    options_of["xsum:self_ssd"] += ["task.fewshot_hub.rows=null"]
    for variant in ("gsm8k:knapspec", "math:knapspec"):
        options_of[variant] = [option for option in options_of[variant] if "fewshot" not in option]
    return options_of


CASES = cases()


@cache
def pins() -> dict[str, str]:
    specs: list[DataSpec] = [spec for name in choices("task") for spec in make(name).files("plain")]
    return {spec.hub["path"]: spec.hub["revision"] for spec in specs if spec.hub}


@pytest.fixture(scope="module")
def shared(client: Client) -> Client:
    """Run a client whose hub has all data sets."""
    publish(client.hub, pins())
    return client


@pytest.fixture(scope="module")
def outcomes(shared: Client) -> tuple[dict[str, str], list[str]]:
    """Return what the client says about every case, and the files that it asked for."""
    before = len(shared.hub.requests)
    texts = shared.prompts(list(CASES.values()))
    lines = [line for line, _ in shared.hub.requests[before:]]
    asked = [line for line in lines if line.startswith("GET") and re.search("/(resolve|cdn)/", line)]
    return dict(zip(CASES, texts, strict=True)), asked


@pytest.mark.parametrize("case", CASES)
def test_prompts_are_those_of_a_local_file_of_the_same_items(
    case: str, outcomes: tuple[dict[str, str], list[str]]
) -> None:
    told = outcomes[0][case]
    assert told.startswith("equal "), told
    assert int(told.split()[1]) >= 54
    assert all(
        re.search(rf"{re.escape(path)}@{pin}", told) for path, pin in pins().items() if pin != "main" and path in told
    )


def test_no_file_of_another_split_or_configuration_is_downloaded(outcomes: tuple[dict[str, str], list[str]]) -> None:
    assert any("pg19" in line for line in outcomes[1])
    assert not [line for line in outcomes[1] if UNREAD.search(line)]


# ---- runs


RUNS = {
    "mt_bench": ["limit=1"],  # conversations
    "stream": ["model.template=plain", "task.items=1"],  # KNN-SSD's, with demonstrations of each part
}
FILES = {
    "mt_bench": {"mt_bench": "HuggingFaceH4/mt_bench_prompts"},
    "stream": {"cnndm": "abisee/cnn_dailymail", "cnndm.fewshot": "abisee/cnn_dailymail", "wmt16_deen": "wmt/wmt16"},
}


def typed(client: Client, runs: Path, *options: str, offline: bool = False) -> subprocess.CompletedProcess[str]:
    line = ("model=miniature", "method=fixed_layers", "decode.max_new_tokens=4", *CPU, f"runs_dir={runs}")
    return client.run(*line, *options, offline=offline)


def record(runs: Path) -> Run:
    (folder,) = (path.parent for path in runs.glob("*/run.json"))
    return load_run(folder)


@pytest.mark.parametrize("task", RUNS)
def test_a_run_reads_the_hub(task: str, shared: Client, tmp_path: Path) -> None:
    done = typed(shared, tmp_path, "data=hub", *CASES[task], *RUNS[task])
    assert done.returncode == 0, done.stderr
    run = record(tmp_path)
    assert set(run.prompts.loc[run.prompts["arm"] == "method", "lossless"]) == {"identical"}
    for file, path in FILES[task].items():
        assert run.header.data[file].startswith(f"{path}@{pins()[path]} files:")
    assert not run.header.warnings


def test_a_run_names_the_rows_that_it_does_not_use(client: Client, tmp_path: Path) -> None:
    faulty = [*({"prompt": f"the ferry {number}"} for number in range(4)), {"prompt": ""}]
    client.hub.dataset("org/it").commit({"test.jsonl": jsonl(faulty)})
    data = "+task.hub={path: org/it, name: null, split: test, revision: main}"
    done = typed(client, tmp_path, "task=jsonl", "data=hub", data, "limit=4")
    assert done.returncode == 0, done.stderr
    told = "1 fault in rows of org/it None test that this run does not use: org/it None test:4 prompt=''"
    assert told in done.stderr and any(told in warning for warning in record(tmp_path).header.warnings)
    done = typed(client, tmp_path, "task=jsonl", "data=hub", data)
    assert done.returncode == 2 and "org/it None test:4 prompt='' is invalid" in done.stderr


def test_fetch_tells_the_commit_to_pin(shared: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, shots = (sample("mbpp") * 5)[:257], sample("mbpp.fewshot")[:7]
    repository = shared.hub.dataset("google-research-datasets/mbpp")
    monkeypatch.setitem(repository.branches, "main", repository.branches["main"])  # for other tests, afterwards
    commit = repository.commit(grouped({"sanitized": {"test": rows, "prompt": shots}}))
    done = shared.run("data", "fetch", "mbpp")
    assert done.returncode == 0, done.stderr
    for split, count, option in (("test", 257, "task.hub"), ("prompt", 7, "task.fewshot_hub")):
        told = f"mbpp {split}, {count} rows (as expected), main is {commit}; pin with {option}.revision={commit}"
        assert told in done.stdout
    done = typed(shared, tmp_path, "task=mbpp", "data=hub", "limit=1", "task.sandbox=best_effort", offline=True)
    assert done.returncode == 0, done.stderr
    assert f"{commit} of main" in done.stderr
    assert f"@{commit} " in record(tmp_path).header.data["mbpp"]
