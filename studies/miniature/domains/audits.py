"""Audit reports of several sections with a long summary, in the format of GovReport.

The summary restates a report's findings in their order: each key sentence shortened, then the sentences of that subject
in a fixed order, though the section shuffles them among general ones, and at last which subject came next. All that a
summary takes from its report stands there, a thousand tokens back, after words that stand together nowhere else.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ssd_bench.conf import read_yaml
from studies.miniature.domains.item import Item

FINDINGS_PER_REPORT = (5, 11)  # drawn uniformly; a finding makes about 45 tokens of summary and 95 of report
FEWEST_FINDINGS = 2  # at any scale
GENERAL = (1, 2)  # general sentences of a finding's section
OTHER_GENERAL = 2  # and of any other section, at full scale


@dataclass(frozen=True)
class Finding:
    """A subject of the audit. Before each slot stand two words that stand together nowhere else in a report.

    Attributes:
        key: what was found, as the report says after the text `key`.
        short: what the summary makes of it after the text `short`; the figures keep their order.
        details: sentences about it, in the summary's order.
    """

    key: str
    short: str
    details: Sequence[str]


TEXTS = read_yaml(Path(__file__).with_suffix(".yaml"))
AGENCIES = [f"{rank} {field}" for rank in TEXTS["agencies"]["ranks"] for field in TEXTS["agencies"]["fields"]]
PROGRAMS = [f"{first} {last}" for first in TEXTS["programs"]["beginnings"] for last in TEXTS["programs"]["ends"]]
REGIONS: Sequence[str] = TEXTS["regions"]
LAST: str = TEXTS["last"]
FINDINGS = {name: Finding(**finding) for name, finding in TEXTS["findings"].items()}

# Words that tell what comes after them: the subjects, those before a figure, and two that share a beginning.
POINTERS = (
    *(*FINDINGS, "federal", "technical"),
    *(word for f in FINDINGS.values() for word in re.findall(r"(\w+) \{[a-d]", " ".join([f.short, *f.details]))),
)


def make(rng: random.Random, scale: float = 1.0) -> Item:
    """Make a report and its summary.

    Args:
        scale: in (0, 1]; below 1, fewer and shorter sections.
    """
    agency, program, purpose = rng.choice(AGENCIES), rng.choice(PROGRAMS), rng.choice(TEXTS["purposes"])
    budget, total = rng.randint(20, 98), rng.randint(3, 12)
    agreed = rng.randint(2, total)
    general = _General(rng)
    names = rng.sample(tuple(FINDINGS), max(FEWEST_FINDINGS, round(scale * rng.randint(*FINDINGS_PER_REPORT))))
    sections, restated = zip(*(_finding(rng, general, *pair, scale) for pair in zip(names, [*names[1:], LAST])))

    runs, begun = f"The {agency} runs the {program}, which {purpose}", TEXTS["begun"].format(name=names[0])
    background = [f"{runs}.", f"It has a budget of ${budget} million.", begun]
    scope = TEXTS["scope"].format_map(_slots(rng))
    comments = TEXTS["comments"].format_map(_slots(rng) | {"agency": agency})
    advice = f"We are making {total} recommendations. The agency accepted {agreed} of them."
    n_general = round(OTHER_GENERAL * scale)
    report = [
        f"{program}: {agency} Should Address Problems with {' and '.join(name.capitalize() for name in names[:2])}",
        _section(rng, "Background", [*background, *general.sentences(n_general)]),
        *([_section(rng, "Scope and Method", [scope, *general.sentences(n_general)])] if rng.random() < scale else []),
        *sections,
        *(
            [_section(rng, "Agency Comments", [comments, *general.sentences(n_general)])]
            if rng.random() < scale
            else []
        ),
        _section(rng, "Recommendations", [advice, *general.sentences(n_general)]),
    ]
    opening = f"{runs}, with a budget of ${budget} million. {begun}"
    closing = f"We are making {total} recommendations, and the agency accepted {agreed} of them."
    summary = " ".join([opening, *restated, closing])
    return Item({"report": "\n\n".join(report), "summary": summary}, summary)


def _finding(rng: random.Random, general: _General, name: str, following: str, scale: float) -> tuple[str, str]:
    """Return a finding's section, and its sentences in the summary."""
    finding = FINDINGS[name]
    slots = dict(zip("abcd", map(str, rng.choices(range(11, 99), k=4))))
    slots |= {"name": name, "next": following, "region": rng.choice(REGIONS)}
    key, short, *details = (
        text.format_map(slots)
        for text in (TEXTS["key"] + finding.key, TEXTS["short"] + finding.short, *finding.details, TEXTS["next"])
    )
    sentences = [key, *details, *general.sentences(round(scale * rng.randint(*GENERAL)))]
    return _section(rng, f"Findings on {name.capitalize()}", sentences), " ".join([short, *details])


def _section(rng: random.Random, heading: str, sentences: list[str]) -> str:
    return f"{heading}\n{' '.join(rng.sample(sentences, len(sentences)))}"


def _slots(rng: random.Random) -> dict[str, str]:
    """Draw the values for slots of general sentences."""
    return {"region": rng.choice(REGIONS), "small": str(rng.randint(2, 9)), "year": str(rng.randint(1980, 2000))}


class _General:
    """Sentences without a key number; an opening or ending is repeated only after all others were used."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._openings: list[str] = []
        self._endings: list[str] = []

    def sentences(self, count: int) -> list[str]:
        return [self._sentence() for _ in range(count)]

    def _sentence(self) -> str:
        self._openings = self._openings or self._rng.sample(TEXTS["openings"], len(TEXTS["openings"]))
        self._endings = self._endings or self._rng.sample(TEXTS["endings"], len(TEXTS["endings"]))
        return f"{self._openings.pop()} {self._endings.pop()}".format_map(_slots(self._rng))
