"""Data of a run, and its messages, if the hub refuses, fails, or has moved on."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants, hf_hub_download

from tests.hub.client import Client
from tests.hub.layouts import card, jsonl
from tests.hub.server import RATE_LIMITED, Fault

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Id of a data set of one test."""
    return f"{tmp_path.name}/it"


def lines(*questions: str) -> str:
    return jsonl([{"question": question} for question in questions])


def files(word: str) -> dict[str, bytes | str]:
    return {"test.jsonl": lines(f"{word} 0", f"{word} 1"), "train.jsonl": lines("t"), "README.md": "text"}


def test_no_other_commit_is_read_in_place_of_the_one_asked_for(client: Client, path: str) -> None:
    client.hub.dataset(path).commit(files("old"), sha=OLD, branch=None)
    client.hub.dataset(path).commit(files("new"), sha=NEW)
    (rows, fingerprint), (main, branch) = client.read(path, NEW, "main")
    assert rows == main == ["new 0", "new 1"] and fingerprint == branch and f"{path}@{NEW} files:" in fingerprint
    for offline, cause in ((True, "HF_HUB_OFFLINE is set"), (False, "HTTP 500")):
        client.hub.faults.append(Fault(path, 500))
        old, new, moved = client.read(path, OLD, NEW, "main", offline=offline)
        assert old.startswith(f"task.hub.revision='{OLD}' is invalid: {path} could not be loaded (") and cause in old
        assert f"the cache has commit {NEW}, which task.hub.revision=COMMIT reads" in old
        assert new == moved == [["new 0", "new 1"], fingerprint]


def test_a_branch_that_moves_is_one_commit_for_all_that_a_run_reads(client: Client, path: str) -> None:
    repository = client.hub.dataset(path)
    repository.commit(files("old"), sha=OLD)
    client.hub.faults.append(Fault("tree", then=lambda: repository.commit(files("new"), sha=NEW), times=1))
    (rows, fingerprint), (later, moved) = client.read(path, "main", "main")
    assert (rows, later) == (["old 0", "old 1"], ["new 0", "new 1"])
    assert f"@{OLD} " in fingerprint and f"@{NEW} " in moved


def test_the_cause_of_a_failure_is_named(client: Client, path: str) -> None:
    for name in ("gated", "limited", "broken", "dropped", "full"):
        client.hub.dataset(path + name).commit(files(name))
    client.hub.dataset(path + "gated").gated = True
    client.hub.faults += [
        Fault(f"{path}limited", 429, headers=RATE_LIMITED),
        Fault(f"{path}broken", 500),
        Fault(f"GET .*{path}dropped.*test.jsonl", None, after=5),
    ]
    gated, revision = client.read(f"{path}gated", "main", "dev")
    assert f"accept its licence on {client.hub.endpoint}/datasets/{path}gated, then run `hf auth login`" in gated
    assert "no revision dev" in revision
    (stranger,) = client.read(f"{path}gated", "main", token="hf_stranger")
    assert f"this account has no access yet: request it on {client.hub.endpoint}/datasets/{path}gated" in stranger
    for name, said in (
        ("limited", "HTTP 429"),
        ("broken", "HTTP 500"),
        ("dropped", "broke off"),
        ("absent", "no such dataset"),
    ):
        assert said in client.read(path + name, "main")[0], name
    assert "is full: free some space" in client.read(f"{path}full", "main", free=0)[0]


def test_a_cache_with_some_shards_of_a_split_is_not_that_split(
    client: Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = {f"data/test-0000{i}-of-00002.jsonl": lines(f"q{i}") for i in (0, 1)}
    sha = client.hub.dataset(path).commit(shards | {"README.md": card({"default": {"test": "data/test-*"}})})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    place = {"repo_type": "dataset", "revision": sha, "endpoint": client.hub.endpoint}

    def get(*names: str) -> None:
        for name in names:
            hf_hub_download(path, name, cache_dir=client.home / "hub", **place)

    get("README.md", min(shards))
    (told,) = client.read(path, sha, offline=True)
    assert f"could not be loaded (DataFilesNotFoundError: No (supported) data files found in {path})" in told
    get(max(shards))
    ((rows, _),) = client.read(path, sha, offline=True)
    assert rows == ["q0", "q1"]
