"""Texts of the corpus: word lists, templates and sentences of a domain, in the YAML file next to its generator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def read_texts(module: str) -> dict[str, Any]:
    """Return the texts of a domain.

    Args:
        module: `__file__` of its generator.
    """
    text = Path(module).with_suffix(".yaml").read_text(encoding="utf-8")
    texts: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return texts
