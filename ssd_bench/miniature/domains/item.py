"""What a domain of the miniature's corpus makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Item:
    """One generated example.

    Attributes:
        row: the fields that the domain's task reads from a data source, without `id`.
        answer: what a model should write after the task's prompt.
    """

    row: Mapping[str, str]
    answer: str
