"""Files of a model, for tests that change them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ssd_bench.records import contents


@pytest.fixture
def folder(small_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_checkpoint, tmp_path / "model"))


@pytest.fixture
def content_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of what is in weights files, even in small ones."""
    monkeypatch.setenv("SSD_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(contents, "MIN_CACHED_BYTES", 0)
    return tmp_path / "cache"
