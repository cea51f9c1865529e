"""Whole runs with `data=hub`, as a user types them, from a cache without data."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ssd_bench.records.reader import Run, load_run
from tests.hub.client import Client
from tests.hub.layouts import grouped, publish, sample
from tests.hub.test_tasks import CASES, pins
from tests.runs import CPU

RUNS = {
    "gsm8k": ["model.template=plain", "limit=2"],  # demonstrations
    "aime25": ["limit=2"],  # two configurations
    "mt_bench": ["limit=1"],  # conversations
    "stream": ["model.template=plain", "task.items=1"],  # KNN-SSD's, with demonstrations of each part
}
FILES = {
    "gsm8k": {"gsm8k": "openai/gsm8k", "gsm8k.fewshot": "openai/gsm8k"},
    "aime25": {"aime25": "opencompass/AIME2025"},
    "mt_bench": {"mt_bench": "HuggingFaceH4/mt_bench_prompts"},
    "stream": {"cnndm": "abisee/cnn_dailymail", "cnndm.fewshot": "abisee/cnn_dailymail", "wmt16_deen": "wmt/wmt16"},
}


@pytest.fixture(scope="module")
def shared(client: Client) -> Client:
    """Run a client whose hub has all data sets."""
    publish(client.hub, pins())
    return client


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
    rows = [{"prompt": f"the ferry {number}"} for number in range(4)]
    faulty = [*rows, {"prompt": ""}]
    client.hub.dataset("org/it").commit({"test.jsonl": "".join(json.dumps(row) + "\n" for row in faulty)})
    data = "+task.hub={path: org/it, name: null, split: test, revision: main}"
    done = typed(client, tmp_path, "task=jsonl", "data=hub", data, "limit=4")
    assert done.returncode == 0, done.stderr
    told = "1 fault in rows of org/it None test that this run does not use: org/it None test:4 prompt=''"
    assert told in done.stderr and any(told in warning for warning in record(tmp_path).header.warnings)
    done = typed(client, tmp_path, "task=jsonl", "data=hub", data)
    assert done.returncode == 2 and "org/it None test:4 prompt='' is invalid" in done.stderr


def test_fetch_tells_the_commit_to_pin(shared: Client, tmp_path: Path) -> None:
    rows, shots = (sample("mbpp") * 5)[:257], sample("mbpp.fewshot")[:7]
    commit = shared.hub.dataset("google-research-datasets/mbpp").commit(
        grouped({"sanitized": {"test": rows, "prompt": shots}})
    )
    done = shared.run("data", "fetch", "mbpp")
    assert done.returncode == 0, done.stderr
    for split, count, option in (("test", 257, "task.hub"), ("prompt", 7, "task.fewshot_hub")):
        told = f"mbpp {split}, {count} rows (as expected), main is {commit}; pin with {option}.revision={commit}"
        assert told in done.stdout
    done = typed(shared, tmp_path, "task=mbpp", "data=hub", "limit=1", "task.sandbox=best_effort", offline=True)
    assert done.returncode == 0, done.stderr
    assert f"{commit} of main" in done.stderr
    assert f"@{commit} " in record(tmp_path).header.data["mbpp"]
