"""Every task with `data=hub`, through the real clients and a hub on this machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from ssd_bench.conf import choices
from ssd_bench.contract.task import DataSpec
from tasks.stream import Stream
from tests.hub.layouts import publish
from tests.hub.server import Hub, serving
from tests.runs import ROOT, environment
from tests.tasks.test_tasks import make

VARIANTS = {
    "gsm8k": ("conflayers", "knapspec"),
    "math": ("knapspec",),
    "cnn_dm": ("conflayers",),
    "xsum": ("self_ssd",),
    "alpaca": ("conflayers",),
}
OWN = "+task.hub={path: somebody/prompts, name: default, split: test, revision: main}"
SHOTS = {"alpaca": ["task.shots=2"], "spider2": ["task.shots=0"], "stream": ["task.parts.spider2.shots=0"]}
SANDBOX = {"humaneval": ["task.sandbox=best_effort"], "mbpp": ["task.sandbox=best_effort"]}
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
        items = {"stream": "40", "stream_swift": "40", "stream_shift": "40"}.get(name)
        options = [f"task={name}", *counted(name), *SHOTS.get(name, []), *SANDBOX.get(name, [])]
        options += [f"task.items={items}"] if items else []
        options += [OWN] if name == "jsonl" else []
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
def shared() -> Iterator[Hub]:
    with serving() as hub:
        publish(hub, pins())
        yield hub


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the caches, filled once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def outcomes(shared: Hub, home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what one client process says about every case."""
    folder = tmp_path_factory.mktemp("local")
    done = subprocess.run(
        [sys.executable, "-m", "tests.hub.prompts", str(folder)],
        input=json.dumps(list(CASES.values())),
        cwd=ROOT,
        env=environment() | shared.variables(home),
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_prompts_are_those_of_a_local_file_of_the_same_items(case: str, outcomes: dict[str, str]) -> None:
    told = outcomes[case]
    assert told.startswith("equal "), told
    assert int(told.split()[1]) >= 54
    assert all(
        re.search(rf"{re.escape(path)}@{pin}", told) for path, pin in pins().items() if pin != "main" and path in told
    )


def test_no_file_of_another_split_or_configuration_is_downloaded(outcomes: dict[str, str], shared: Hub) -> None:
    read = [line for line, _ in shared.requests if line.startswith("GET") and re.search("/(resolve|cdn)/", line)]
    assert any("pg19" in line for line in read)
    assert not [line for line in read if UNREAD.search(line)]
