"""Audit reports of several sections with a summary, in the format of GovReport.

Every section holds one key sentence among general ones, and the summary restates the key sentences in order: its
figures lie hundreds of tokens back, as they do for a long document.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ssd_bench.miniature.domains.item import Item

TASK = "govreport"
WORDS = (350, 1150)  # drawn uniformly; about 1.4 tokens a word with a vocabulary of 2,048
SECTION_WORDS = (60, 160)
SECTIONS = (4, 8)

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
    """A subject of the audit: its key sentence, what the summary makes of it, and sentences about it."""

    key: str
    short: str
    details: tuple[str, ...]


FINDINGS = {
    "staffing": Finding(
        "We found that {part} of {total} positions in the program were vacant in {year}.",
        "On staffing, auditors found {part} of {total} positions vacant in {year}.",
        (
            "Managers in the {region} region reported that hiring a new inspector takes about {small} months.",
            "Employees told us that the workload has grown because experienced colleagues have retired.",
        ),
    ),
    "costs": Finding(
        "We found that the program spent ${part} million more than the ${total} million planned for {year}.",
        "On costs, spending exceeded the planned ${total} million by ${part} million in {year}.",
        (
            "The budget office changed its estimate {small} times without a written explanation.",
            "Contracts in the {region} region were often extended without a review of the price.",
        ),
    ),
    "deadlines": Finding(
        "We found that {part} of {total} projects were completed after their due date in {year}.",
        "On deadlines, {part} of {total} projects were late in {year}.",
        (
            "Delays in the {region} region lasted {small} months on average.",
            "Officials explained that permits from other departments often arrive late.",
        ),
    ),
    "records": Finding(
        "We found that {part} of {total} files that we tested for {year} lacked a required document.",
        "On records, {part} of {total} files tested for {year} were incomplete.",
        (
            "The database that the program uses was last updated {small} years ago.",
            "Paper forms from the {region} region were stored without an index.",
        ),
    ),
    "training": Finding(
        "We found that {part} of {total} supervisors had not finished the required course by {year}.",
        "On training, {part} of {total} supervisors had not finished the required course by {year}.",
        (
            "The course takes {small} days and must be repeated when the rules change.",
            "Supervisors in the {region} region said that the material was out of date.",
        ),
    ),
    "complaints": Finding(
        "We found that {part} of {total} complaints received in {year} were never answered.",
        "On complaints, {part} of {total} letters received in {year} were never answered.",
        (
            "The telephone line of the {region} region was closed for {small} weeks.",
            "People who applied for aid told us that they did not know whom to contact.",
        ),
    ),
    "equipment": Finding(
        "We found that {part} of {total} machines inspected in {year} did not meet the safety standard.",
        "On equipment, {part} of {total} machines inspected in {year} failed the safety standard.",
        (
            "Spare parts were missing at {small} sites in the {region} region.",
            "Technicians said that repairs were postponed because of limited funds.",
        ),
    ),
}

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
COMMENTS = "We provided a draft of this report to the {agency}, which sent written comments within {small} weeks."


def make(rng: random.Random) -> Item:
    """A report whose length is drawn first; its sections share the words, but about 30 for headings, evenly."""
    target = rng.randint(*WORDS)
    low, high = SECTION_WORDS
    count = rng.randint(max(SECTIONS[0], -(-target // (high - 10))), min(SECTIONS[1], target // (low + 10)))
    agency, program, purpose = rng.choice(AGENCIES), rng.choice(PROGRAMS), rng.choice(PURPOSES)
    keys, summary = _findings(rng, min(4, count - 2) if count > 5 or rng.random() < 0.5 else 2)
    total, agreed = _recommendations(rng)
    budget, year = rng.randint(20, 990), rng.randint(2001, 2019)
    background = f"The {agency} runs the {program}, which {purpose}. Its budget was ${budget} million in {year}."
    advice = f"We are making {total} recommendations to the {agency}. The agency agreed with {agreed} of them."
    extra = count - 2 - len(keys)
    sections = [
        ("Background", background, ()),
        *([("Scope and Method", SCOPE.format_map(_slots(rng)), ())] if extra > 0 else []),
        *((f"Findings on {name.capitalize()}", key, FINDINGS[name].details) for name, key in keys.items()),
        *([("Agency Comments", COMMENTS.format_map(_slots(rng) | {"agency": agency}), ())] if extra > 1 else []),
        ("Recommendations", advice, ()),
    ]
    general = _General(rng)
    bodies = [f"{head}\n{_section(rng, general, key, own, (target - 30) // count)}" for head, key, own in sections]
    title = (
        f"{program}: {agency} Should Address Problems with {' and '.join(name.capitalize() for name in list(keys)[:2])}"
    )
    opening = f"The {agency} runs the {program}, which {purpose}, with a budget of ${budget} million in {year}."
    closing = f"The report makes {total} recommendations, and the agency agreed with {agreed} of them."
    text = " ".join([opening, *summary, closing])
    return Item({"report": "\n\n".join([title, *bodies]), "summary": text}, text)


def _findings(rng: random.Random, count: int) -> tuple[dict[str, str], list[str]]:
    """The key sentences by subject, and what the summary makes of them."""
    keys, shorts = {}, []
    for name in rng.sample(tuple(FINDINGS), count):
        total = rng.randint(40, 400)
        slots = {"part": str(rng.randint(11, total - 20)), "total": str(total), "year": str(rng.randint(2001, 2019))}
        keys[name] = FINDINGS[name].key.format_map(slots)
        shorts.append(FINDINGS[name].short.format_map(slots))
    return keys, shorts


def _recommendations(rng: random.Random) -> tuple[int, int]:
    total = rng.randint(3, 12)
    return total, rng.randint(2, total)


def _slots(rng: random.Random) -> dict[str, str]:
    return {"region": rng.choice(REGIONS), "small": str(rng.randint(2, 9)), "year": str(rng.randint(1980, 2000))}


class _General:
    """Sentences without a key figure; an opening or ending returns only after all others were used."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._openings: list[str] = []
        self._endings: list[str] = []

    def sentence(self) -> str:
        self._openings = self._openings or self._rng.sample(OPENINGS, len(OPENINGS))
        self._endings = self._endings or self._rng.sample(ENDINGS, len(ENDINGS))
        return f"{self._openings.pop()} {self._endings.pop()}".format_map(_slots(self._rng))


def _section(rng: random.Random, general: _General, key: str, own: tuple[str, ...], words: int) -> str:
    """The key text at a random place among sentences of the subject and general ones, about `words` words in all."""
    sentences = [text.format_map(_slots(rng)) for text in own]
    missing = words - len(key.split()) - sum(len(text.split()) for text in sentences)
    while missing > 7:  # half a general sentence
        sentences.append(general.sentence())
        missing -= len(sentences[-1].split())
    rng.shuffle(sentences)
    sentences.insert(rng.randint(0, len(sentences)), key)
    return " ".join(sentences)
