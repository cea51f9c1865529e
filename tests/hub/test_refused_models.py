"""Models refused before their weights are downloaded; failures, and the use of a cache."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError

from ssd_bench.model.fetch import Kind, failure
from tests.hub.client import Client
from tests.hub.models import checkpoint_files
from tests.hub.server import RATE_LIMITED, Fault, Hub

Files = dict[str, bytes | str]
Change = Callable[[Files], object]
SHAPE = "model.shape=null"


@pytest.fixture(scope="module")
def files() -> Files:
    return {**checkpoint_files("qwen2_5_14b_instruct")}


def config(**keys: object) -> Change:
    return lambda files: files.update({"config.json": json.dumps(json.loads(files["config.json"]) | keys)})


def without(*names: str) -> Change:
    return lambda files: [files.pop(name) for name in [*files] if name in names or name.endswith(names)]


def template(text: object) -> Change:
    def change(files: Files) -> None:
        settings = json.loads(files["tokenizer_config.json"])
        files["tokenizer_config.json"] = json.dumps(settings | {"chat_template": text})

    return change


REFUSED: Mapping[str, tuple[Change, str, tuple[str, ...]]] = {
    "quantised": (config(quantization_config={"quant_method": "awq"}), "model", ("awq", "not quantised")),
    "ends": (
        lambda files: files.update({"generation_config.json": '{"eos_token_id": [99999]}'}),
        "eos_token_id",
        ("vocab_size", "generation_config.json"),
    ),
    "context": (config(max_position_embeddings=16), "prompt", ("context 16",)),
    "deaf-template": (template("Hello!"), "model.template", ("tokenizer_config.json leaves out the user's text",)),
    "no-default-template": (template([{"name": "tools", "template": "{{ tools }}"}]), "model.template", ("default",)),
    "no-tokenizer": (without("tokenizer.json", "vocab.json", "merges.txt"), "model", ("folder with a tokenizer",)),
    "no-config": (without("config.json"), "model.hub", ("config.json", "it has ")),
    "gguf": (
        lambda files: [files.clear(), files.update({"m.Q4_0.gguf": b"GGUF", "README.md": "x"})],
        "model.hub",
        ("config.json", "it has README.md, m.Q4_0.gguf"),
    ),
    "adapter": (
        lambda files: [files.clear(), files.update({"adapter_config.json": "{}", "adapter_model.bin": b""})],
        "model.hub",
        ("is an adapter: merge it",),
    ),
    "model-and-adapter": (lambda files: files.update({"adapter_config.json": "{}"}), "model", ("without an adapter",)),
    "no-weights": (without(".safetensors", ".index.json"), "model.hub", ("model.safetensors or pytorch_model.bin",)),
    "other-names": (
        lambda files: [
            without(".safetensors", ".index.json")(files),
            files.update({"consolidated.safetensors": b"", "model.fp16.safetensors": b""}),
        ],
        "model.hub",
        ("model.safetensors or pytorch_model.bin", "it has "),
    ),
    "absent-shard": (
        lambda files: files.pop(sorted(name for name in files if name.endswith(".safetensors"))[1]),
        "model.hub",
        ("model-00002-of-",),
    ),
    "junk-index": (lambda files: files.update({"model.safetensors.index.json": "{"}), "model", ("index.json", "JSON")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_is_refused_is_not_downloaded(name: str, client: Client, files: Files) -> None:
    change, field, words = REFUSED[name]
    changed = {**files}
    change(changed)
    client.hub.model(f"org/{name}").commit(changed)
    result = client.plan(*chat_model(f"org/{name}"), SHAPE)
    assert result.get("field") == field, result
    assert not [word for word in words if word not in result["message"]], result
    assert "\n" not in result["message"]
    assert not weights_asked(client.hub, f"org/{name}")


OPTIONS: Mapping[tuple[str, ...], tuple[str, str]] = {
    (): ("model.shape", "n_layers 4"),  # conf/model has the sizes of the real one
    (SHAPE, "hardware.kernels=nonsense"): ("hardware.kernels", "one of"),
    (SHAPE, "shard=2/5"): ("shard", "at most 1"),
    (SHAPE, "model.template.enable_thinking=true"): ("model.template", "variables of this tokenizer's chat template"),
    (SHAPE, "model.hub=https://huggingface.co/Qwen/Qwen3-8B"): ("model.hub", "such as Qwen/Qwen3-8B"),
    (SHAPE, "model.revision=1234567"): ("model.revision", "a text"),
    (SHAPE, "model.revision=12e4567"): ("model.revision", "a text"),
}


@pytest.mark.parametrize("options", OPTIONS)
def test_options_that_are_refused_download_no_weights(options: tuple[str, ...], client: Client, files: Files) -> None:
    field, words = OPTIONS[options]
    client.hub.model("org/options").commit(files)
    result = client.plan(*chat_model("org/options"), *options)
    assert result.get("field") == field and words in result["message"], result
    assert not weights_asked(client.hub, "org/options")


def weights_asked(hub: Hub, repository: str) -> list[str]:
    ends = (".safetensors", ".bin", ".gguf")
    return [line for line, _ in hub.requests if f"{repository}/" in line and line.endswith(ends)]


def chat_model(hub: str) -> tuple[str, ...]:
    return ("model=qwen2_5_14b_instruct", f"model.hub={hub}", "model.revision=main")


FAILURES: Mapping[str, tuple[tuple[Fault, ...], str]] = {  # repository, its faults, and what the message says
    "gated": ((), "accept its licence on {hub}/org/gated, then run `hf auth login`"),
    "granted-to-others": ((), "request it on {hub}/org/granted-to-others"),
    "private": ((), "no such model, or it is private: check the id on {hub}/org/private"),
    "absent": ((), "no such model"),
    "fault": ((Fault("/org/fault", 500),), "HTTP 500"),
    "limited": ((Fault("/org/limited", 429, headers=RATE_LIMITED),), "HTTP 429"),
    "late-fault": ((Fault("GET .*org/late-fault/.*safetensors", 503),), "HTTP 503"),
    "dropped": ((Fault("GET /cdn/models/org/dropped", None, after=100),), "connection broke off"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_names_its_cause_and_what_to_do(name: str, client: Client, files: Files) -> None:
    faults, words = FAILURES[name]
    if name != "absent":
        repository = client.hub.model(f"org/{name}")
        repository.commit(files)
        repository.gated, repository.private = name in ("gated", "granted-to-others"), name == "private"
    client.hub.faults += faults
    result = client.plan(*chat_model(f"org/{name}"), SHAPE, token="hf_stranger" if name == "granted-to-others" else "")
    assert result["field"] == "model.hub" and words.format(hub=client.hub.endpoint) in result["message"], result
    assert f"hf download org/{name}" in result["message"] and "model=miniature" in result["message"]
    assert "\n" not in result["message"]
    if faults:  # the same command works once it is over
        client.hub.faults.clear()
        again = client.plan(*chat_model(f"org/{name}"), SHAPE)
        assert again["commit"] == client.hub.model(f"org/{name}").branches["main"]


@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_a_hub_that_cannot_be_reached(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with pytest.raises(LocalEntryNotFoundError) as caught:
        snapshot_download("org/it", repo_type=kind, endpoint="http://127.0.0.1:9", cache_dir=tmp_path)
    assert "cannot be reached" in failure(caught.value, kind, "org/it")


def test_a_revision_that_is_not_there_names_where_they_are(client: Client, files: Files) -> None:
    client.hub.model("org/revisions").commit(files)
    for revision in ("release-9", "f" * 40):
        result = client.plan(*chat_model("org/revisions"), SHAPE, f"model.revision={revision}")
        assert f"no revision {revision} of it: {client.hub.endpoint}/org/revisions/commits/main" in result["message"]


def test_a_disk_without_room_is_said_before_the_download(client: Client, files: Files) -> None:
    """Weights in the cache need no room."""
    client.hub.model("org/full").commit(files)
    line = (*chat_model("org/full"), SHAPE)
    size = sum(len(content) for name, content in files.items() if name.endswith(".safetensors"))
    result = client.plan(*line, free=size - 1)
    assert f"need {size / 1e9:.1f} GB more" in result["message"] and "GB are free" in result["message"], result
    assert str(client.home) in result["message"] and "HF_HOME" in result["message"]
    assert "incomplete" not in result["message"]
    (client.home / "hub" / "models--org--full" / "blobs" / "abc.12345678.incomplete").write_bytes(b"begun")
    assert "0.0 GB are in *.incomplete" in client.plan(*line, free=size - 1)["message"]
    assert not weights_asked(client.hub, "org/full")
    sound = client.plan(*line, free=size)
    assert sound["commit"] == client.hub.model("org/full").branches["main"]
    assert client.plan(*line, free=0) == sound
    newer = client.hub.model("org/full").commit({**files, "README.md": "newer"})  # with the same weights
    assert client.plan(*line, free=0)["commit"] == newer
