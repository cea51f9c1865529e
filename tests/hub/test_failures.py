"""Each way in which a download fails, and what a user is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hub.server import RATE_LIMITED, Fault, Hub
from tests.runs import python

TOLD = """
import sys, time
time.sleep = lambda seconds: None  # between tries
from ssd_bench.model.fetch import failure
kind, name, revision = sys.argv[1:]
from huggingface_hub import snapshot_download
try:
    snapshot_download(name, repo_type=kind, revision=revision)
except Exception as error:
    print(failure(error, kind, name, revision))
else:
    print("no failure")
"""
FILES = {"README.md": "text", "config.json": "{}", "train.jsonl": '{"a": 1}\n'}


def told(hub: Hub, home: Path, kind: str, name: str = "org/it", revision: str = "main", **variables: str) -> str:
    done = python("-c", TOLD, kind, name, revision, **hub.variables(home, **variables))
    assert done.stdout, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_access(hub: Hub, tmp_path: Path, kind: str) -> None:
    repository = hub.model("org/it") if kind == "model" else hub.dataset("org/it")
    repository.commit(FILES)
    page = f"{hub.endpoint}/{'datasets/' if kind == 'dataset' else ''}org/it"
    repository.gated = True
    assert f"accept its licence on {page}, then run `hf auth login`" in told(hub, tmp_path / "a", kind)
    assert f"request it on {page}" in told(hub, tmp_path / "b", kind, HF_TOKEN="hf_stranger")
    assert told(hub, tmp_path / "c", kind, HF_TOKEN="hf_granted") == "no failure"
    assert f"no such {kind}" in told(hub, tmp_path / "d", kind, "org/absent")
    assert "no revision dev" in told(hub, tmp_path / "e", kind, revision="dev", HF_TOKEN="hf_granted")


@pytest.mark.parametrize("kind", ["model", "dataset"])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault("/org/it", 500), "HTTP 500"),
        (Fault("/org/it", 429, headers=RATE_LIMITED), "HTTP 429"),
        (Fault("GET .*jsonl", None, after=3), "broke off"),
    ],
    ids=["500", "429", "dropped"],
)
def test_a_server_that_fails(hub: Hub, tmp_path: Path, kind: str, fault: Fault, message: str) -> None:
    (hub.model("org/it") if kind == "model" else hub.dataset("org/it")).commit(FILES)
    hub.faults.append(fault)
    assert message in told(hub, tmp_path, kind)


@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_no_network(hub: Hub, tmp_path: Path, kind: str) -> None:
    assert "HF_HUB_OFFLINE is set" in told(hub, tmp_path, kind, HF_HUB_OFFLINE="1")
    assert "cannot be reached" in told(hub, tmp_path, kind, HF_ENDPOINT="http://127.0.0.1:9")
