"""Items of the miniature's corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Item:
    """One generated example.

    Attributes:
        row: the fields that the domain's task reads from a data source, without `id`; `Domain.row` of the corpus may
            rename them.
        answer: the reference answer to the task's prompt.
        further: later turns of a conversation: the user's message and the reference answer.
    """

    row: Mapping[str, Any]
    answer: str
    further: Sequence[tuple[str, str]] = ()
