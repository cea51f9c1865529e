"""What weights files hold, by content: a hash of each, and the number in it that is farthest from 0."""

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
from ssd_bench.model.checkpoint import cache_dir
from ssd_bench.model.headers import NOT_WEIGHTS, open_weights
from ssd_bench.records.files import write_atomic
from ssd_bench.records.lease import hold_lease

if TYPE_CHECKING:
    import torch

CACHED_BYTES, REPORTED_BYTES = 2**26, 2**30  # bytes: fewer are read in no time; as many take a while


@dataclass(frozen=True)
class Content:
    """What is in a weights file.

    Attributes:
        sha256: of the file, hex.
        farthest: the number farthest from 0; NaN or infinite if there is such a one.
        tensor: whose number that is.
    """

    sha256: str
    farthest: float
    tensor: str


def contents(files: Iterable[Path]) -> dict[Path, Content]:
    """Return what is in each of some weights files; a large one is read once, and again when its size or time changes.

    The result is kept in the cache folder; where that cannot be written, files are read each time. Names of one file
    (links, as in the hub's cache) count as that file: it is read once.
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


def check_finite(found: dict[Path, Content], dtype: torch.dtype) -> None:
    """Refuse weights that are not finite in the dtype that they are run in.

    Raises:
        ConfigError: names the file and the tensor.
    """
    import torch

    for file, content in found.items():
        if not torch.tensor(content.farthest, dtype=torch.float64).to(dtype).isfinite():
            allowed = f"weights that are finite in {str(dtype).removeprefix('torch.')}: {content.tensor} is not"
            raise ConfigError("model", str(file), allowed)


def _content(file: Path) -> Content:
    """Return what is in a file, from the cache folder if it is there.

    The file is read under its name in the model's folder: in the hub's cache that is a link to a blob whose name has no
    suffix, and the suffix says how to read it. The cache goes by the file behind the link.
    """
    real, stat = file.resolve(), file.stat()
    if stat.st_size < CACHED_BYTES:
        return _read(file)
    key = hashlib.sha256(f"{real}|{stat.st_size}|{stat.st_mtime_ns}".encode()).hexdigest()[:24]
    kept = cache_dir() / "contents" / f"{key}.json"
    content = _kept(kept)
    if content is None:
        # a cache that cannot be written is done without; of processes that start at once one reads
        with suppress(OSError), hold_lease(kept.parent, f"{key}.lease"):
            content = _kept(kept) or _read(file)
            write_atomic(kept, json.dumps(asdict(content)).encode())
    return content or _read(file)


def _kept(path: Path) -> Content | None:
    try:
        return Content(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):  # not there, or damaged
        return None


def _read(file: Path) -> Content:
    if (size := file.stat().st_size) >= REPORTED_BYTES:
        print(f"reading {file.name} ({size / 1e9:.1f} GB) once, for its hash and its range", file=sys.stderr)
    with ThreadPoolExecutor(1) as beside:
        hashed = beside.submit(_hash, file)
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
