"""The hub of the tests, seen through the real clients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.hub.server import RATE_LIMITED, Fault, Hub
from tests.runs import python

MODEL, DATASET = "org/model", "org/data"
SNAPSHOT = """
import sys
from huggingface_hub import snapshot_download
try:
    print(snapshot_download("org/model", revision=sys.argv[1], allow_patterns=["*.json", "*.safetensors"]))
except Exception as error:
    print(type(error).__name__)
"""
ROWS = """
import sys
from datasets import load_dataset
try:
    print(load_dataset("org/data", name=None, revision=sys.argv[1], split="test")["question"][:])
except Exception as error:
    print(type(error).__name__)
"""
FILES: Mapping[str, bytes | str] = {
    "config.json": "{}",
    "model-00001-of-00002.safetensors": bytes(range(256)) * 2000,
    "model-00002-of-00002.safetensors": b"second",
    "original/consolidated.00.pth": b"not wanted",
    **{f"notes/{number}.md": f"note {number}" for number in range(60)},
}


def snapshot(hub: Hub, home: Path, revision: str = "main", **variables: str) -> str:
    done = python("-c", SNAPSHOT, revision, **hub.variables(home, **variables))
    return (done.stdout.splitlines() or [done.stderr])[-1]


def test_a_snapshot_has_the_wanted_files_of_one_commit(hub: Hub, tmp_path: Path) -> None:
    old = hub.model(MODEL).commit({"config.json": "{}"})
    sha = hub.model(MODEL).commit(FILES)
    folder = Path(snapshot(hub, tmp_path))
    assert folder.name == sha
    wanted = [name for name in FILES if name.endswith((".json", ".safetensors"))]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: content.encode() if isinstance(content := FILES[name], str) else content for name in wanted
    }
    assert {*hub.downloads()} == {*wanted}
    weights = folder / "model-00001-of-00002.safetensors"
    assert weights.is_symlink()
    assert not weights.resolve().suffix
    assert Path(snapshot(hub, tmp_path, old)).name == old


def test_a_download_goes_on_where_its_connection_dropped(hub: Hub, tmp_path: Path) -> None:
    weights = bytes(range(256)) * 45_000  # the client keeps what it has in chunks of 10 MiB
    hub.model(MODEL).commit({"model.safetensors": weights})
    hub.faults.append(Fault("GET /cdn/", status=None, after=11_000_000, times=1))
    folder = Path(snapshot(hub, tmp_path))
    assert (folder / "model.safetensors").read_bytes() == weights
    assert [status for line, status in hub.requests if line.startswith("GET /cdn/")] == [200, 206]


def test_a_branch_moves_between_two_requests(hub: Hub, tmp_path: Path) -> None:
    first = hub.model(MODEL).commit(FILES)
    hub.faults.append(Fault("/resolve/", then=lambda: hub.model(MODEL).commit({"config.json": "[]"}), times=1))
    assert Path(snapshot(hub, tmp_path)).name == first
    assert Path(snapshot(hub, tmp_path)).name != first


@pytest.mark.parametrize(
    ("change", "token", "error"),
    [
        ({"gated": True}, "", "GatedRepoError"),
        ({"gated": True}, "hf_stranger", "GatedRepoError"),
        ({"gated": True}, "hf_granted", None),
        ({"private": True}, "", "RepositoryNotFoundError"),
        ({"private": True}, "hf_granted", None),
    ],
)
def test_access_needs_the_token_that_has_it(
    hub: Hub, tmp_path: Path, change: dict[str, bool], token: str, error: str | None
) -> None:
    sha = hub.model(MODEL).commit(FILES)
    for name, value in change.items():
        setattr(hub.model(MODEL), name, value)
    assert Path(snapshot(hub, tmp_path, HF_TOKEN=token)).name == (error or sha)


def test_what_the_hub_does_not_have(hub: Hub, tmp_path: Path) -> None:
    assert snapshot(hub, tmp_path) == "RepositoryNotFoundError"
    hub.model(MODEL).commit(FILES)
    assert snapshot(hub, tmp_path, "0" * 40) == "RevisionNotFoundError"
    assert snapshot(hub, tmp_path, "dev") == "RevisionNotFoundError"


@pytest.mark.parametrize("fault", [Fault("/api/", 500), Fault("/api/", 429, headers=RATE_LIMITED)])
def test_a_server_that_fails_is_no_snapshot(hub: Hub, tmp_path: Path, fault: Fault) -> None:
    hub.model(MODEL).commit(FILES)
    hub.faults.append(fault)
    assert snapshot(hub, tmp_path) in ("LocalEntryNotFoundError", "HfHubHTTPError")
    assert fault.status in {status for _, status in hub.requests}


def test_rows_of_a_data_set(hub: Hub, tmp_path: Path) -> None:
    lines = "".join(json.dumps({"question": f"q{number}"}) + "\n" for number in range(3))
    hub.dataset(DATASET).commit({"data/train.jsonl": '{"question": "t"}\n', "data/test.jsonl": lines})
    done = python("-c", ROWS, "main", **hub.variables(tmp_path))
    assert done.stdout.splitlines()[-1:] == ["['q0', 'q1', 'q2']"], done.stderr
