"""What a folder says of its weights before any is read: names, shapes, dtypes and files of its tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ssd_bench.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

STEMS = {".safetensors": "model", ".bin": "pytorch_model"}
"""Kinds of weights files, the one that is preferred first, with their names in a folder."""

NOT_WEIGHTS = ("rotary_emb.inv_freq",)
"""Ends of names of tensors in old checkpoints that are derived from the config."""


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

        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        yield Opened({name: Header(path, tuple(t.shape), _kind(t.dtype)) for name, t in state.items()}, state.get)


def _kind(dtype: torch.dtype) -> str:
    """A dtype of PyTorch as safetensors names it; what it cannot be read as keeps its name."""
    name = str(dtype).removeprefix("torch.")
    return {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}.get(name, name)


def headers(folder: Path) -> dict[str, Header]:
    """The headers of all tensors of a folder, by name, as its index has them, else its one file.

    Raises:
        ConfigError: no weights, a file that cannot be read, or an index that differs from its files.
    """
    for suffix, stem in STEMS.items():
        index, single = folder / f"{stem}{suffix}.index.json", folder / f"{stem}{suffix}"
        if index.is_file():
            return _indexed(index, suffix)
        if single.is_file():
            return _of(single)
    raise ConfigError("model", str(folder), "a folder with model.safetensors or pytorch_model.bin (or shards)")


def _of(shard: Path) -> dict[str, Header]:
    if not shard.is_file():
        raise ConfigError("model", str(shard), "a weights file that is there: the index of its folder names it")
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
