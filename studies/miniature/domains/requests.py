"""Short instructions with an input, in the format of Alpaca, of kinds that a model of this size learns in few tokens.

What an output takes from its input stands there after the same two words, which stand together once: lists keep their
order, a queue's names each tell the next, and what an instruction points at is restated in its own words. Sums are most
of them: bare of any story they teach in few tokens what word problems and derivations need.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ssd_bench.conf import read_yaml
from studies.miniature.domains.arithmetic import calculation
from studies.miniature.domains.item import Item

FEWEST, MOST = 6, 14  # words of a list
SUMS = 8
TEXTS = read_yaml(Path(__file__).with_suffix(".yaml"))
CATEGORIES: Mapping[str, Sequence[str]] = TEXTS["categories"]
WORDS = [word for name, words in CATEGORIES.items() if name != "countries" for word in words]
OPPOSITES: Sequence[Sequence[str]] = TEXTS["opposites"]
ACTIONS: Sequence[Sequence[str]] = TEXTS["actions"]
NAMES, TOWNS, OBJECTS = TEXTS["names"], TEXTS["towns"], TEXTS["objects"]
ASKS: Mapping[str, Sequence[str]] = TEXTS["asks"]
POOL = WORDS + NAMES + TOWNS + OBJECTS
# Words by which answers find the next word in their prompts.
POINTERS = (*POOL, *(word for words in (*ACTIONS, *OPPOSITES) for word in words))

# An instruction, its input and the output.
Triple = tuple[str, str, str]


def make(rng: random.Random) -> Item:
    """Make an instruction of a random kind, weighted by its repetitions in `KINDS`."""
    instruction, input_text, output = rng.choice(KINDS)(rng)
    return Item({"instruction": instruction, "input": input_text, "output": output}, output)


def _past(rng: random.Random) -> Triple:
    """Make a sentence to put into the past tense."""
    subject = " and ".join(rng.sample(NAMES, 2)) if rng.random() < 0.5 else rng.choice(NAMES)
    third, base, past = rng.choice(ACTIONS)
    verb = base if " and " in subject else third
    details = f"{rng.choice(OBJECTS)} {rng.choice(TEXTS['moments'])} in {rng.choice(TOWNS)}"
    ask = rng.choice(ASKS["past"])
    return ask, f"{subject} {verb} {details}.", f"{subject} {past} {details}."


def _sentiment(rng: random.Random) -> Triple:
    """Make a good or bad review to classify."""
    good = rng.random() < 0.5
    product, (first, second) = rng.choice(TEXTS["products"]), rng.sample(TEXTS["good" if good else "bad"], 2)
    part, town, name = rng.choice(TEXTS["staff"]), rng.choice(TOWNS), rng.choice(NAMES)
    text = f"The {product} in {town} was {first} and the {part} was {second}, says {name}."
    ask = rng.choice(ASKS["sentiment"])
    return ask, text, f"The review of the {product} is {'positive' if good else 'negative'}."


def listed(rng: random.Random) -> Triple:
    """Make a list to repeat."""
    text = f"List: {', '.join(rng.sample(POOL, rng.randint(FEWEST, MOST)))}."
    return rng.choice(ASKS["listed"]), text, text


def queue(rng: random.Random) -> Triple:
    """Make a shuffled queue to put in order, in which every name tells the next one."""
    names = [*rng.sample(NAMES, rng.randint(5, 8)), "nobody"]
    pairs = [f"{name} before {following}" for name, following in zip(names, names[1:])]
    ask = rng.choice(ASKS["queue"])
    input_text = ", ".join(rng.sample(pairs, len(pairs)))
    return ask.format(names[0]), f"{input_text}.", f"It begins with {' before '.join(names)}."


def notes(rng: random.Random) -> tuple[str, str, list[str]]:
    """Return notes on people in the present tense, the same in the past tense, and the people's names."""
    count = rng.randint(4, 6)
    names, things, towns = (rng.sample(pool, count) for pool in (NAMES, OBJECTS, TOWNS))
    rows = list(zip(names, rng.sample(ACTIONS, count), things, towns))
    now, before = (
        " ".join(["Notes.", *(f"{name} {verb[tense]} {thing} in {town}." for name, verb, thing, town in rows)])
        for tense in (0, 2)
    )
    return now, before, names


def retold(rng: random.Random) -> Triple:
    """Make notes to put into the past tense."""
    now, before, _ = notes(rng)
    return rng.choice(ASKS["notes"]), now, before


def _sums(rng: random.Random) -> Triple:
    """Make lettered calculations to do."""
    sums: dict[str, str] = {}  # first operand -> calculation; the answer finds a sum by its first operand
    while len(sums) < SUMS:
        solved_sum = calculation(rng)
        sums.setdefault(re.split(r"\D", solved_sum)[0], solved_sum)
    solved = [f"{letter} {solved_sum}" for letter, solved_sum in zip("abcdefgh", sums.values())]
    ask = rng.choice(ASKS["sums"])
    return ask, ", ".join(line.partition("=")[0] for line in solved), ", ".join(solved)


def _note_of_person(rng: random.Random) -> Triple:
    now, _, names = notes(rng)
    person = rng.choice(names)
    note = next(note for note in now.split(". ") if note.startswith(person)).rstrip(".")
    ask = rng.choice(ASKS["person"])
    return ask.format(person), now, f"We know of {person}. {note}."


def _opposites(rng: random.Random) -> Triple:
    pairs = [pair if rng.random() < 0.5 else pair[::-1] for pair in rng.sample(OPPOSITES, 3)]
    words = ("the opposite of", "the reverse of", "the contrary of")
    questions = ", ".join(f"{word} {pair[0]}" for word, pair in zip(words, pairs))
    answers = ", ".join(f"{word} {pair[0]} is {pair[1]}" for word, pair in zip(words, pairs))
    return rng.choice(ASKS["opposites"]), f"We want {questions}.", f"We know that {answers}."


def _email(rng: random.Random) -> Triple:
    sender, receiver = rng.sample(NAMES, 2)
    topic, town = rng.choice(TEXTS["topics"]), rng.choice(TOWNS)
    ask = rng.choice(ASKS["email"])
    close = f"Regards from {sender} in {town}"
    body = "Could you please send me your answer by tomorrow?"
    return ask.format(receiver, topic), f"{close}.", f"An email to {receiver} about {topic}.\n{body}\n{close}"


KINDS: tuple[Callable[[random.Random], Triple], ...] = (
    *(_past, _sentiment, _opposites, _email, retold),
    *(listed, queue, _note_of_person) * 2,
    *(_sums,) * 6,
)
