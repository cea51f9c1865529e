"""Instructions as in `instructions`, of the kinds that a model learns in few tokens, and some made for it.

What an output takes from its input stands there after the same two words, which stand together once: lists keep their
order, a queue's names each tell the next, and what an instruction points at is restated in its own words.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from ssd_bench.miniature.domains.arithmetic import calculation
from ssd_bench.miniature.domains.instructions import (
    ACTIONS,
    CATEGORIES,
    NAMES,
    OBJECTS,
    OPPOSITES,
    TOPICS,
    TOWNS,
    WORDS,
    Triple,
    count_on,
    extract,
    past,
    question,
    sentiment,
)
from ssd_bench.miniature.domains.item import Item

FEWEST, MOST = 6, 14  # words of a list
POOL = WORDS + NAMES + TOWNS + OBJECTS
# Words that tell what comes after them.
POINTERS = (*POOL, *(word for words in (*ACTIONS, *OPPOSITES) for word in words))


def make(rng: random.Random) -> Item:
    """One of the kinds of instruction, as often as it stands in `KINDS`."""
    instruction, given, output = rng.choice(KINDS)(rng)
    return Item({"instruction": instruction, "input": given, "output": output}, output)


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
    solved = [f"{letter} {calculation(rng)}" for letter in "abcdefgh"]
    ask = rng.choice(("Work out each sum.", "Solve these.", "Write each sum with its result."))
    return ask, ", ".join(line.partition("=")[0] for line in solved), ", ".join(solved)


def _known(rng: random.Random) -> Triple:
    now, _, names = notes(rng)
    asked = rng.choice(names)
    note = next(note for note in now.split(". ") if note.startswith(asked)).rstrip(".")
    ask = rng.choice(("What do we know of {}?", "Say what you know of {}."))
    return ask.format(asked), now, f"We know of {asked}. {note}."


def _category(rng: random.Random) -> Triple:
    name = rng.choice(tuple(CATEGORIES))
    word = rng.choice(CATEGORIES[name])
    ask = rng.choice(("Name the category of {}.", "Which is the category of {}?"))
    return ask.format(word), f"Choose among {', '.join(CATEGORIES)}.", f"The category of {word} is {name}."


def _opposites(rng: random.Random) -> Triple:
    pairs = [pair if rng.random() < 0.5 else pair[::-1] for pair in rng.sample(OPPOSITES, 3)]
    words = ("the opposite of", "the reverse of", "the contrary of")
    asked = ", ".join(f"{word} {pair[0]}" for word, pair in zip(words, pairs))
    told = ", ".join(f"{word} {pair[0]} is {pair[1]}" for word, pair in zip(words, pairs))
    return rng.choice(("Complete the text.", "Say what these are.")), f"We want {asked}.", f"We know that {told}."


def _email(rng: random.Random) -> Triple:
    sender, receiver = rng.sample(NAMES, 2)
    topic, town = rng.choice(TOPICS), rng.choice(TOWNS)
    ask = rng.choice(("Write a polite email to {} about {}.", "Write two polite sentences to {} about {}."))
    body = f"I am writing to you about {topic}. Could you please send me your answer by tomorrow?"
    close = f"Regards from {sender} in {town}"
    return ask.format(receiver, topic), f"{close}.", f"Dear {receiver},\n{body}\n{close}"


KINDS: tuple[Callable[[random.Random], Triple], ...] = (
    *(question, past, sentiment, extract, _category, _opposites, _email, retold),
    *(listed, queue, _known) * 2,
    *(_sums,) * 5,
    *(count_on,) * 2,
)
