"""Findings on a record, and the verdict on each of its parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ssd_bench.records.fault import NAMES, Key, answer_name

REPRODUCED, DIFFERENT, OPEN = "reproduced", "not reproduced", "not judged"
"""Verdicts on a part; one not judged, with a reason, does not count against the record."""

HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True)
class RecordFinding:
    """Something in a record that is wrong, or that a second run did not give.

    Attributes:
        part: table of the record, `run.json`, or part of the reproduction.
        key: the answer; None: the whole part.
    """

    part: str
    text: str
    key: Key | None = None

    def __str__(self) -> str:
        place = "" if self.key is None else f"{answer_name(self.key)}: "
        return f"{self.part}: {place}{self.text}"

    @property
    def plain(self) -> dict[str, Any]:
        """The finding as plain values for JSON."""
        place = {} if self.key is None else zip(NAMES, (*map(int, self.key[:3]), self.key[3]), strict=True)
        return {"part": self.part, **dict(place), "text": self.text}


@dataclass(frozen=True)
class PartVerdict:
    """Verdict on one part of a record.

    Attributes:
        verdict: `REPRODUCED`, `DIFFERENT` or `OPEN`.
        recorded, again: number or count of the record, and of the second run, as text.
        reason: what was compared, or why it is not judged.
        findings: every answer or number that differs.
    """

    part: str
    verdict: str
    recorded: str = ""
    again: str = ""
    reason: str = ""
    findings: Sequence[RecordFinding] = ()

    @classmethod
    def judged(cls, part: str, findings: Sequence[RecordFinding], recorded: str, again: str) -> PartVerdict:
        """Return the verdict on a part, reproduced if nothing differs."""
        return cls(part, DIFFERENT if findings else REPRODUCED, recorded, again, findings=tuple(findings))


@dataclass(frozen=True)
class Difference:
    """Property of the machine, software or inputs that differs from the recorded run's."""

    name: str
    recorded: Any
    here: Any

    def __str__(self) -> str:
        values = self.recorded, self.here
        recorded, here = (str(value)[:12] if HASH.fullmatch(str(value)) else value for value in values)
        return f"{self.name}: {recorded} recorded, {here} here"


@dataclass(frozen=True)
class Report:
    """Result of one record's reproduction.

    Attributes:
        record: folder of the record.
        prompts: number of prompts run again, of `total`.
        faults: faults of the record itself.
        notes: departures of the second run, and the parts that may therefore differ.
        parts: verdicts, in the report's order; empty if nothing was run.
        stopped: why nothing was run again, or "".
    """

    record: str
    prompts: int
    total: int
    faults: Sequence[RecordFinding] = ()
    differences: Sequence[Difference] = ()
    notes: Sequence[str] = ()
    parts: Sequence[PartVerdict] = ()
    stopped: str = ""

    @property
    def is_reproduced(self) -> bool:
        """Whether the record has no fault and nothing judged differs."""
        return not self.faults and not any(part.verdict == DIFFERENT for part in self.parts)

    @property
    def plain(self) -> dict[str, Any]:
        """The report as plain values for JSON."""
        return {
            "record": self.record,
            "reproduced": self.is_reproduced,
            "prompts": self.prompts,
            "total": self.total,
            "stopped": self.stopped,
            "faults": [fault.plain for fault in self.faults],
            "differences": [asdict(difference) for difference in self.differences],
            "notes": list(self.notes),
            "parts": [vars(part) | {"findings": [finding.plain for finding in part.findings]} for part in self.parts],
        }
