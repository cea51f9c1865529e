"""What a folder says of its weights before any is read: names, shapes, dtypes and files of its tensors."""

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
"""Kinds of weights files, the one that is preferred first, with their names in a folder."""

NOT_WEIGHTS = ("rotary_emb.inv_freq",)
"""Ends of names of tensors in old checkpoints that are derived from the config."""

UNREAD_SUFFIXES = (".safetensors", ".bin", ".pth", ".pt", ".gguf", ".npz")
"""Suffixes of weights files, which a message names where none has a name that is read."""

ROWS = 4096  # of two matrices that are compared at a time


@dataclass(frozen=True)
class Header:
    """What is said of a tensor: its file, its shape, and its dtype as safetensors names it."""

    shard: Path
    shape: tuple[int, ...]
    kind: str


@dataclass(frozen=True)
class Opened:
    """An open weights file: its headers, and what reads a tensor."""

    headers: dict[str, Header]
    get: Callable[[str], Tensor]


def reason(error: BaseException) -> str:
    """What a library's error says, in one line that is not long."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ConfigError: it cannot be read, or is another thing.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError("model", str(path), f"a file of JSON that can be read ({reason(error)})") from error
    if not isinstance(found, dict):
        raise ConfigError("model", str(path), f"an object of JSON, in braces; it is a {type(found).__name__}")
    return found


def check_no_code(found: Mapping[str, Any], path: Path) -> None:
    """Refuse a file that asks for code of its own folder.

    Raises:
        ConfigError: it has auto_map.
    """
    if found.get("auto_map"):
        allowed = f"a model without code of its own, which is never run: {path} has auto_map; remove it if all that is "
        raise ConfigError("model", str(path.parent), allowed + "asked for is a class of transformers")


@contextmanager
def silent() -> Iterator[None]:
    """Suppress transformers' warnings, which say of a fault what the error that ends it says too."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


@contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """A weights file, which leaves memory with this."""
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
            found = {n: Header(path, tuple(s.get_shape()), str(s.get_dtype())) for n, s in slices.items()}
            yield Opened(found, file.get_tensor)
    else:
        import torch

        # files from before PyTorch 1.6 are no archives: those are read whole
        state = torch.load(path, map_location="cpu", mmap=is_zipfile(path), weights_only=True)
        yield Opened({name: Header(path, tuple(t.shape), _kind(t.dtype)) for name, t in state.items()}, state.get)


def _kind(dtype: torch.dtype) -> str:
    """A dtype of PyTorch as safetensors names it; what it cannot be read as keeps its name."""
    name = str(dtype).removeprefix("torch.")
    return {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}.get(name, name)


def candidates() -> Iterator[tuple[str, str]]:
    """Yield the names that weights have, each with the suffix of its files, in the order of preference.

    transformers (`_get_resolved_checkpoint_files`) prefers a single file to an index next to it, which may be left from
    an older save of the same folder, and safetensors to pickles. It reads no other name unless it is told a `variant`.
    """
    for suffix, stem in STEMS.items():
        yield f"{stem}{suffix}", suffix
        yield f"{stem}{suffix}.index.json", suffix


def headers(folder: Path) -> dict[str, Header]:
    """Return the headers of all tensors of a folder, by name, from the file that transformers would load.

    Raises:
        ConfigError: no weights, a file that cannot be read, or an index that differs from its files.
    """
    for name, suffix in candidates():
        path = folder / name
        check_link(path)
        if path.is_file():
            return _indexed(path, suffix) if name.endswith(".index.json") else _of(path)
    names = sorted(path.name for path in folder.iterdir() if path.suffix in UNREAD_SUFFIXES) if folder.is_dir() else []
    allowed = "a folder with model.safetensors or pytorch_model.bin (or shards)"
    if names:
        allowed += f"; files of these names are not read: {', '.join(names[:3])}"
    raise ConfigError("model", str(folder), allowed)


def check_link(path: Path) -> None:
    """Refuse a link to a file that does not exist, as an interrupted or cleared download leaves in the hub's cache.

    Raises:
        ConfigError: names the link, its target and what to do.
    """
    if path.is_symlink() and not path.exists():
        allowed = f"a file: it is a link to {path.readlink()}, which does not exist; the download is incomplete or its "
        allowed += "files were deleted: download the model again (`hf download ID`)"
        raise ConfigError("model", str(path), allowed)


def same_numbers(first: Header, first_name: str, second: Header, second_name: str) -> bool:
    """Compare two matrices of files, block of rows by block of rows, so that memory stays bounded.

    Args:
        first_name: name of the tensor of `first` in its file; second_name: of `second`.
    """
    if first.shape != second.shape:
        return False
    with opened(first.shard) as left, opened(second.shard) as right:
        pairs = zip(left.get(first_name).split(ROWS), right.get(second_name).split(ROWS), strict=True)
        # float64 holds the numbers of every dtype exactly
        return all(a.equal(b) if a.dtype == b.dtype else a.double().equal(b.double()) for a, b in pairs)


def _of(shard: Path) -> dict[str, Header]:
    check_link(shard)
    if not shard.is_file():
        allowed = "a weights file that exists: the index of its folder names it; the download is incomplete, or the "
        raise ConfigError("model", str(shard), allowed + "index is of another model")
    try:
        with opened(shard) as file:
            return file.headers
    except Exception as error:  # safetensors' and pickle's errors have no common type
        raise ConfigError("model", str(shard), f"a weights file that can be read ({reason(error)})") from error


def _indexed(index: Path, suffix: str) -> dict[str, Header]:
    places = read_object(index).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise ConfigError("model", str(index), "an index whose weight_map has the name of a file for each tensor")
    for tensor, name in places.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or path.suffix != suffix:
            allowed = f"an index of *{suffix} files in its own folder: {tensor} is said to be in {name!r}"
            raise ConfigError("model", str(index), allowed)
    found = {name: _of(index.parent / name) for name in sorted(set(places.values()))}
    for tensor, name in places.items():
        if tensor not in found[name]:
            raise ConfigError("model", str(index), f"an index of what there is: {tensor} is not in {name}")
    for name, there in found.items():
        if unsaid := sorted(tensor for tensor in there if tensor not in places and not tensor.endswith(NOT_WEIGHTS)):
            allowed = f"an index of all that its files hold: {unsaid[0]} in {name} is not in it"
            raise ConfigError("model", str(index), allowed)
    return {tensor: found[name][tensor] for tensor, name in places.items()}
