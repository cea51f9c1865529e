"""German sentences and their English translation, in the format of WMT16.

Eight patterns over a small lexicon keep what makes German hard to translate word by word: the verb in second place, at
the end of a subordinate clause and split in two, the participle at the end, and endings by gender, case and article.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ssd_bench.miniature.domains.item import Item

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


def _pairs(text: str) -> tuple[Phrase, ...]:
    return tuple(Phrase(*word.split(":")) for word in text.split(", "))


def _nouns(gender: str, text: str, pronoun: str = "it") -> tuple[Noun, ...]:
    return tuple(Noun(pair.german, gender, pair.english, pronoun) for pair in _pairs(text))


PERSONS = (
    *_nouns("m", "Lehrer:teacher, Arzt:doctor, Bruder:brother, Vater:father, Freund:friend, Bäcker:baker", "he"),
    *_nouns("m", "Gärtner:gardener, Maler:painter, Onkel:uncle, Koch:cook", "he"),
    *_nouns("f", "Mutter:mother, Schwester:sister, Tochter:daughter, Frau:woman, Königin:queen, Tante:aunt", "she"),
    *_nouns("f", "Sängerin:singer, Oma:grandmother", "she"),
    *_nouns("n", "Mädchen:girl", "she"),
    *_nouns("n", "Kind:child", "it"),
)
THINGS = (
    *_nouns("m", "Hut:hat, Tisch:table, Stuhl:chair, Schlüssel:key, Koffer:suitcase, Mantel:coat, Teller:plate"),
    *_nouns("m", "Apfel:apple, Kuchen:cake, Brief:letter, Korb:basket, Schirm:umbrella, Löffel:spoon, Teppich:carpet"),
    *_nouns("f", "Lampe:lamp, Tasche:bag, Flasche:bottle, Uhr:clock, Tasse:cup, Blume:flower, Jacke:jacket"),
    *_nouns("f", "Karte:map, Decke:blanket, Schachtel:box, Gabel:fork, Kerze:candle"),
    *_nouns("n", "Buch:book, Bild:picture, Fahrrad:bicycle, Hemd:shirt, Messer:knife, Brot:loaf, Kleid:dress"),
    *_nouns("n", "Glas:glass, Spiel:game, Kissen:pillow, Geschenk:gift, Boot:boat"),
)
VERBS = (
    Verb("kaufen", "kauft", "gekauft", "buy", "bought"),
    Verb("verkaufen", "verkauft", "verkauft", "sell", "sold"),
    Verb("suchen", "sucht", "gesucht", "seek", "sought"),
    Verb("finden", "findet", "gefunden", "find", "found"),
    Verb("sehen", "sieht", "gesehen", "see", "saw"),
    Verb("malen", "malt", "gemalt", "paint", "painted"),
    Verb("holen", "holt", "geholt", "get", "got"),
    Verb("nehmen", "nimmt", "genommen", "take", "took"),
    Verb("vergessen", "vergisst", "vergessen", "forget", "forgot"),
    Verb("verlieren", "verliert", "verloren", "lose", "lost"),
    Verb("halten", "hält", "gehalten", "hold", "held"),
    Verb("brauchen", "braucht", "gebraucht", "need", "needed"),
    Verb("zeigen", "zeigt", "gezeigt", "show", "showed"),
    Verb("bezahlen", "bezahlt", "bezahlt", "pay for", "paid for"),
    Verb("verstecken", "versteckt", "versteckt", "hide", "hid"),
    Verb("bekommen", "bekommt", "bekommen", "receive", "received"),
)
SEPARABLE = (
    Verb("abholen", "holt", "abgeholt", "pick up", "picked up", "ab"),
    Verb("mitbringen", "bringt", "mitgebracht", "bring along", "brought along", "mit"),
    Verb("einpacken", "packt", "eingepackt", "pack", "packed", "ein"),
    Verb("wegwerfen", "wirft", "weggeworfen", "throw away", "threw away", "weg"),
    Verb("anschauen", "schaut", "angeschaut", "look at", "looked at", "an"),
    Verb("zurückgeben", "gibt", "zurückgegeben", "give back", "gave back", "zurück"),
    Verb("aufheben", "hebt", "aufgehoben", "lift up", "lifted up", "auf"),
    Verb("wegstellen", "stellt", "weggestellt", "put away", "put away", "weg"),
)
PERSON_ADJECTIVES = _pairs("alt:old, jung:young, nett:nice, klug:clever, freundlich:friendly, fröhlich:cheerful")
THING_ADJECTIVES = (
    *_pairs("rot:red, blau:blue, grün:green, gelb:yellow, weiß:white, schwarz:black, neu:new, schwer:heavy"),
    *_pairs("schön:beautiful, billig:cheap, klein:small, groß:big, rund:round, lang:long"),
)
STATES = _pairs("müde:tired, krank:sick, glücklich:happy, hungrig:hungry, traurig:sad, ruhig:calm")
PRESENT = _pairs("heute:today, jeden Tag:every day, jeden Abend:every evening, am Montag:on Monday, jetzt:now")
PAST = _pairs("gestern:yesterday, letzte Woche:last week, gestern Abend:yesterday evening, am Sonntag:on Sunday")
FUTURE = _pairs("morgen:tomorrow, nächste Woche:next week, am Freitag:on Friday, bald:soon, am Abend:in the evening")
# German place of an action, direction of a movement, and the two in English.
PLACES = (
    ("im Garten", "in den Garten", "in the garden", "into the garden"),
    ("im Park", "in den Park", "in the park", "to the park"),
    ("im Wald", "in den Wald", "in the forest", "into the forest"),
    ("im Laden", "in den Laden", "in the shop", "to the shop"),
    ("im Dorf", "ins Dorf", "in the village", "to the village"),
    ("im Museum", "ins Museum", "in the museum", "to the museum"),
    ("auf dem Markt", "auf den Markt", "at the market", "to the market"),
    ("am Bahnhof", "zum Bahnhof", "at the station", "to the station"),
    ("am Strand", "an den Strand", "on the beach", "to the beach"),
    ("in der Stadt", "in die Stadt", "in the city", "to the city"),
    ("in der Küche", "in die Küche", "in the kitchen", "into the kitchen"),
    ("in der Schule", "in die Schule", "at school", "to school"),
    ("auf der Brücke", "auf die Brücke", "on the bridge", "onto the bridge"),
    ("hinter dem Haus", "hinter das Haus", "behind the house", "behind the house"),
)
DEFINITE = {"nom": {"m": "der", "f": "die", "n": "das"}, "dat": {"m": "dem", "f": "der", "n": "dem"}}
INDEFINITE_ACC = {"m": ("einen", "en"), "f": ("eine", "e"), "n": ("ein", "es")}
DEFINITE_ACC = {"m": ("den", "en"), "f": ("die", "e"), "n": ("das", "e")}
PRONOUNS = {"m": "er", "f": "sie", "n": "es"}


def make(rng: random.Random) -> Item:
    """Make a sentence of one of the eight patterns."""
    german, english = rng.choice(PATTERNS)(rng)
    source, target = german[0].upper() + german[1:] + ".", english[0].upper() + english[1:] + "."
    return Item({"source_de": source, "target_en": target}, target)


def _person(rng: random.Random, noun: Noun, case: str = "nom") -> Phrase:
    """Make a person with the definite article; a weak adjective ends in -e (nominative) or -en (dative)."""
    article = DEFINITE[case][noun.gender]
    if rng.random() < 0.4:
        return Phrase(f"{article} {noun.german}", f"the {noun.english}")
    adjective, ending = rng.choice(PERSON_ADJECTIVES), "e" if case == "nom" else "en"
    return Phrase(f"{article} {adjective.german}{ending} {noun.german}", f"the {adjective.english} {noun.english}")


def _object(rng: random.Random) -> Phrase:
    """Make a thing in the accusative with an adjective, whose ending depends on the article."""
    noun, definite = rng.choice(THINGS), rng.random() < 0.5
    article, ending = (DEFINITE_ACC if definite else INDEFINITE_ACC)[noun.gender]
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
    helper, aid = rng.choice((("wird", "will"), ("muss", "must"), ("kann", "can"), ("will", "wants to")))
    german = f"{time.german} {helper} {subject.german} {place} {thing.german} {verb.infinitive}"
    return german, f"{time.english} {subject.english} {aid} {verb.english} {thing.english} {location}"


def _because_clause(rng: random.Random) -> tuple[str, str]:
    noun, thing, verb = rng.choice(PERSONS), _object(rng), rng.choice(VERBS + SEPARABLE)
    subject, (_, goal, _, to) = _person(rng, noun), rng.choice(PLACES)
    german = f"{subject.german} geht {goal}, weil {PRONOUNS[noun.gender]} {thing.german} {verb.last}"
    return german, f"{subject.english} goes {to} because {noun.pronoun} {verb.english_third} {thing.english}"


def _that_clause(rng: random.Random) -> tuple[str, str]:
    first, second = rng.sample(PERSONS, 2)
    subject, person, thing, verb = (
        _person(rng, first),
        _person(rng, second),
        _object(rng),
        rng.choice(VERBS + SEPARABLE),
    )
    think, thinks = rng.choice((("weiß", "knows"), ("sagt", "says"), ("glaubt", "believes"), ("hofft", "hopes")))
    place, _, location, _ = rng.choice(PLACES)
    german = f"{subject.german} {think}, dass {person.german} {place} {thing.german} {verb.last}"
    return german, f"{subject.english} {thinks} that {person.english} {verb.english_third} {thing.english} {location}"


def _when_clause(rng: random.Random) -> tuple[str, str]:
    first, second = rng.sample(PERSONS, 2)
    subject, person, thing, verb = (
        _person(rng, first),
        _person(rng, second),
        _object(rng),
        rng.choice(VERBS + SEPARABLE),
    )
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
    motion, moved = rng.choice((("gegangen", "went"), ("gelaufen", "walked"), ("gekommen", "came"), ("gerannt", "ran")))
    german = f"{subject.german} ist {time.german} mit {companion.german} {goal} {motion}"
    return german, f"{subject.english} {moved} {to} with {companion.english} {time.english}"


PATTERNS = (_present, _separable, _perfect, _future, _because_clause, _that_clause, _when_clause, _going)
