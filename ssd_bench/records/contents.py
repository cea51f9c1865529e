"""Contents of weights files: a hash of each file, and the number in it that is farthest from 0."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ssd_bench.errors import ConfigError
from ssd_bench.lease import hold_lease
from ssd_bench.model.headers import NOT_WEIGHTS, open_weights
from ssd_bench.paths import cache_dir
from ssd_bench.records.files import write_atomic

if TYPE_CHECKING:
    import torch

CACHED_BYTES = 2**26  # results of smaller files are not cached: reading them takes no time
REPORTED_BYTES = 2**30  # reading a file of this size takes long enough for a message


@dataclass(frozen=True)
class Content:
    """Content of a weights file.

    Attributes:
        sha256: hash of the file, hex.
        farthest: the number farthest from 0; NaN or infinite if the file has such a number.
        tensor: name of the tensor with this number.
    """

    sha256: str
    farthest: float
    tensor: str


def contents(files: Iterable[Path]) -> dict[Path, Content]:
    """Return the content of each weights file.

    A large file is read once, and again when its size or time changes: results are kept in the cache folder. If that
    cannot be written, files are read each time. Several names of one file (links, as in the hub's cache) are read once.
    """
    by_file: dict[tuple[int, int], Content] = {}
    result = {}
    for file in sorted(set(files)):
        stat = file.stat()
        identity = stat.st_dev, stat.st_ino
        if identity not in by_file:
            by_file[identity] = _content(file)
        result[file] = by_file[identity]
    return result


def check_finite(contents_by_file: dict[Path, Content], dtype: torch.dtype) -> None:
    """Refuse weights that are not finite in the dtype of the run.

    Raises:
        ConfigError: a number is not finite; names the file and the tensor.
    """
    import torch

    for file, content in contents_by_file.items():
        if not torch.tensor(content.farthest, dtype=torch.float64).to(dtype).isfinite():
            expected = f"weights that are finite in {str(dtype).removeprefix('torch.')}: {content.tensor} is not"
            raise ConfigError("model", str(file), expected)


def _content(file: Path) -> Content:
    """Return the content of a file, from the cache folder if possible.

    The file is read by its name in the model's folder, because the suffix says how to read it; in the hub's cache this
    name is a link to a blob without a suffix. The cache key is of the file behind the link.
    """
    real, stat = file.resolve(), file.stat()
    if stat.st_size < CACHED_BYTES:
        return _read(file)
    key = hashlib.sha256(f"{real}|{stat.st_size}|{stat.st_mtime_ns}".encode()).hexdigest()[:24]
    cached_file = cache_dir() / "contents" / f"{key}.json"
    content = _cached(cached_file)
    if content is None:
        # works without a cache that cannot be written; of processes that start at once only one reads the file
        with suppress(OSError), hold_lease(cached_file.parent, f"{key}.lease"):
            content = _cached(cached_file) or _read(file)
            write_atomic(cached_file, json.dumps(asdict(content)).encode())
    return content or _read(file)


def _cached(path: Path) -> Content | None:
    try:
        return Content(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):  # missing or damaged
        return None


def _read(file: Path) -> Content:
    if (size := file.stat().st_size) >= REPORTED_BYTES:
        print(f"reading {file.name} ({size / 1e9:.1f} GB) once, to hash and check its values", file=sys.stderr)
    with ThreadPoolExecutor(1) as pool:
        hashed = pool.submit(_hash, file)
        farthest, tensor = _farthest(file)
        return Content(hashed.result(), farthest, tensor)


def _hash(file: Path) -> str:
    with file.open("rb") as opened_file:
        return hashlib.file_digest(opened_file, "sha256").hexdigest()


def _farthest(file: Path) -> tuple[float, str]:
    best = (0.0, "")
    with open_weights(file) as weights:
        for name in weights.headers:
            if name.endswith(NOT_WEIGHTS):
                continue
            low, high = weights.get(name).aminmax()  # each NaN if any number is
            number = max(-float(low), float(high))
            if not number <= best[0]:
                best = (number, name)
            if number != number:
                break
    return best
