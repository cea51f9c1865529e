"""The hub's cache, and repositories with other layouts."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants, snapshot_download
from safetensors.torch import load, save

from tests.hub.client import Client
from tests.hub.models import add_model, checkpoint_files, source_of
from tests.hub.server import Fault, Repository
from tests.model.test_weights_files import INDEX, PICKLE, PICKLE_INDEX, WEIGHTS

PINNED, BRANCH, SHAPE = "qwen3_8b", "codellama_13b", "model.shape=null"


def served(client: Client, tmp_path: Path, name: str) -> tuple[Repository, tuple[str, ...]]:
    """Serve a model of `conf/model` in a repository of this test alone; return it and its options."""
    path = f"{tmp_path.name}/{name}"
    return add_model(client.hub, name, path), (f"model={name}", SHAPE, f"model.hub={path}")


@pytest.mark.parametrize("name", [PINNED, BRANCH])
def test_a_whole_cache_serves_without_a_hub(name: str, client: Client, tmp_path: Path) -> None:
    """Run offline, with a server that is gone or fails, and for a gated model without its token."""
    repository, line = served(client, tmp_path, name)
    first = client.plan(*line)
    assert first.get("commit") == repository.branches["main"], first
    assert client.plan(*line, offline=True) == first
    repository.gated = True
    assert client.plan(*line) == first
    # a branch is asked for in every run: a connection that breaks then is said
    for fault in [Fault("/", 500), Fault("/", 401), *([Fault("/", None)] if name == PINNED else [])]:
        client.hub.faults[:] = [fault]
        assert client.plan(*line) == first


def test_another_commit_in_the_cache_is_not_taken(client: Client, tmp_path: Path) -> None:
    repository, line = served(client, tmp_path, PINNED)
    pinned = str(source_of(PINNED).revision)
    files = {path: file.content for path, file in repository.commits[pinned].items()}
    newer = repository.commit(files | {"README.md": "newer"})
    assert client.plan(*line, f"model.revision={newer}")["commit"] == newer
    offline = client.plan(*line, offline=True)
    client.hub.faults.append(Fault("/", 500))
    for result in (offline, client.plan(*line)):
        assert result["field"] == "model.hub" and f"--revision {pinned}" in result["message"], result
    client.hub.faults.clear()
    assert client.plan(*line)["commit"] == pinned


def test_a_branch_is_followed(client: Client, tmp_path: Path) -> None:
    repository, line = served(client, tmp_path, BRANCH)
    old = repository.branches["main"]
    assert client.plan(*line)["commit"] == old
    new = repository.commit({path: file.content for path, file in repository.commits[old].items()} | {"new.txt": "x"})
    assert client.plan(*line)["commit"] == new
    assert client.plan(*line, offline=True)["commit"] == new


def test_a_cache_that_lacks_files_is_completed_or_refused(client: Client, tmp_path: Path) -> None:
    _, line = served(client, tmp_path, PINNED)
    first = client.plan(*line)
    for suffix in (".safetensors", "config.json"):
        lost = max(path for path in Path(first["folder"]).iterdir() if path.name.endswith(suffix))
        lost.resolve().unlink()
        offline = client.plan(*line, offline=True)
        assert offline["field"] == "model.hub" and f"--revision {first['commit']}" in offline["message"], offline
        downloads = len(client.hub.downloads())
        assert client.plan(*line) == first
        assert client.hub.downloads()[downloads:] == [lost.name]


def test_what_a_user_downloads_runs_as_a_folder(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare the weights of `hf download ID`, with and without `--local-dir`."""
    _, line = served(client, tmp_path, PINNED)
    cached = client.plan(*line)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    repository = line[-1].removeprefix("model.hub=")
    snapshot_download(repository, local_dir=tmp_path / "model", endpoint=client.hub.endpoint)
    for folder in (cached["folder"], str(tmp_path / "model")):
        local = client.plan("model=local", f"model.path={folder}", "model.template=plain")
        assert (local["files"], local["weights"], local["commit"]) == (cached["files"], cached["weights"], None)


def layouts() -> dict[str, tuple[dict[str, bytes | str], list[str]]]:
    """Return files of repositories with other layouts of weights, each with the weights that a run reads."""
    files: dict[str, bytes | str] = {**checkpoint_files(PINNED)}
    shards = sorted(name for name in files if name.endswith(".safetensors"))
    tensors = {name: tensor for shard in shards for name, tensor in load(bytes(files[shard])).items()}
    texts = {name: content for name, content in files.items() if name not in shards and name != INDEX}

    def pickled(part: dict[str, torch.Tensor]) -> bytes:
        torch.save(part, content := io.BytesIO())
        return content.getvalue()

    halves = [dict(sorted(tensors.items())[i::2]) for i in range(2)]
    names = [f"pytorch_model-0000{i + 1}-of-00002.bin" for i in range(2)]
    places = {tensor: names[i] for i in range(2) for tensor in halves[i]}
    pickles: dict[str, bytes | str] = {name: pickled(half) for name, half in zip(names, halves, strict=True)}
    pickles[PICKLE_INDEX] = json.dumps({"metadata": {}, "weight_map": places})
    weights = save(tensors)
    return {
        "one file next to an index": (files | {WEIGHTS: weights}, [WEIGHTS]),
        "one file next to an index without shards": (texts | {WEIGHTS: weights, INDEX: files[INDEX]}, [WEIGHTS]),
        "shards of both kinds": (files | pickles, shards),
        "a pickle next to an index": (texts | pickles | {PICKLE: pickled(tensors)}, [PICKLE]),
        "pickled shards": (texts | pickles, names),
    }


def test_the_files_are_downloaded_that_transformers_would_load(client: Client) -> None:
    for name, (files, weights) in layouts().items():
        repository = f"org/{name.replace(' ', '-')}"
        client.hub.model(repository).commit(files)
        line = (f"model={PINNED}", SHAPE, f"model.hub={repository}", "model.revision=main")
        result = client.plan(*line)
        assert result.get("files") == weights, (name, result)
        requested = {line.rpartition("/")[2] for line, _ in client.hub.requests if f"{repository}/" in line}
        assert {path for path in requested if path.endswith((".safetensors", ".bin"))} == {*weights}, name
        assert client.plan(*line, offline=True) == result, name
