"""A folder with a model, for tests that change its files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def folder(small_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_checkpoint, tmp_path / "model"))
