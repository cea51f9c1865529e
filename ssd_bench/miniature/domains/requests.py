"""Short instructions with an input, in the format of Alpaca, of kinds that a model of this size learns in few tokens.

What an output takes from its input stands there after the same two words, which stand together once: lists keep their
order, a queue's names each tell the next, and what an instruction points at is restated in its own words. Sums are most
of them: bare of any story they teach in few tokens what word problems and derivations need.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from ssd_bench.miniature.domains.arithmetic import calculation
from ssd_bench.miniature.domains.item import Item

TASK = "alpaca"

FEWEST, MOST = 6, 14  # words of a list
SUMS = 8
CATEGORIES = {
    "animals": ("tiger", "zebra", "wolf", "camel", "eagle", "shark", "monkey", "lizard", "whale", "panda"),
    "fruits": ("banana", "cherry", "grape", "lemon", "mango", "orange", "peach", "pear", "plum", "melon"),
    "tools": ("hammer", "saw", "drill", "wrench", "shovel", "axe", "pliers", "ladder", "brush", "file"),
    "countries": ("Brazil", "Canada", "Egypt", "France", "India", "Japan", "Kenya", "Norway", "Peru", "Spain"),
    "instruments": ("piano", "guitar", "violin", "flute", "trumpet", "harp", "cello", "organ", "banjo", "tuba"),
}
WORDS = tuple(word for name, words in CATEGORIES.items() if name != "countries" for word in words)
OPPOSITES = (
    *(("hot", "cold"), ("fast", "slow"), ("early", "late"), ("rich", "poor"), ("hard", "soft"), ("wet", "dry")),
    *(("loud", "quiet"), ("strong", "weak"), ("full", "empty"), ("light", "dark"), ("high", "low"), ("open", "closed")),
)
NAMES = ("Alice", "Bruno", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Irene", "Jonas", "Karen", "Louis")
TOWNS = ("London", "Paris", "Rome", "Madrid", "Vienna", "Berlin", "Dublin", "Lisbon", "Athens", "Oslo")
# Third person, base form and past tense.
ACTIONS = (
    *(("likes", "like", "liked"), ("finds", "find", "found"), ("loses", "lose", "lost")),
    *(("needs", "need", "needed"), ("wants", "want", "wanted"), ("brings", "bring", "brought")),
    *(("sells", "sell", "sold"), ("takes", "take", "took"), ("makes", "make", "made"), ("sees", "see", "saw")),
)
OBJECTS = ("toys", "photos", "letters", "clothes", "tickets", "coins", "posters", "flags", "candles", "puzzles")
MOMENTS = ("at home", "at work", "in the office", "in the evening", "after school", "on weekends", "with friends")
PRODUCTS = ("phone", "camera", "laptop", "movie", "hotel", "restaurant", "printer", "service", "website", "bus tour")
GOOD = ("great", "excellent", "wonderful", "amazing", "perfect")
BAD = ("terrible", "awful", "broken", "boring", "useless")
STAFF = ("support team", "staff", "price", "quality", "design", "delivery")
TOPICS = ("the meeting", "the invoice", "the project", "the contract", "the schedule", "the new order", "the interview")
POOL = WORDS + NAMES + TOWNS + OBJECTS
# Words that tell what comes after them.
POINTERS = (*POOL, *(word for words in (*ACTIONS, *OPPOSITES) for word in words))

# An instruction, its input and the output.
Triple = tuple[str, str, str]


def make(rng: random.Random) -> Item:
    """One of the kinds of instruction, as often as it stands in `KINDS`."""
    instruction, given, output = rng.choice(KINDS)(rng)
    return Item({"instruction": instruction, "input": given, "output": output}, output)


def _past(rng: random.Random) -> Triple:
    """A sentence to put into the past tense."""
    who = " and ".join(rng.sample(NAMES, 2)) if rng.random() < 0.5 else rng.choice(NAMES)
    third, base, past = rng.choice(ACTIONS)
    verb = base if " and " in who else third
    rest = f"{rng.choice(OBJECTS)} {rng.choice(MOMENTS)} in {rng.choice(TOWNS)}"
    ask = rng.choice(("Change the sentence to past tense.", "Rewrite in the past tense.", "Use the past tense."))
    return ask, f"{who} {verb} {rest}.", f"{who} {past} {rest}."


def _sentiment(rng: random.Random) -> Triple:
    """A review, good or bad."""
    good = rng.random() < 0.5
    product, (first, second) = rng.choice(PRODUCTS), rng.sample(GOOD if good else BAD, 2)
    part, town, name = rng.choice(STAFF), rng.choice(TOWNS), rng.choice(NAMES)
    text = f"The {product} in {town} was {first} and the {part} was {second}, says {name}."
    ask = rng.choice(("Classify the sentiment.", "Is this review positive or negative?", "Label the review."))
    return ask, text, f"The review of the {product} is {'positive' if good else 'negative'}."


def listed(rng: random.Random) -> Triple:
    """A list to repeat."""
    text = f"List: {', '.join(rng.sample(POOL, rng.randint(FEWEST, MOST)))}."
    return rng.choice(("Repeat the list.", "Copy the items.", "Write the list once more.")), text, text


def queue(rng: random.Random) -> Triple:
    """Names that each tell the next one, to be put in order."""
    names = [*rng.sample(NAMES, rng.randint(5, 8)), "nobody"]
    pairs = [f"{name} before {following}" for name, following in zip(names, names[1:])]
    ask = rng.choice(("Put them in order. The queue begins with {}.", "Write down who waits. It begins with {}."))
    given = ", ".join(rng.sample(pairs, len(pairs)))
    return ask.format(names[0]), f"{given}.", f"It begins with {' before '.join(names)}."


def notes(rng: random.Random) -> tuple[str, str, list[str]]:
    """What some people do, in the present and in the past tense, and their names."""
    count = rng.randint(4, 6)
    names, things, towns = (rng.sample(pool, count) for pool in (NAMES, OBJECTS, TOWNS))
    rows = list(zip(names, rng.sample(ACTIONS, count), things, towns))
    now, before = (
        " ".join(["Notes.", *(f"{name} {verb[tense]} {thing} in {town}." for name, verb, thing, town in rows)])
        for tense in (0, 2)
    )
    return now, before, names


def retold(rng: random.Random) -> Triple:
    """Notes to put into the past tense."""
    now, before, _ = notes(rng)
    return rng.choice(("Rewrite all notes in the past tense.", "Put every note into the past tense.")), now, before


def _sums(rng: random.Random) -> Triple:
    """Calculations to do, behind letters."""
    found: dict[str, str] = {}  # by the number before the sign, which tells one from the others
    while len(found) < SUMS:
        made = calculation(rng)
        found.setdefault(re.split(r"\D", made)[0], made)
    solved = [f"{letter} {made}" for letter, made in zip("abcdefgh", found.values())]
    ask = rng.choice(("Work out each sum.", "Solve these.", "Write each sum with its result."))
    return ask, ", ".join(line.partition("=")[0] for line in solved), ", ".join(solved)


def _known(rng: random.Random) -> Triple:
    now, _, names = notes(rng)
    asked = rng.choice(names)
    note = next(note for note in now.split(". ") if note.startswith(asked)).rstrip(".")
    ask = rng.choice(("What do we know of {}?", "Say what you know of {}."))
    return ask.format(asked), now, f"We know of {asked}. {note}."


def _opposites(rng: random.Random) -> Triple:
    pairs = [pair if rng.random() < 0.5 else pair[::-1] for pair in rng.sample(OPPOSITES, 3)]
    words = ("the opposite of", "the reverse of", "the contrary of")
    asked = ", ".join(f"{word} {pair[0]}" for word, pair in zip(words, pairs))
    told = ", ".join(f"{word} {pair[0]} is {pair[1]}" for word, pair in zip(words, pairs))
    return rng.choice(("Complete the text.", "Say what these are.")), f"We want {asked}.", f"We know that {told}."


def _email(rng: random.Random) -> Triple:
    sender, receiver = rng.sample(NAMES, 2)
    topic, town = rng.choice(TOPICS), rng.choice(TOWNS)
    ask = rng.choice(("Write a polite email to {} about {}.", "Please write an email to {} about {}."))
    close = f"Regards from {sender} in {town}"
    body = "Could you please send me your answer by tomorrow?"
    return ask.format(receiver, topic), f"{close}.", f"An email to {receiver} about {topic}.\n{body}\n{close}"


KINDS: tuple[Callable[[random.Random], Triple], ...] = (
    *(_past, _sentiment, _opposites, _email, retold),
    *(listed, queue, _known) * 2,
    *(_sums,) * 6,
)
