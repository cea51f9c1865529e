"""Paths in options: the only place where the text of an option becomes an absolute path."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ssd_bench.errors import ConfigError, shortened

URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|file:", re.IGNORECASE)
LONGEST_NAME = 200  # bytes; file systems take 255, and files are written first as NAME.(32 digits).tmp
LONGEST_PATH = 3500  # bytes; Linux takes 4095, and a record's files are below its runs_dir


def local_path(field: str, value: object) -> Path:
    """Return the absolute path that an option names, with a leading ~ expanded.

    Symbolic links are not resolved, so that a record keeps the path on the command line.

    Args:
        field: the option, for errors.

    Raises:
        ConfigError: not a text, a URI, or a path that no file system accepts.
    """
    if not isinstance(value, str | Path) or not str(value):
        raise ConfigError(field, value, "a path")
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


def display_path(path: Path) -> str:
    """Return a path for documents: relative to the current folder if it is below it, else absolute."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def cache_dir() -> Path:
    """Return the folder of converted checkpoints and latency profiles: `$SSD_BENCH_CACHE` or `~/.cache/ssd-bench`."""
    return Path(os.environ.get("SSD_BENCH_CACHE") or Path.home() / ".cache" / "ssd-bench")
