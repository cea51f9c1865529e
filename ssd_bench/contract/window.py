"""A window of the cache: the positions that a draft's attentions read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

Length = TypeVar("Length", int, float)


@dataclass(frozen=True)
class Window:
    """The first and last positions, which a draft's attentions read. Verification reads all.

    Source: StreamingLLM (Xiao et al., arXiv:2309.17453), section 3.2; as a self-draft, MagicDec (arXiv:2408.11049).

    Attributes:
        sinks: positions at the beginning of the sequence, at least 0.
        recent: positions at its end, the drafted token's own included, at least 1.
    """

    sinks: int
    recent: int

    def count_read(self, length: Length) -> Length:
        """Return the number of positions read among `length`, which may be a mean and thus no integer."""
        return min(length, self.sinks + self.recent)

    def unread(self, prefix_len: int) -> tuple[int, int]:
        """Return the prefix rows [first, end) that the position `prefix_len` does not read; (0, 0) if it reads all."""
        end = prefix_len + 1 - self.recent  # the position at prefix_len is one of the recent ones
        return (self.sinks, end) if end > self.sinks else (0, 0)
