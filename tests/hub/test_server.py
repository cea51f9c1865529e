"""The hub of the tests, seen through the real client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

from tests.hub.server import RATE_LIMITED, Fault, Hub

MODEL = "org/model"
FILES: Mapping[str, bytes | str] = {
    "config.json": "{}",
    "model-00001-of-00002.safetensors": bytes(range(256)) * 2000,
    "model-00002-of-00002.safetensors": b"second",
    "original/consolidated.00.pth": b"not wanted",
    **{f"notes/{number}.md": f"note {number}" for number in range(60)},
}
Snapshot = Callable[..., Path]


@pytest.fixture
def snapshot(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Snapshot:
    """Download the model's wanted files at a revision, and return their folder."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    options = {"endpoint": hub.endpoint, "cache_dir": tmp_path, "allow_patterns": ["*.json", "*.safetensors"]}
    return lambda revision="main", token=False: Path(
        snapshot_download(MODEL, revision=revision, token=token, **options)
    )


def test_a_snapshot_has_the_wanted_files_of_one_commit(hub: Hub, snapshot: Snapshot) -> None:
    old = hub.model(MODEL).commit({"config.json": "{}"})
    sha = hub.model(MODEL).commit(FILES)
    folder = snapshot()
    assert folder.name == sha
    wanted = [name for name in FILES if name.endswith((".json", ".safetensors"))]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: content.encode() if isinstance(content := FILES[name], str) else content for name in wanted
    }
    assert {*hub.downloads()} == {*wanted}
    weights = folder / "model-00001-of-00002.safetensors"
    assert weights.is_symlink()
    assert not weights.resolve().suffix
    assert snapshot(old).name == old


def test_a_download_goes_on_where_its_connection_dropped(hub: Hub, snapshot: Snapshot) -> None:
    weights = bytes(range(256)) * 45_000  # the client keeps what it has in chunks of 10 MiB
    hub.model(MODEL).commit({"model.safetensors": weights})
    hub.faults.append(Fault("GET /cdn/", status=None, after=11_000_000, times=1))
    assert (snapshot() / "model.safetensors").read_bytes() == weights
    assert [status for line, status in hub.requests if line.startswith("GET /cdn/")] == [200, 206]


def test_a_branch_moves_between_two_requests(hub: Hub, snapshot: Snapshot) -> None:
    first = hub.model(MODEL).commit(FILES)
    hub.faults.append(Fault("/resolve/", then=lambda: hub.model(MODEL).commit({"config.json": "[]"}), times=1))
    assert snapshot().name == first
    assert snapshot().name != first


@pytest.mark.parametrize(("kind", "error"), [("gated", GatedRepoError), ("private", RepositoryNotFoundError)])
def test_access_needs_the_token_that_has_it(kind: str, error: type[Exception], hub: Hub, snapshot: Snapshot) -> None:
    sha = hub.model(MODEL).commit(FILES)
    setattr(hub.model(MODEL), kind, True)
    for token in (False, "hf_stranger"):
        with pytest.raises(error):
            snapshot(token=token)
    assert snapshot(token="hf_granted").name == sha


def test_what_the_hub_does_not_have(hub: Hub, snapshot: Snapshot) -> None:
    with pytest.raises(RepositoryNotFoundError):
        snapshot()
    hub.model(MODEL).commit(FILES)
    for revision in ("0" * 40, "dev"):
        with pytest.raises(RevisionNotFoundError):
            snapshot(revision)


@pytest.mark.parametrize("fault", [Fault("/api/", 500), Fault("/api/", 429, headers=RATE_LIMITED)])
def test_a_server_that_fails_is_no_snapshot(hub: Hub, snapshot: Snapshot, fault: Fault) -> None:
    hub.model(MODEL).commit(FILES)
    hub.faults.append(fault)
    with pytest.raises((HfHubHTTPError, FileNotFoundError)):
        snapshot()
    assert fault.status in {status for _, status in hub.requests}
