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


@dataclass(frozen=True)
class Noun:
    german: str
    gender: str  # m, f or n
    english: str
    pronoun: str = "it"

    @property
    def german_pronoun(self) -> str:
        return str(LEXICON["pronouns"][self.gender])


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
POOLS: Mapping[str, tuple[Sequence[str], Sequence[Any]]] = {
    "noun": (["noun"], PERSONS),
    "present": (["time"], _phrases(LEXICON["present"])),
    "past": (["time"], _phrases(LEXICON["past"])),
    "future": (["time"], _phrases(LEXICON["future"])),
    "state": (["state"], _phrases(LEXICON["states"])),
    "simple verb": (["verb"], VERBS),
    "separable verb": (["verb"], SEPARABLE),
    "verb": (["verb"], VERBS + SEPARABLE),
    "place": (["place", "goal", "location", "to"], LEXICON["places"]),
    "helper": (["helper", "aid"], list(LEXICON["helpers"].items())),
    "thought": (["think", "thinks"], list(LEXICON["thoughts"].items())),
    "motion": (["motion", "moved"], list(LEXICON["motions"].items())),
}
"""Slots of patterns, and the values for them."""


def make(rng: random.Random) -> Item:
    """Make a sentence of one of the eight patterns."""
    pattern, slots = rng.choice(LEXICON["patterns"]), dict[str, Any]()
    for name in pattern["draws"]:
        slots |= _draw(rng, name, slots)
    texts = pattern["texts"]
    chosen = texts[0] if len(texts) == 1 or rng.random() < 0.5 else texts[1]
    german, english = (text.format(**slots).rstrip() for text in chosen)  # a verb may have no prefix at the end
    source, target = german[0].upper() + german[1:] + ".", english[0].upper() + english[1:] + "."
    return Item({"source_de": source, "target_en": target}, target)


def _draw(rng: random.Random, name: str, slots: Mapping[str, Any]) -> dict[str, Any]:
    """Draw what a pattern names, by the slots of its texts; persons are of nouns that were drawn before."""
    match name:
        case "nouns":
            return dict(zip(("noun", "other"), rng.sample(PERSONS, 2)))
        case "subject":
            return {"subject": _person(rng, slots["noun"])}
        case "person" | "companion":
            return {name: _person(rng, slots["other"], "nom" if name == "person" else "dat")}
        case "thing":
            return {"thing": _object(rng)}
    names, pool = POOLS[name]
    values = rng.choice(pool)
    return dict(zip(names, values)) if len(names) > 1 else {names[0]: values}


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
