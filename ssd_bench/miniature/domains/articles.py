"""News articles with three highlights in the format of CNN/DailyMail, and shorter ones with one sentence, as in XSum.

A highlight is a key sentence of the article without its details, so that a summary is a selection and a rewriting by
fixed patterns; the other sentences carry names and numbers that must not be copied.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ssd_bench.miniature.domains.item import Item

TASK = "cnn_dm"
BRIEF_TASK = "xsum"

CITIES = (
    *("Harwell", "Brenton", "Corville", "Danport", "Eastmoor", "Felby", "Grayford", "Kelton"),
    *("Lindale", "Marsley", "Norcastle", "Pinehurst", "Redhill", "Stanwick", "Tilbury", "Westbrook"),
)
FIRST_NAMES = ("Anna", "Carl", "Diane", "Frank", "Helen", "James", "Laura", "Martin", "Nora", "Peter", "Ruth", "Simon")
LAST_NAMES = ("Adler", "Baker", "Cole", "Dunn", "Fisher", "Grant", "Hayes", "Keller", "Moss", "Porter", "Reed", "Walsh")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = ("January", "March", "April", "May", "June", "August", "October", "December")
ROLES = ("Mayor", "Governor", "Senator", "Minister", "Director")
JOBS = ("teacher", "driver", "nurse", "farmer", "student", "shop owner", "retired builder", "lawyer")


@dataclass(frozen=True)
class Event:
    """A kind of event: values of `{act}` and `{place}`, and three pairs of a key sentence and its highlight."""

    acts: tuple[str, ...]
    places: tuple[str, ...]
    incident: tuple[str, str]
    amount: tuple[str, str]
    aftermath: tuple[str, str]
    details: tuple[str, ...]


EVENTS = (
    Event(
        ("damaged", "flooded", "tore the roof off", "destroyed"),
        ("the old school", "the town hall", "the central hospital", "the fish market"),
        (
            "A powerful storm {act} {place} in {city} on {day}, leaving {count} homes without power.",
            "Storm {act} {place} in {city}, leaving {count} homes without power.",
        ),
        (
            "{role} {name} said the repairs would cost {cost} million dollars.",
            "{name}: repairs to cost {cost} million.",
        ),
        ("Work on the damage is expected to begin on {date}.", "Work to begin on {date}."),
        ("Strong winds also brought down {number} trees along the river.", "Rain is expected to last until {weekday}."),
    ),
    Event(
        ("music", "film", "food", "book"),
        ("the harbor", "the city park", "the old castle", "the market square"),
        (
            "A {act} festival opened at {place} in {city} on {day}, drawing {count} visitors on its first night.",
            "The {act} festival at {place} in {city} drew {count} visitors.",
        ),
        (
            "{role} {name} said the city had spent {cost} million dollars on the event.",
            "{name}: city spent {cost} million.",
        ),
        ("The final show will take place on {date}.", "Final show on {date}."),
        ("More than {number} artists are taking part.", "Tickets for {weekday} were sold out within an hour."),
    ),
    Event(
        ("car", "steel", "paper", "glass"),
        ("the north port", "the airport", "the railway line", "the west river"),
        (
            "A {act} company said on {day} it would close its factory near {place} in {city}, cutting {count} jobs.",
            "The {act} factory near {place} in {city} will close, cutting {count} jobs.",
        ),
        (
            "{role} {name} said the plant had lost {cost} million dollars last year.",
            "{name}: plant lost {cost} million.",
        ),
        ("The last shift will leave the plant on {date}.", "Last shift on {date}."),
        ("The plant has been open for {number} years.", "A union meeting is planned for {weekday}."),
    ),
    Event(
        ("road", "rail", "foot", "toll"),
        ("the Blue River", "the Long Valley", "the East Canal", "the Stone Bay"),
        (
            "Engineers closed a {act} bridge over {place} in {city} on {day} after they found {count} cracks in it.",
            "The {act} bridge over {place} in {city} was closed with {count} cracks.",
        ),
        (
            "{role} {name} said a new bridge would cost {cost} million dollars.",
            "{name}: new bridge to cost {cost} million.",
        ),
        ("Traffic should cross the river again on {date}.", "Traffic to return on {date}."),
        ("About {number} trucks used the crossing every hour.", "Extra ferries will run from {weekday}."),
    ),
    Event(
        ("beat", "lost to", "drew with", "knocked out"),
        ("Royal Stars", "United Lions", "River Rovers", "Iron Eagles"),
        (
            "The home team {act} {place} in {city} on {day} in front of {count} fans.",
            "Home team {act} {place} before {count} fans in {city}.",
        ),
        (
            "{role} {name} said the club had earned {cost} million dollars this season.",
            "{name}: club earned {cost} million.",
        ),
        ("The two teams will meet again on {date}.", "Teams to meet again on {date}."),
        ("The captain left the field after {number} minutes.", "The squad returns to training on {weekday}."),
    ),
    Event(
        ("fraud", "theft", "bribery", "tax fraud"),
        ("a bank manager", "a former judge", "a hotel owner", "a city official"),
        (
            "A court in {city} found {place} guilty of {act} on {day} after hearing {count} witnesses.",
            "Court in {city} found {place} guilty of {act} after {count} witnesses.",
        ),
        ("{role} {name} said {cost} million dollars were still missing.", "{name}: {cost} million still missing."),
        ("The judge will announce the sentence on {date}.", "Sentence due on {date}."),
        ("The trial lasted {number} days.", "The defense said it would appeal by {weekday}."),
    ),
)

DISTRACTORS = (
    '"We have never seen anything like it," said {other}, a {job} from {town}.',
    '"It was a very long day for all of us," {other}, a {job}, told reporters.',
    "{other}, a {job} who lives nearby, said people were talking about nothing else.",
    "About {number} thousand people live in the area, according to official figures.",
    "A similar case was reported in {town} in {year}.",
    "Local radio said that {number} people had called with questions.",
    "The city council in {town} did not answer a request for comment.",
    '"We will do everything we can to help," {other} told a crowd outside the building.',
)


@dataclass(frozen=True)
class Brief:
    """One kind of short article: an opening, a second fact and the sentence that joins the two."""

    things: tuple[str, ...]
    places: tuple[str, ...]
    opening: str
    fact: str
    summary: str


BRIEFS = (
    Brief(
        ("painting", "gold ring", "rare stamp", "silver cup"),
        ("museum", "hotel", "church", "library"),
        "Police said a {thing} was stolen from a {place} in {city} on {day} night.",
        "The owner is offering a reward of {cost} thousand dollars.",
        "A reward of {cost} thousand dollars is offered for a {thing} stolen from a {place} in {city}.",
    ),
    Brief(
        ("warehouse", "bakery", "garage", "theater"),
        ("north", "south", "east", "west"),
        "Fire crews were called to a {thing} in the {place} of {city} early on {day}.",
        "It took {cost} firefighters to put out the flames.",
        "A fire at a {thing} in the {place} of {city} was put out by {cost} firefighters.",
    ),
    Brief(
        ("walker", "climber", "sailor", "cyclist"),
        ("lake", "cliff", "forest", "beach"),
        "Rescue teams found a missing {thing} near a {place} outside {city} on {day}.",
        "The search had lasted {cost} hours.",
        "A missing {thing} was found near a {place} outside {city} after {cost} hours.",
    ),
    Brief(
        ("bus", "truck", "tram", "van"),
        ("wall", "bridge", "shop window", "traffic light"),
        "Witnesses saw a {thing} hit a {place} in {city} on {day} morning.",
        "Doctors are treating {cost} people for minor injuries.",
        "A {thing} has hit a {place} in {city}, injuring {cost} people.",
    ),
    Brief(
        ("swimming pool", "skate park", "bus station", "clinic"),
        ("residents", "parents", "shopkeepers", "students"),
        "Plans for a new {thing} in {city} were rejected by {place} at a meeting on {day}.",
        "A petition against the project had {cost} thousand names.",
        "A new {thing} in {city} was rejected by {place} after {cost} thousand people signed a petition.",
    ),
)


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
    return [text.format_map(_facts(rng)) for text in rng.sample(DISTRACTORS, count)]


def _facts(rng: random.Random) -> dict[str, str]:
    """Draw values of all slots except those of the event; two-digit and round numbers keep the vocabulary small."""
    return {
        "city": rng.choice(CITIES),
        "town": rng.choice(CITIES),
        "day": rng.choice(DAYS),
        "weekday": rng.choice(DAYS),
        "count": str(rng.randint(11, 99) * 10),
        "cost": str(rng.randint(2, 99)),
        "number": str(rng.randint(12, 60)),
        "date": f"{rng.choice(MONTHS)} {rng.randint(1, 28)}",
        "year": str(rng.randint(1990, 2019)),
        "role": rng.choice(ROLES),
        "name": f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}",
        "other": f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}",
        "job": rng.choice(JOBS),
    }
