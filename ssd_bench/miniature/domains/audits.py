"""Audit reports of several sections with a long summary, in the format of GovReport.

The summary restates a report's findings in their order: each key sentence shortened, then the sentences of that subject
in a fixed order, though the section shuffles them among general ones. Its figures lie a thousand tokens back, and
words that stand nowhere else lead to each, so that they can be found.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ssd_bench.miniature.domains.item import Item
from ssd_bench.miniature.domains.reports import (
    AGENCIES,
    COMMENTS,
    ENDINGS,
    OPENINGS,
    PROGRAMS,
    PURPOSES,
    REGIONS,
    SCOPE,
)

TASK = "govreport"
FINDINGS_PER_REPORT = (4, 10)  # drawn uniformly; a finding makes about 60 tokens of summary and 110 of report
FEWEST_FINDINGS = 2  # at any scale
GENERAL = (1, 2)  # general sentences of a finding's section
OTHER_GENERAL = 2  # and of any other section, at full scale


@dataclass(frozen=True)
class Finding:
    """A subject of the audit.

    Attributes:
        key: what was found, as the report says after `KEY`.
        short: what the summary makes of it after `SHORT`; the figures keep their order.
        details: sentences about it, in the summary's order; the three words before a slot stand nowhere else.
    """

    key: str
    short: str
    details: tuple[str, ...]


KEY, SHORT = "We found problems with {name}: ", "On {name}, "
FINDINGS = {
    "staffing": Finding(
        "{part} of {total} positions in the program were vacant in {year}.",
        "{part} of {total} positions were vacant in {year}.",
        (
            "Hiring a new inspector takes about {small} months in the {region} region.",
            "The pay for technical jobs has not changed since {year}.",
        ),
    ),
    "costs": Finding(
        "the program spent ${part} million more than the ${total} million planned for {year}.",
        "the program spent ${part} million above the ${total} million planned for {year}.",
        (
            "Rent for the {region} warehouse rose by {many} percent.",
            "Fuel prices were taken from a table made in {year}.",
        ),
    ),
    "deadlines": Finding(
        "{part} of {total} projects were completed after their due date in {year}.",
        "{part} of {total} projects were completed late in {year}.",
        (
            "Delays in the {region} region lasted {small} months on average.",
            "Permits arrived {many} days later than planned.",
        ),
    ),
    "records": Finding(
        "{part} of {total} files that we tested for {year} lacked a required document.",
        "{part} of {total} files tested for {year} lacked a document.",
        (
            "Paper copies from the {region} region were stored without an index.",
            "Clerks needed {many} minutes to find a folder from {year}.",
        ),
    ),
    "training": Finding(
        "{part} of {total} supervisors had not finished the required course by {year}.",
        "{part} of {total} supervisors had not finished the course by {year}.",
        (
            "The course must be repeated after {small} years.",
            "On the final test, {many} percent of the answers were wrong.",
        ),
    ),
    "complaints": Finding(
        "{part} of {total} letters that the public sent in {year} were never answered.",
        "{part} of {total} letters sent in {year} were never answered.",
        (
            "The telephone line of the {region} region was closed for {small} weeks.",
            "Callers waited {many} minutes before anyone spoke with them.",
        ),
    ),
    "equipment": Finding(
        "{part} of {total} machines that we inspected in {year} did not meet the technical standard.",
        "{part} of {total} machines inspected in {year} failed the standard.",
        (
            "Spare parts were missing at {small} workshops in the {region} region.",
            "A replacement for the oldest pump was first requested in {year}.",
        ),
    ),
    "travel": Finding(
        "{part} of {total} trips that employees billed in {year} had no approved purpose.",
        "{part} of {total} trips billed in {year} had no approved purpose.",
        (
            "Hotel rooms in the {region} region cost {many} dollars more than allowed.",
            "Receipts for rental cars were {small} weeks late.",
        ),
    ),
    "software": Finding(
        "{part} of {total} computers that we scanned in {year} ran without the latest security update.",
        "{part} of {total} computers scanned in {year} ran without the update.",
        (
            "One password in the {region} region was shared by {many} users.",
            "Backup tapes were {small} months old when we asked to see them.",
        ),
    ),
    "contracts": Finding(
        "{part} of {total} orders that the agency placed in {year} were awarded without competition.",
        "{part} of {total} orders placed in {year} were awarded without competition.",
        (
            "The same supplier won {many} bids in the {region} region.",
            "Invoices were paid {small} weeks before the goods arrived.",
        ),
    ),
    "safety": Finding(
        "{part} of {total} buildings that we visited in {year} had no working fire alarm.",
        "{part} of {total} buildings visited in {year} had no working fire alarm.",
        (
            "Accidents at work led to {many} days of sick leave.",
            "The last evacuation drill was held in {year}.",
        ),
    ),
    "outreach": Finding(
        "{part} of {total} towns that were eligible in {year} had never heard of the program.",
        "{part} of {total} towns eligible in {year} had never heard of it.",
        (
            "Posters in the {region} region showed an address that closed in {year}.",
            "Attendance at public meetings fell by {many} percent.",
        ),
    ),
}


def make(rng: random.Random, scale: float = 1.0) -> Item:
    """A report and its summary.

    Args:
        scale: in (0, 1]; below 1, fewer and shorter sections.
    """
    agency, program, purpose = rng.choice(AGENCIES), rng.choice(PROGRAMS), rng.choice(PURPOSES)
    budget, year = rng.randint(20, 990), rng.randint(2001, 2019)
    total = rng.randint(3, 12)
    agreed = rng.randint(2, total)
    general = _General(rng)
    names = rng.sample(tuple(FINDINGS), max(FEWEST_FINDINGS, round(scale * rng.randint(*FINDINGS_PER_REPORT))))
    sections, restated = zip(*(_finding(rng, general, name, scale) for name in names))

    runs = f"The {agency} runs the {program}, which {purpose}"
    background = f"{runs}. Its budget was ${budget} million in {year}."
    scope = SCOPE.format_map(_slots(rng))
    comments = COMMENTS.format_map(_slots(rng) | {"agency": agency})
    advice = f"We are making {total} recommendations to the {agency}. The agency agreed with {agreed} of them."
    others = round(OTHER_GENERAL * scale)
    report = [
        f"{program}: {agency} Should Address Problems with {' and '.join(name.capitalize() for name in names[:2])}",
        _section(rng, "Background", [background, *general.sentences(others)]),
        *([_section(rng, "Scope and Method", [scope, *general.sentences(others)])] if rng.random() < scale else []),
        *sections,
        *([_section(rng, "Agency Comments", [comments, *general.sentences(others)])] if rng.random() < scale else []),
        _section(rng, "Recommendations", [advice, *general.sentences(others)]),
    ]
    opening = f"{runs}, with a budget of ${budget} million in {year}."
    closing = f"The report makes {total} recommendations, and the agency agreed with {agreed} of them."
    summary = " ".join([opening, *restated, closing])
    return Item({"report": "\n\n".join(report), "summary": summary}, summary)


def _finding(rng: random.Random, general: _General, name: str, scale: float) -> tuple[str, str]:
    """A finding's section, and what the summary makes of it; below full scale, of some of its details."""
    finding = FINDINGS[name]
    total = rng.randint(40, 400)
    slots = {
        "name": name,
        "part": str(rng.randint(11, total - 20)),
        "total": str(total),
        "year": str(rng.randint(2001, 2019)),
    }
    key, short = (KEY + finding.key).format_map(slots), (SHORT + finding.short).format_map(slots)
    kept = max(1, sum(rng.random() < scale for _ in finding.details))
    chosen = sorted(rng.sample(range(len(finding.details)), kept))
    details = [finding.details[i].format_map(_slots(rng)) for i in chosen]
    sentences = [key, *details, *general.sentences(round(scale * rng.randint(*GENERAL)))]
    return _section(rng, f"Findings on {name.capitalize()}", sentences), " ".join([short, *details])


def _section(rng: random.Random, heading: str, sentences: list[str]) -> str:
    return f"{heading}\n{' '.join(rng.sample(sentences, len(sentences)))}"


def _slots(rng: random.Random) -> dict[str, str]:
    return {
        "region": rng.choice(REGIONS),
        "small": str(rng.randint(2, 9)),
        "many": str(rng.randint(12, 98)),
        "year": str(rng.randint(1980, 2000)),
    }


class _General:
    """Sentences without a key figure; an opening or ending returns only after all others were used."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._openings: list[str] = []
        self._endings: list[str] = []

    def sentences(self, count: int) -> list[str]:
        return [self._sentence() for _ in range(count)]

    def _sentence(self) -> str:
        self._openings = self._openings or self._rng.sample(OPENINGS, len(OPENINGS))
        self._endings = self._endings or self._rng.sample(ENDINGS, len(ENDINGS))
        return f"{self._openings.pop()} {self._endings.pop()}".format_map(_slots(self._rng))
