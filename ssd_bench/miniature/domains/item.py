"""What a domain of the miniature's corpus makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Item:
    """One generated example.

    Attributes:
        row: the fields that the domain's task reads from a data source, without `id`; `Domain.row` of the corpus may
            name them anew.
        answer: what a model should write after the task's prompt.
        further: of a conversation, what the user says next and what a model should write then.
    """

    row: Mapping[str, Any]
    answer: str
    further: Sequence[tuple[str, str]] = ()
