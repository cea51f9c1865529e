"""A model's weights files in a folder: behind links, next to older ones, with and without a head."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from ssd_bench.errors import ConfigError
from ssd_bench.model.checkpoint import Checkpoint, ModelSource
from ssd_bench.model.weights import architecture
from ssd_bench.records import contents as module
from ssd_bench.records.contents import contents
from ssd_bench.records.reader import Run
from ssd_bench.results.rows import arm_rows
from tests.conftest import LAYERS

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLE, PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
COMMIT = "a" * 40


def save(tensors: dict[str, Tensor], path: Path, parts: int = 2) -> None:
    """Write weights in the format of a file's or index's name."""
    if path.name.endswith(".index.json"):
        stem, suffix = path.name.removesuffix(".index.json").split(".")
        names = [f"{stem}-{i + 1:05}-of-{parts:05}.{suffix}" for i in range(parts)]
        places = {name: names[i % parts] for i, name in enumerate(sorted(tensors))}
        for part in names:
            save({name: tensors[name] for name in tensors if places[name] == part}, path.parent / part)
        path.write_text(json.dumps({"metadata": {}, "weight_map": places}), encoding="utf-8")
    elif path.suffix == ".bin":
        torch.save(tensors, path)
    else:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def rewrite(folder: Path, file: str) -> None:
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    save(tensors, folder / file)


def cached(folder: Path, link: Callable[[Path, Path], object]) -> Path:
    """Move a folder's files to blobs named by their hashes, as in the hub's cache, and link to them."""
    cache = folder.parent / "models--some--model"
    snapshot = cache / "snapshots" / COMMIT
    for path in (snapshot, cache / "blobs"):
        path.mkdir(parents=True)
    for file in sorted(folder.iterdir()):
        blob = cache / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.move(file, blob)
        link(snapshot / file.name, blob)
    return snapshot


def relative(path: Path, target: Path) -> None:
    path.symlink_to(os.path.relpath(target, path.parent))


def link_to_a_link(path: Path, target: Path) -> None:
    middle = target.with_name(f"{target.name}.link")
    if not middle.is_symlink():
        middle.symlink_to(target.name)
    path.symlink_to(middle)


def linked(folder: Path) -> Path:
    path = folder.with_name("link")
    path.symlink_to(folder, target_is_directory=True)
    return path


LINKS: dict[str, Callable[[Path], Path]] = {
    "relative links": lambda folder: cached(folder, relative),
    "absolute links": lambda folder: cached(folder, Path.symlink_to),
    "hard links": lambda folder: cached(folder, Path.hardlink_to),
    "links to links": lambda folder: cached(folder, link_to_a_link),
    "a link to a folder": linked,
    "a link to a folder of links": lambda folder: linked(cached(folder, relative)),
}


def opened(folder: Path) -> Checkpoint:
    """Open a checkpoint and run all checks of a plan that read no numbers."""
    checkpoint = ModelSource("local", "chat", path=str(folder)).open()
    assert architecture(checkpoint).n_layers == LAYERS and checkpoint.tokenizer.is_fast
    return checkpoint


def assert_lossless(run: Run) -> None:
    assert set(arm_rows(run.prompts, "method")["lossless"]) == {"identical"}


@pytest.mark.parametrize(
    ("links", "file"),
    [*((links, INDEX) for links in LINKS), *(("relative links", file) for file in (WEIGHTS, PICKLE, PICKLE_INDEX))],
)
@pytest.mark.usefixtures("content_cache")
def test_weights_behind_links_are_those_of_a_plain_folder(links: str, file: str, folder: Path) -> None:
    """A blob of the hub's cache has no suffix; the link's name says how to read it."""
    rewrite(folder, file)
    plain = {path.name: content for path, content in contents(Checkpoint(folder).shards.values()).items()}
    place = LINKS[links](folder)
    for _ in range(2):  # the second time from the cache of contents
        by_file = contents(opened(place).shards.values())
        assert {path.name: content for path, content in by_file.items()} == plain
        assert {path.parent for path in by_file} == {place}


@pytest.mark.parametrize("place", ["cache", "snapshots"])
def test_the_folder_above_a_snapshot_names_it(place: str, folder: Path) -> None:
    snapshot = cached(folder, relative)
    above = snapshot.parents[1]
    with pytest.raises(ConfigError, match=rf"config\.json and weights.*such as {snapshot}$"):
        ModelSource("local", "chat", path=str(above if place == "cache" else above / "snapshots")).open()


def test_a_file_of_several_names_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, reads = module._read_weights, []
    monkeypatch.setattr(module, "_read_weights", lambda file: [reads.append(file), read(file)][1])
    names = [folder / WEIGHTS, folder / "hard.safetensors", folder / "soft.safetensors"]
    names[1].hardlink_to(names[0])
    names[2].symlink_to(names[0].name)
    by_file = contents(names)
    assert len(reads) == 1 and len({content.sha256 for content in by_file.values()}) == 1 and set(by_file) == set(names)


@pytest.mark.usefixtures("content_cache")
def test_a_blob_of_two_snapshots_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new commit that leaves the weights alone shares them with the old one."""
    first = cached(folder, relative)
    second = Path(shutil.copytree(first, first.with_name("b" * 40), symlinks=True))
    (before,) = contents([first / WEIGHTS]).values()
    monkeypatch.setattr(module, "_read_weights", lambda _: pytest.fail("it was read again"))
    assert list(contents([second / WEIGHTS]).values()) == [before]


