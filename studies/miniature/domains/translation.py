"""German sentences and their English translation, in the format of WMT16.

Eight patterns over a small lexicon keep what makes German hard to translate word by word: the verb in second place, at
the end of a subordinate clause and split in two, the participle at the end, and endings by gender, case and article.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssd_bench.conf import read_yaml
from studies.miniature.domains.item import Item

TASK = "wmt16"


@dataclass(frozen=True)
class Noun:
    german: str
    gender: str  # m, f or n
    english: str
    pronoun: str = "it"


@dataclass(frozen=True)
class Verb:
    """A transitive verb; `prefix` is the separable part, and `past` serves the German perfect tense."""

    infinitive: str
    third: str  # without the prefix
    participle: str
    english: str
    past: str
    prefix: str = ""

    @property
    def last(self) -> str:
        """Third person at the end of a clause, with the prefix in front."""
        return self.prefix + self.third

    @property
    def english_third(self) -> str:
        head, *particles = self.english.split()
        return " ".join([head + "s", *particles])


@dataclass(frozen=True)
class Phrase:
    """Words in German and English."""

    german: str
    english: str


def _phrases(words: Mapping[str, str]) -> list[Phrase]:
    return [Phrase(german, english) for german, english in words.items()]


def _nouns(groups: Sequence[Mapping[str, Any]]) -> list[Noun]:
    return [
        Noun(german, group["gender"], english, group["pronoun"])
        for group in groups
        for german, english in group["nouns"].items()
    ]


LEXICON = read_yaml(Path(__file__).with_suffix(".yaml"))
PERSONS, THINGS = _nouns(LEXICON["persons"]), _nouns(LEXICON["things"])
VERBS, SEPARABLE = ([Verb(*forms) for forms in LEXICON[name]] for name in ("verbs", "separable"))
PERSON_ADJECTIVES, THING_ADJECTIVES = _phrases(LEXICON["person_adjectives"]), _phrases(LEXICON["thing_adjectives"])
STATES = _phrases(LEXICON["states"])
PRESENT, PAST, FUTURE = (_phrases(LEXICON[name]) for name in ("present", "past", "future"))
HELPERS, THOUGHTS, MOTIONS = (list(LEXICON[name].items()) for name in ("helpers", "thoughts", "motions"))
PLACES: Sequence[Sequence[str]] = LEXICON["places"]


def make(rng: random.Random) -> Item:
    """Make a sentence of one of the eight patterns."""
    german, english = rng.choice(PATTERNS)(rng)
    source, target = german[0].upper() + german[1:] + ".", english[0].upper() + english[1:] + "."
    return Item({"source_de": source, "target_en": target}, target)


def _person(rng: random.Random, noun: Noun, case: str = "nom") -> Phrase:
    """Make a person with the definite article; a weak adjective ends in -e (nominative) or -en (dative)."""
    article = LEXICON["definite"][case][noun.gender]
    if rng.random() < 0.4:
        return Phrase(f"{article} {noun.german}", f"the {noun.english}")
    adjective, ending = rng.choice(PERSON_ADJECTIVES), "e" if case == "nom" else "en"
    return Phrase(f"{article} {adjective.german}{ending} {noun.german}", f"the {adjective.english} {noun.english}")


def _object(rng: random.Random) -> Phrase:
    """Make a thing in the accusative with an adjective, whose ending depends on the article."""
    noun, definite = rng.choice(THINGS), rng.random() < 0.5
    article, ending = LEXICON["definite_accusative" if definite else "indefinite_accusative"][noun.gender]
    adjective, the = rng.choice(THING_ADJECTIVES), "the" if definite else "a"
    return Phrase(f"{article} {adjective.german}{ending} {noun.german}", f"{the} {adjective.english} {noun.english}")


def _present(rng: random.Random) -> tuple[str, str]:
    """Make a main clause: subject first, or time first and the subject after the verb."""
    subject, thing, time, verb = _person(rng, rng.choice(PERSONS)), _object(rng), rng.choice(PRESENT), rng.choice(VERBS)
    place, _, location, _ = rng.choice(PLACES)
    if rng.random() < 0.5:
        german = f"{subject.german} {verb.third} {time.german} {thing.german} {place}"
        return german, f"{subject.english} {verb.english_third} {thing.english} {location} {time.english}"
    german = f"{time.german} {verb.third} {subject.german} {thing.german} {place}"
    return german, f"{time.english} {subject.english} {verb.english_third} {thing.english} {location}"


def _separable(rng: random.Random) -> tuple[str, str]:
    subject, thing, time, verb = (
        _person(rng, rng.choice(PERSONS)),
        _object(rng),
        rng.choice(PRESENT),
        rng.choice(SEPARABLE),
    )
    place, _, location, _ = rng.choice(PLACES)
    german = f"{time.german} {verb.third} {subject.german} {thing.german} {place} {verb.prefix}"
    return german, f"{time.english} {subject.english} {verb.english_third} {thing.english} {location}"


def _perfect(rng: random.Random) -> tuple[str, str]:
    subject, thing, time = _person(rng, rng.choice(PERSONS)), _object(rng), rng.choice(PAST)
    verb, (place, _, location, _) = rng.choice(VERBS + SEPARABLE), rng.choice(PLACES)
    german = f"{subject.german} hat {time.german} {place} {thing.german} {verb.participle}"
    return german, f"{subject.english} {verb.past} {thing.english} {location} {time.english}"


def _future(rng: random.Random) -> tuple[str, str]:
    """Make a clause with its infinitive at the end, after `werden` or a modal verb."""
    subject, thing, time = _person(rng, rng.choice(PERSONS)), _object(rng), rng.choice(FUTURE)
    verb, (place, _, location, _) = rng.choice(VERBS + SEPARABLE), rng.choice(PLACES)
    helper, aid = rng.choice(HELPERS)
    german = f"{time.german} {helper} {subject.german} {place} {thing.german} {verb.infinitive}"
    return german, f"{time.english} {subject.english} {aid} {verb.english} {thing.english} {location}"


def _because_clause(rng: random.Random) -> tuple[str, str]:
    noun, thing, verb = rng.choice(PERSONS), _object(rng), rng.choice(VERBS + SEPARABLE)
    subject, (_, goal, _, to) = _person(rng, noun), rng.choice(PLACES)
    german = f"{subject.german} geht {goal}, weil {LEXICON['pronouns'][noun.gender]} {thing.german} {verb.last}"
    return german, f"{subject.english} goes {to} because {noun.pronoun} {verb.english_third} {thing.english}"


def _scene(rng: random.Random) -> tuple[Phrase, Phrase, Phrase, Verb]:
    """Draw two persons, a thing and a verb."""
    first, second = rng.sample(PERSONS, 2)
    return _person(rng, first), _person(rng, second), _object(rng), rng.choice(VERBS + SEPARABLE)


def _that_clause(rng: random.Random) -> tuple[str, str]:
    subject, person, thing, verb = _scene(rng)
    think, thinks = rng.choice(THOUGHTS)
    place, _, location, _ = rng.choice(PLACES)
    german = f"{subject.german} {think}, dass {person.german} {place} {thing.german} {verb.last}"
    return german, f"{subject.english} {thinks} that {person.english} {verb.english_third} {thing.english} {location}"


def _when_clause(rng: random.Random) -> tuple[str, str]:
    subject, person, thing, verb = _scene(rng)
    state = rng.choice(STATES)
    german = (
        f"wenn {subject.german} {state.german} ist, {verb.third} {person.german} {thing.german} {verb.prefix}".rstrip()
    )
    return german, f"when {subject.english} is {state.english}, {person.english} {verb.english_third} {thing.english}"


def _going(rng: random.Random) -> tuple[str, str]:
    """Make a movement with company: dative after `mit`, accusative of direction, participle with `sein`."""
    first, second = rng.sample(PERSONS, 2)
    subject, companion, time = _person(rng, first), _person(rng, second, "dat"), rng.choice(PAST)
    _, goal, _, to = rng.choice(PLACES)
    motion, moved = rng.choice(MOTIONS)
    german = f"{subject.german} ist {time.german} mit {companion.german} {goal} {motion}"
    return german, f"{subject.english} {moved} {to} with {companion.english} {time.english}"


PATTERNS = (_present, _separable, _perfect, _future, _because_clause, _that_clause, _when_clause, _going)
