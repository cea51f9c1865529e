"""Headers of a folder's weights: names, shapes, dtypes and files of the tensors, without reading the tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from zipfile import is_zipfile

from ssd_bench.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

STEMS = {".safetensors": "model", ".bin": "pytorch_model"}
"""Stem of a weights file's name by its suffix, the preferred suffix first."""

NOT_WEIGHTS = ("rotary_emb.inv_freq",)
"""Suffixes of tensors in old checkpoints that are derived from the config."""

LISTED_SUFFIXES = (".safetensors", ".bin", ".pth", ".pt", ".gguf", ".npz")
"""Suffixes of files listed in the message about a folder without known weights files."""

ROWS = 4096  # rows compared at a time


@dataclass(frozen=True)
class Header:
    """A tensor's file, shape, and dtype in safetensors' notation."""

    shard: Path
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class WeightsFile:
    """Functions of an open weights file: its headers, and a tensor by name (a part of the mapped file)."""

    headers: Callable[[], dict[str, Header]]
    get: Callable[[str], Tensor]


def reason(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        ConfigError: the file cannot be read, or holds no object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError("model", str(path), f"a readable JSON file ({reason(error)})") from error
    if not isinstance(content, dict):
        raise ConfigError("model", str(path), f"a JSON object; it is a {type(content).__name__}")
    return content


def check_no_code(content: Mapping[str, Any], path: Path) -> None:
    """Raise ConfigError if a JSON file asks transformers to run the checkpoint's own code (auto_map)."""
    if content.get("auto_map"):
        expected = f"a model without custom code, which is never run: {path} has auto_map; remove it if the class "
        raise ConfigError("model", str(path.parent), expected + "that it names is in transformers")


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Suppress transformers' warnings while loading; if it fails, its error has the same content."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


@contextmanager
def open_weights(path: Path) -> Iterator[WeightsFile]:
    """Open a weights file; its pages leave memory when the context ends."""
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:

            def headers() -> dict[str, Header]:
                slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (safe_open is no mapping)
                return {n: Header(path, tuple(s.get_shape()), str(s.get_dtype())) for n, s in slices.items()}

            yield WeightsFile(headers, file.get_tensor)
    else:
        import torch

        # files from before PyTorch 1.6 are no zip archives and cannot be memory-mapped
        state = torch.load(path, map_location="cpu", mmap=is_zipfile(path), weights_only=True)
        of_state = {name: Header(path, tuple(t.shape), _dtype_name(t.dtype)) for name, t in state.items()}
        yield WeightsFile(lambda: of_state, state.get)


def _dtype_name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}.get(name, name)


def weights_file_names() -> Iterator[tuple[str, str]]:
    """Yield the names of weights files and indices with their files' suffix, in the order of preference."""
    # as in transformers (`_get_resolved_checkpoint_files`): an index next to a single file may be of an older save
    for suffix, stem in STEMS.items():
        yield f"{stem}{suffix}", suffix
        yield f"{stem}{suffix}.index.json", suffix


def read_headers(folder: Path) -> dict[str, Header]:
    """Return all tensors' headers, by name, from the files that transformers would load.

    Raises:
        ConfigError: no weights, an unreadable file, or an index that differs from its files.
    """
    for name, suffix in weights_file_names():
        path = folder / name
        check_link(path)
        if path.is_file():
            return _index_headers(path, suffix) if name.endswith(".index.json") else _file_headers(path)
    names = sorted(path.name for path in folder.iterdir() if path.suffix in LISTED_SUFFIXES) if folder.is_dir() else []
    expected = "a folder with model.safetensors or pytorch_model.bin (or shards)"
    if names:
        expected += f"; files of these names are not read: {', '.join(names[:3])}"
    raise ConfigError("model", str(folder), expected)


def check_link(path: Path) -> None:
    """Raise ConfigError for a dangling link, as incomplete or deleted downloads leave in the hub's cache."""
    if path.is_symlink() and not path.exists():
        expected = f"a file: it is a link to {path.readlink()}, which does not exist; the download is incomplete or "
        expected += "its files were deleted: download the model again (`hf download ID`)"
        raise ConfigError("model", str(path), expected)


def same_numbers(first: Header, first_name: str, second: Header, second_name: str) -> bool:
    """Return whether two matrices on disk are equal, comparing `ROWS` rows at a time to bound memory."""
    if first.shape != second.shape:
        return False
    with open_weights(first.shard) as left, open_weights(second.shard) as right:
        pairs = zip(left.get(first_name).split(ROWS), right.get(second_name).split(ROWS), strict=True)
        # float64 holds the numbers of every dtype exactly
        return all(a.equal(b) if a.dtype == b.dtype else a.double().equal(b.double()) for a, b in pairs)


def _file_headers(shard: Path) -> dict[str, Header]:
    check_link(shard)
    if not shard.is_file():
        expected = "a weights file that exists: the index of its folder names it; the download is incomplete, or the "
        raise ConfigError("model", str(shard), expected + "index is of another model")
    try:
        with open_weights(shard) as file:
            return file.headers()
    except Exception as error:  # safetensors' and pickle's errors have no common type
        raise ConfigError("model", str(shard), f"a readable weights file ({reason(error)})") from error


def _index_headers(index: Path, suffix: str) -> dict[str, Header]:
    """Return the headers of an index's files; check that both name the same tensors."""
    file_of = read_object(index).get("weight_map")
    if not isinstance(file_of, dict) or not file_of or not all(isinstance(name, str) for name in file_of.values()):
        raise ConfigError("model", str(index), "an index whose weight_map has the name of a file for each tensor")
    for tensor, name in file_of.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or path.suffix != suffix:
            expected = f"an index of *{suffix} files in its own folder: it places {tensor} in {name!r}"
            raise ConfigError("model", str(index), expected)
    by_file = {name: _file_headers(index.parent / name) for name in sorted(set(file_of.values()))}
    for tensor, name in file_of.items():
        if tensor not in by_file[name]:
            raise ConfigError("model", str(index), f"an index of existing tensors: {tensor} is not in {name}")
    for file, tensors in by_file.items():
        if unlisted := sorted(name for name in tensors if name not in file_of and not name.endswith(NOT_WEIGHTS)):
            expected = f"an index of all tensors of its files: {unlisted[0]} in {file} is not in it"
            raise ConfigError("model", str(index), expected)
    return {tensor: by_file[name][tensor] for tensor, name in file_of.items()}
