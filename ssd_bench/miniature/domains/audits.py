"""Audit reports of several sections with a long summary, in the format of GovReport.

The summary restates a report's findings in their order: each key sentence shortened, then the sentences of that subject
in a fixed order, though the section shuffles them among general ones, and at last which subject came next. All that a
summary takes from its report stands there, a thousand tokens back, after words that stand together nowhere else.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from ssd_bench.miniature.domains.item import Item

TASK = "govreport"
FINDINGS_PER_REPORT = (5, 11)  # drawn uniformly; a finding makes about 45 tokens of summary and 95 of report
FEWEST_FINDINGS = 2  # at any scale
GENERAL = (1, 2)  # general sentences of a finding's section
OTHER_GENERAL = 2  # and of any other section, at full scale

AGENCIES = tuple(
    f"{rank} {name}"
    for rank in ("Federal Office", "National Bureau", "State Department", "Joint Agency")
    for name in ("of Water", "of Transport", "of Housing", "of Energy", "of Public Health", "of Land Use")
)
PROGRAMS = tuple(
    f"{first} {last}"
    for first in ("Rural", "Coastal", "Veterans", "Clean Air", "Safe Roads", "Early Learning", "Border", "Small Farm")
    for last in ("Grant Program", "Loan Program", "Inspection Program", "Relief Program", "Support Program")
)
PURPOSES = (
    "gives money to local offices that apply for aid",
    "pays for the repair of public buildings",
    "checks whether contractors follow federal rules",
    "helps low-income households with monthly payments",
    "funds research on new technical standards",
    "trains workers who have lost their jobs",
)
REGIONS = ("northern", "southern", "eastern", "western", "central")


@dataclass(frozen=True)
class Finding:
    """A subject of the audit. Before each slot stand two words that stand together nowhere else in a report.

    Attributes:
        key: what was found, as the report says after `KEY`.
        short: what the summary makes of it after `SHORT`; the figures keep their order.
        details: sentences about it, in the summary's order.
    """

    key: str
    short: str
    details: tuple[str, ...]


# Openings and endings of general sentences: any two fit.
OPENINGS = (
    "According to officials,",
    "In our review of the documents, we saw that",
    "During interviews in the {region} region, we learned that",
    "As we reported in {year},",
    "Under the current policy,",
    "At {small} of the sites that we visited,",
    "In response to our questions, the agency said that",
    "For the period that we examined,",
    "Based on data from the {region} region,",
    "In addition,",
    "However,",
)
ENDINGS = (
    "the program does not measure its results in a consistent way.",
    "local offices apply the guidance in different ways.",
    "the agency has no formal process to share information.",
    "the reports are reviewed only once every {small} months.",
    "the procedures were designed for a much smaller program.",
    "managers rely on their own judgment to set priorities.",
    "responsibility is divided among {small} separate units.",
    "the agency had begun to develop a new plan.",
    "oversight of the contractors remains limited.",
    "internal controls were not always documented.",
    "the available data were not reliable enough for a comparison.",
    "funding is distributed by a formula that Congress set in {year}.",
    "coordination with state governments has improved since {year}.",
    "key decisions were made without an analysis of the risks.",
)
SCOPE = (
    "To conduct this work, we analyzed data, visited {small} sites and interviewed officials in the {region} region."
)
COMMENTS = "The {agency} read a draft of this report and answered in writing within {small} weeks."
KEY, SHORT = "We found problems with {name}: ", "On {name}, "
BEGUN, NEXT, LAST = "We began with {name}.", "After {name} came {next}.", "the recommendations"
FINDINGS = {
    "staffing": Finding(
        "in the year of the audit, the office lost {a} inspectors and hired {b} who had no experience.",
        "the office lost {a} inspectors and hired {b}.",
        ("Vacancies lasted {c} weeks across {region} branches.", "Overtime cost {d} dollars."),
    ),
    "costs": Finding(
        "the program spent {a} million dollars before the summer and owed {b} million to its suppliers.",
        "the program spent {a} million dollars and owed {b} million.",
        ("Rent reached {c} dollars under {region} leases.", "Fuel consumed {d} tanks."),
    ),
    "deadlines": Finding(
        "the contractors missed {a} dates that had been agreed and postponed {b} more.",
        "the contractors missed {a} dates and postponed {b} more.",
        ("Delays averaged {c} days along {region} roads.", "Permits took {d} weekends."),
    ),
    "records": Finding(
        "clerks misplaced {a} files that we asked for and destroyed {b} without a copy.",
        "clerks misplaced {a} files and destroyed {b} without a copy.",
        ("Boxes filled {c} rooms beneath {region} archives.", "A search needed {d} minutes."),
    ),
    "training": Finding(
        "supervisors skipped {a} lessons of the required course and repeated {b} of them.",
        "supervisors skipped {a} lessons and repeated {b} of them.",
        ("The test contained {c} questions for {region} teams.", "Trainees answered {d} mails."),
    ),
    "complaints": Finding(
        "the public sent {a} letters without an answer and telephoned {b} times.",
        "the public sent {a} letters and telephoned {b} times.",
        ("Callers waited {c} minutes on {region} lines.", "Replies required {d} signatures."),
    ),
    "equipment": Finding(
        "engineers rejected {a} machines in the first test and repaired {b} on the spot.",
        "engineers rejected {a} machines and repaired {b}.",
        ("Workshops lacked {c} parts from {region} stores.", "The oldest pump ran {d} hours."),
    ),
    "travel": Finding(
        "employees billed {a} trips that had no purpose and cancelled {b} after the departure.",
        "employees billed {a} trips and cancelled {b}.",
        ("Hotels charged {c} dollars around {region} airports.", "Rental cars drove {d} miles."),
    ),
    "software": Finding(
        "experts scanned {a} computers during one night and blocked {b} that were not safe.",
        "experts scanned {a} computers and blocked {b}.",
        ("One password opened {c} accounts of {region} users.", "Backups covered {d} folders."),
    ),
    "contracts": Finding(
        "the agency awarded {a} orders without competition and extended {b} without a review.",
        "the agency awarded {a} orders and extended {b} without a review.",
        ("One supplier won {c} bids beside {region} partners.", "Invoices listed {d} wrong prices."),
    ),
    "safety": Finding(
        "inspectors entered {a} buildings without notice and closed {b} at once.",
        "inspectors entered {a} buildings and closed {b} at once.",
        ("Accidents injured {c} workers at {region} plants.", "A fire drill emptied {d} floors."),
    ),
    "outreach": Finding(
        "the office contacted {a} towns that were eligible and convinced {b} of them.",
        "the office contacted {a} towns and convinced {b} of them.",
        ("Posters showed {c} addresses near {region} schools.", "Meetings attracted {d} guests."),
    ),
}

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
    agency, program, purpose = rng.choice(AGENCIES), rng.choice(PROGRAMS), rng.choice(PURPOSES)
    budget, total = rng.randint(20, 98), rng.randint(3, 12)
    agreed = rng.randint(2, total)
    general = _General(rng)
    names = rng.sample(tuple(FINDINGS), max(FEWEST_FINDINGS, round(scale * rng.randint(*FINDINGS_PER_REPORT))))
    sections, restated = zip(*(_finding(rng, general, *pair, scale) for pair in zip(names, [*names[1:], LAST])))

    runs, begun = f"The {agency} runs the {program}, which {purpose}", BEGUN.format(name=names[0])
    background = [f"{runs}.", f"It has a budget of ${budget} million.", begun]
    scope = SCOPE.format_map(_slots(rng))
    comments = COMMENTS.format_map(_slots(rng) | {"agency": agency})
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
        text.format_map(slots) for text in (KEY + finding.key, SHORT + finding.short, *finding.details, NEXT)
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
        self._openings = self._openings or self._rng.sample(OPENINGS, len(OPENINGS))
        self._endings = self._endings or self._rng.sample(ENDINGS, len(ENDINGS))
        return f"{self._openings.pop()} {self._endings.pop()}".format_map(_slots(self._rng))
