"""News articles with three highlights in the format of CNN/DailyMail, and shorter ones with one sentence, as in XSum.

A highlight is a key sentence of the article without its details, so that a summary is a selection and a rewriting by
fixed patterns; the other sentences carry names and numbers that must not be copied.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ssd_bench.conf import read_yaml
from studies.miniature.domains.item import Item


@dataclass(frozen=True)
class Event:
    """A kind of event: values of `{act}` and `{place}`, and three pairs of a key sentence and its highlight."""

    acts: Sequence[str]
    places: Sequence[str]
    incident: Sequence[str]
    amount: Sequence[str]
    aftermath: Sequence[str]
    details: Sequence[str]


@dataclass(frozen=True)
class Brief:
    """One kind of short article: an opening, a second fact and the sentence that joins the two."""

    things: Sequence[str]
    places: Sequence[str]
    opening: str
    fact: str
    summary: str


TEXTS = read_yaml(Path(__file__).with_suffix(".yaml"))
EVENTS = [Event(**event) for event in TEXTS["events"]]
BRIEFS = [Brief(**kind) for kind in TEXTS["briefs"]]


def make(rng: random.Random) -> Item:
    """Make an article of 6 to 10 sentences: a key sentence, then details with the other key sentences, in order."""
    event = rng.choice(EVENTS)
    facts = _facts(rng) | {"act": rng.choice(event.acts), "place": rng.choice(event.places)}
    keys = [pair[0].format_map(facts) for pair in (event.incident, event.amount, event.aftermath)]
    other_sentences = [text.format_map(facts) for text in event.details] + _distractors(rng, rng.randint(3, 5))
    rng.shuffle(other_sentences)
    # The cost and the date keep their order, at random places after the opening.
    positions = sorted(rng.sample(range(len(other_sentences) + 2), 2))
    for position, key in zip(positions, keys[1:]):
        other_sentences.insert(position, key)
    article = f"{facts['city'].upper()} (News Wire) -- " + " ".join([keys[0], *other_sentences])
    shorts = [pair[1].format_map(facts) for pair in (event.incident, event.amount, event.aftermath)]
    highlights = "\n".join(short[0].upper() + short[1:] for short in shorts)
    return Item({"article": article, "highlights": highlights}, highlights)


def brief(rng: random.Random) -> Item:
    """Make an article of 4 to 6 sentences without a dateline, and a summary of its opening and a later fact."""
    kind = rng.choice(BRIEFS)
    facts = _facts(rng) | {"thing": rng.choice(kind.things), "place": rng.choice(kind.places)}
    sentences = _distractors(rng, rng.randint(3, 4))
    sentences.insert(rng.randrange(len(sentences) + 1), kind.fact.format_map(facts))
    document = " ".join([kind.opening.format_map(facts), *sentences])
    summary = kind.summary.format_map(facts)
    return Item({"document": document, "summary": summary}, summary)


def _distractors(rng: random.Random, count: int) -> list[str]:
    return [text.format_map(_facts(rng)) for text in rng.sample(TEXTS["distractors"], count)]


def _facts(rng: random.Random) -> dict[str, str]:
    """Draw values of all slots except those of the event; two-digit and round numbers keep the vocabulary small."""
    return {
        "city": rng.choice(TEXTS["cities"]),
        "town": rng.choice(TEXTS["cities"]),
        "day": rng.choice(TEXTS["days"]),
        "weekday": rng.choice(TEXTS["days"]),
        "count": str(rng.randint(11, 99) * 10),
        "cost": str(rng.randint(2, 99)),
        "number": str(rng.randint(12, 60)),
        "date": f"{rng.choice(TEXTS['months'])} {rng.randint(1, 28)}",
        "year": str(rng.randint(1990, 2019)),
        "role": rng.choice(TEXTS["roles"]),
        "name": f"{rng.choice(TEXTS['first_names'])} {rng.choice(TEXTS['last_names'])}",
        "other": f"{rng.choice(TEXTS['first_names'])} {rng.choice(TEXTS['last_names'])}",
        "job": rng.choice(TEXTS["jobs"]),
    }
