"""Warnings of runs on the console: a single run shows all, a sweep each kind once."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SUFFIX = ".shown"
"""Ending of the files that note the kinds a sweep has shown."""


def warning_kind(text: str) -> str:
    """Return a warning's first clause, with N for every number: the same for all runs with this warning."""
    clause = re.split(r"[:;.] ", text, maxsplit=1)[0]
    return re.sub(r"(?<![\w.-])\d+(?:[.,]\d+)*(?!\w)", "N", clause)


@dataclass
class WarningLog:
    """Warnings of one run of a sweep.

    The kinds shown are noted on disk, because a launcher may run jobs in several processes.

    Attributes:
        folder: of the notes, the same for all jobs of the sweep.
        sweep: unique name.
        kinds: kinds of this run's warnings so far.
    """

    folder: Path
    sweep: str
    kinds: list[str] = field(default_factory=list)

    def is_new(self, text: str) -> bool:
        """Count a warning, and return whether it is the sweep's first of its kind."""
        if (kind := warning_kind(text)) in self.kinds:
            return False
        self.kinds.append(kind)
        digest = hashlib.sha256(kind.encode()).hexdigest()[:20]
        try:
            (self.folder / f".{self.sweep}.{digest}{SUFFIX}").touch(exist_ok=False)
        except FileExistsError:
            return False
        except OSError:  # a full disk, say: rather show the kind again than fail a run that is on record
            pass
        return True


def new_warnings(texts: Iterable[str], log: WarningLog | None) -> list[str]:
    """Return the warnings to show: all of a single run (None); in a sweep only new kinds."""
    return [text for text in texts if log is None or log.is_new(text)]


def clear_notes(folder: Path, sweep: str) -> None:
    """Remove an ended sweep's notes."""
    for path in folder.glob(f".{sweep}.*{SUFFIX}"):
        path.unlink(missing_ok=True)


def count_warnings(kinds_by_run: Sequence[Iterable[str]]) -> str:
    """Return a line per kind with its number of runs, or ""."""
    counts = Counter(kind for kinds in kinds_by_run for kind in set(kinds))
    lines = [f"  {count} of {len(kinds_by_run)} runs: {kind}" for kind, count in counts.most_common()]
    return "\n".join(["Warnings, each in full at the first run that has it:", *lines] if lines else [])
