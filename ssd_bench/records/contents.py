"""Contents of weights files: each file's hash and largest absolute weight."""

from __future__ import annotations

import hashlib
import json
import math
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
from ssd_bench.paths import cache_dir, file_hash, write_atomic

if TYPE_CHECKING:
    import torch

MIN_CACHED_BYTES = 2**26  # smaller files are read again each time, which takes less than a second
MIN_REPORTED_BYTES = 2**30  # reading a file of this size takes long enough for a message


@dataclass(frozen=True)
class Content:
    """Content of a weights file.

    Attributes:
        sha256: hex.
        farthest: largest absolute value of a weight; NaN if any is NaN, else infinity if any is infinite.
        tensor: its tensor's name.
    """

    sha256: str
    farthest: float
    tensor: str


def contents(files: Iterable[Path]) -> dict[Path, Content]:
    """Return the content of each weights file.

    Large files' results are cached until size or modification time change. A file with several names (links, as in the
    hub's cache) is read once.
    """
    by_inode: dict[tuple[int, int], Content] = {}
    by_name = {}
    for file in sorted(set(files)):
        stat = file.stat()
        inode = stat.st_dev, stat.st_ino  # equal for all names of a file
        if inode not in by_inode:
            by_inode[inode] = _cached_content(file)
        by_name[file] = by_inode[inode]
    return by_name


def check_finite(contents_by_file: dict[Path, Content], dtype: torch.dtype) -> None:
    """Refuse weights that are not finite in the run's dtype.

    Raises:
        ConfigError: a weight is not finite; names file and tensor.
    """
    import torch

    for file, content in contents_by_file.items():
        # if the largest absolute value stays finite in the dtype, every weight of the file does
        if not torch.tensor(content.farthest, dtype=torch.float64).to(dtype).isfinite():
            dtype_name = str(dtype).removeprefix("torch.")
            expected = f"weights that are finite in {dtype_name}"
            largest = f"the largest magnitude in {content.tensor} is {content.farthest:g}"
            raise ConfigError("model", str(file), f"{expected}; {largest}")


def _cached_content(file: Path) -> Content:
    """Return a file's content, from the cache folder if possible.

    In the hub's cache a name in the model's folder links to a blob without a suffix. The file is read by its name, for
    its suffix; the cache key has the path of the blob, which snapshots may share.
    """
    blob, stat = file.resolve(), file.stat()
    if stat.st_size < MIN_CACHED_BYTES:
        return _read_weights(file)
    key = hashlib.sha256(f"{blob}|{stat.st_size}|{stat.st_mtime_ns}".encode()).hexdigest()[:24]
    cache_file = cache_dir() / "contents" / f"{key}.json"
    content = _read_cache(cache_file)
    if content is None:
        # lease: of processes that start together, one reads the file and the others wait for its result
        # OSError: the cache folder cannot be written; the last line then reads the file
        with suppress(OSError), hold_lease(cache_file.parent, f"{key}.lease"):
            content = _read_cache(cache_file) or _read_weights(file)
            write_atomic(cache_file, json.dumps(asdict(content)).encode())
    return content or _read_weights(file)


def _read_cache(cache_file: Path) -> Content | None:
    try:
        return Content(**json.loads(cache_file.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _read_weights(file: Path) -> Content:
    """Hash a file and search its tensors in two threads, since both read the whole file."""
    if (size := file.stat().st_size) >= MIN_REPORTED_BYTES:
        print(f"reading {file.name} ({size / 1e9:.1f} GB) once, to hash and check its weights", file=sys.stderr)
    with ThreadPoolExecutor(1) as pool:
        sha256 = pool.submit(file_hash, file)
        farthest, tensor = _largest_weight(file)
        return Content(sha256.result(), farthest, tensor)


def _largest_weight(file: Path) -> tuple[float, str]:
    largest = (0.0, "")
    with open_weights(file) as weights:
        names = [name for name in weights.headers() if not name.endswith(NOT_WEIGHTS)]
    # a file is opened anew for each tensor, or the pages of all would stay in memory; only a pickle takes long to open
    for group in [[name] for name in names] if file.suffix == ".safetensors" else [names]:
        with open_weights(file) as weights:
            for name in group:
                low, high = weights.get(name).aminmax()  # both are NaN if a weight is
                magnitude = max(-float(low), float(high))
                if not magnitude <= largest[0]:  # unlike `>`, also true for NaN
                    largest = (magnitude, name)
                if math.isnan(magnitude):
                    return largest
    return largest
