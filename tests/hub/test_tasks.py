"""Every task with `data=hub`, through the real clients and a hub on this machine."""

from __future__ import annotations

import re
from functools import cache

import pytest

from ssd_bench.conf import choices
from ssd_bench.contract.task import DataSpec
from tasks.stream import Stream
from tests.hub.client import Client
from tests.hub.layouts import publish
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
def outcomes(client: Client) -> tuple[dict[str, str], list[str]]:
    """Return what the client says about every case, and the files that it asked for."""
    publish(client.hub, pins())
    before = len(client.hub.requests)
    texts = client.prompts(list(CASES.values()))
    lines = [line for line, _ in client.hub.requests[before:]]
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
