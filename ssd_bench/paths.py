"""Paths: absolute options (made only here), atomic writes, hashes, files of a folder of records, the cache folder."""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ssd_bench.errors import NOT_GIVEN, ConfigError, shortened

URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|file:", re.IGNORECASE)
REFERENCE_FOLDER = "reference"
"""Folder of the project's committed records below `runs`, read only if the option names it or a folder in it."""
UNPACKING = ".unpacking"
"""Suffix of folders into which a pack is being unpacked; a killed process leaves them."""
LONGEST_NAME = 200  # bytes; file systems take 255, and files are written first as NAME.(32 digits).tmp
LONGEST_PATH = 3500  # bytes; Linux takes 4095, and a record's files are below its runs_dir


def local_path(field: str, value: object) -> Path:
    """Return an option's absolute path, with a leading ~ expanded.

    Symbolic links are not resolved, so that a record keeps the command line's path.

    Raises:
        ConfigError: not a text, a URI, or a path that no file system accepts.
    """
    if not isinstance(value, str | Path) or not str(value):
        raise ConfigError(field, NOT_GIVEN if value is None else value, "a path")
    text = str(value)
    if URI.match(text):
        hint = " (file:///DIR is /DIR)" if text.lower().startswith("file:") else ""
        expected = f"a path on this machine, not a URI: download or mount what it names, and give that path{hint}"
        raise ConfigError(field, text, expected)
    try:
        encoded = os.path.abspath(os.path.expanduser(text)).encode()
    except UnicodeEncodeError:
        raise ConfigError(field, text, "a path in UTF-8, because records hold it as text") from None
    except FileNotFoundError:
        raise ConfigError(field, text, "an absolute path, because the current folder was deleted") from None
    if any(ord(character) < 32 for character in text):
        raise ConfigError(field, text, "a path without line breaks and other control characters")
    if len(encoded) > LONGEST_PATH or max(map(len, encoded.split(b"/"))) > LONGEST_NAME:
        expected = f"a path of at most {LONGEST_PATH} bytes, each name in it of at most {LONGEST_NAME}"
        raise ConfigError(field, shortened(text), expected)
    return Path(encoded.decode())


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data`; a kill or power cut leaves the old or the new file complete."""
    tmp = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")  # processes of several nodes may replace it at once
    try:
        with open(tmp, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(tmp, path)
    except OSError as error:
        with suppress(OSError):
            tmp.unlink(missing_ok=True)  # a full disk needs the space
        error.filename = str(path)  # an error of a full disk does not name it
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself is durable only once its directory is
    finally:
        os.close(folder)


def file_hash(path: Path) -> str:
    """Return a file's SHA-256, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def record_files(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the files anywhere under a folder of records, except its subfolders `reference`.

    Questions about a user's records must not be answered from the project's. The pattern is NAME or FOLDER/NAME,
    perhaps with wildcards.
    """
    for path, folders, files in os.walk(folder):  # unlike rglob it tolerates folders that another process removes
        folders[:] = [name for name in folders if name != REFERENCE_FOLDER and not name.endswith(UNPACKING)]
        for name in files:
            file = Path(path, name)
            if file.relative_to(folder).match(pattern):
                yield file


def reference_hint(folder: Path) -> str:
    """Return a clause on reading the project's records, for a folder without other runs, or ""."""
    reference = folder / REFERENCE_FOLDER
    text = f"; to read the project's own toy-model runs: runs_dir={display_path(reference)}"
    return text if reference.is_dir() else ""


def display_path(path: Path) -> str:
    """Return a path for documents: relative below the current folder, else absolute."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def cache_dir() -> Path:
    """Return the cache folder, `$SSD_BENCH_CACHE` or `~/.cache/ssd-bench`."""
    return Path(os.environ.get("SSD_BENCH_CACHE") or Path.home() / ".cache" / "ssd-bench")