@pytest.mark.parametrize(
    "name", [WEIGHTS, INDEX, "model-00002-of-00002.safetensors", "config.json", "generation_config.json"]
)
def test_a_link_to_nothing_is_an_incomplete_download(name: str, folder: Path) -> None:
    if name != WEIGHTS:
        rewrite(folder, INDEX)
    snapshot = cached(folder, relative)
    (snapshot / name).resolve().unlink()
    with pytest.raises(ConfigError, match=rf"{name}.*link to .*does not exist.*hf download") as caught:
        opened(snapshot)
    assert "\n" not in str(caught.value)


OLD, NEW, NORM = 1.0, 2.0, "model.norm.weight"
# what an older save left, what a newer one wrote, and what transformers loads: the first of its order
STALE = {
    "old index, its shards, new file": (INDEX, True, WEIGHTS, NEW),
    "old index without its shards, new file": (INDEX, False, WEIGHTS, NEW),
    "old file, new index and shards": (WEIGHTS, True, INDEX, OLD),
    "old pickle, new file": (PICKLE, True, WEIGHTS, NEW),
    "old pickle index, new file": (PICKLE_INDEX, True, WEIGHTS, NEW),
    "old pickle index without its shards, new index": (PICKLE_INDEX, False, INDEX, NEW),
    "old file, new pickle": (WEIGHTS, True, PICKLE, OLD),
    "old pickle index without its shards, new pickle": (PICKLE_INDEX, False, PICKLE, NEW),
    "old pickle index, its shards, new pickle": (PICKLE_INDEX, True, PICKLE, NEW),
}


@pytest.mark.parametrize("name", STALE)
def test_of_two_saves_that_is_read_which_transformers_loads(name: str, folder: Path) -> None:
    old, whole, new, value = STALE[name]
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    for file, there, mark in [(old, whole, OLD), (new, True, NEW)]:
        tensors[NORM].fill_(mark)
        save(tensors, folder / file, 2 if mark == OLD else 3)
        for path in [] if there else folder.glob(f"{file.split('.')[0]}-*"):
            path.unlink()
    theirs = AutoModelForCausalLM.from_pretrained(folder).model.norm.weight
    checkpoint = Checkpoint(folder)
    architecture(checkpoint)
    ours = checkpoint.read([NORM], torch.float32)[NORM]
    assert ours.equal(theirs) and ours.unique().tolist() == [value]


@pytest.mark.parametrize("name", ["model.fp16.safetensors", "consolidated.00.pth"])
def test_weights_of_a_name_that_is_not_read_are_named(name: str, folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / name)
    with pytest.raises(ConfigError, match=rf"model\.safetensors or .*not read: {name}$"):
        _ = Checkpoint(folder).headers


def test_a_pickle_from_before_archives_is_read(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    torch.save(tensors, folder / PICKLE, _use_new_zipfile_serialization=False)
    read = Checkpoint(folder).read([NORM], torch.float32)
    assert read[NORM].equal(tensors[NORM])


def test_weights_chosen_by_the_config_are_refused(folder: Path) -> None:
    edit(folder, transformers_weights="other.safetensors")
    with pytest.raises(ConfigError, match=r"config\.transformers_weights='other\.safetensors'"):
        architecture(Checkpoint(folder))


def edit(folder: Path, **keys: object) -> None:
    """Replace keys of config.json; None removes a key."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | keys
    kept = {key: value for key, value in config.items() if key not in keys or value is not None}
    (folder / "config.json").write_text(json.dumps(kept), encoding="utf-8")
