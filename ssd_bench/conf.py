"""The folder of configs and the choices of its groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

CONF = next(path for path in (Path(__file__).with_name("conf"), Path(__file__).parents[1] / "conf") if path.is_dir())
"""Folder of configs: in an installed package, or at the top level of a clone."""

REFERENCE = CONF.parent / "runs" / "reference"
"""Folder of the committed records; only in a clone."""

CHOSEN = ("model", "method", "task", "data", "hardware", "decode")
"""Config groups; a run has one choice of each."""


def choices(group: str) -> list[str]:
    """Return every choice of a group of `conf`, sorted."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file.

    Raises:
        yaml.YAMLError: the file is not valid YAML.
    """
    # prefer the C parser, which is faster: a report reads all run sets
    return yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
