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
    details = f"{rng.choice(OBJECTS)} {rng.choice(MOMENTS)} in {rng.choice(TOWNS)}"
    ask = rng.choice(("Change the sentence to past tense.", "Rewrite in the past tense.", "Use the past tense."))
    return ask, f"{subject} {verb} {details}.", f"{subject} {past} {details}."


def _sentiment(rng: random.Random) -> Triple:
    """Make a good or bad review to classify."""
    good = rng.random() < 0.5
    product, (first, second) = rng.choice(PRODUCTS), rng.sample(GOOD if good else BAD, 2)
    part, town, name = rng.choice(STAFF), rng.choice(TOWNS), rng.choice(NAMES)
    text = f"The {product} in {town} was {first} and the {part} was {second}, says {name}."
    ask = rng.choice(("Classify the sentiment.", "Is this review positive or negative?", "Label the review."))
    return ask, text, f"The review of the {product} is {'positive' if good else 'negative'}."


def listed(rng: random.Random) -> Triple:
    """Make a list to repeat."""
    text = f"List: {', '.join(rng.sample(POOL, rng.randint(FEWEST, MOST)))}."
    return rng.choice(("Repeat the list.", "Copy the items.", "Write the list once more.")), text, text


def queue(rng: random.Random) -> Triple:
    """Make a shuffled queue to put in order, in which every name tells the next one."""
    names = [*rng.sample(NAMES, rng.randint(5, 8)), "nobody"]
    pairs = [f"{name} before {following}" for name, following in zip(names, names[1:])]
    ask = rng.choice(("Put them in order. The queue begins with {}.", "Write down who waits. It begins with {}."))
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
    return rng.choice(("Rewrite all notes in the past tense.", "Put every note into the past tense.")), now, before


def _sums(rng: random.Random) -> Triple:
    """Make lettered calculations to do."""
    sums: dict[str, str] = {}  # first operand -> calculation; the answer finds a sum by its first operand
    while len(sums) < SUMS:
        solved_sum = calculation(rng)
        sums.setdefault(re.split(r"\D", solved_sum)[0], solved_sum)
    solved = [f"{letter} {solved_sum}" for letter, solved_sum in zip("abcdefgh", sums.values())]
    ask = rng.choice(("Work out each sum.", "Solve these.", "Write each sum with its result."))
    return ask, ", ".join(line.partition("=")[0] for line in solved), ", ".join(solved)


def _note_of_person(rng: random.Random) -> Triple:
    now, _, names = notes(rng)
    person = rng.choice(names)
    note = next(note for note in now.split(". ") if note.startswith(person)).rstrip(".")
    ask = rng.choice(("What do we know of {}?", "Say what you know of {}."))
    return ask.format(person), now, f"We know of {person}. {note}."


def _opposites(rng: random.Random) -> Triple:
    pairs = [pair if rng.random() < 0.5 else pair[::-1] for pair in rng.sample(OPPOSITES, 3)]
    words = ("the opposite of", "the reverse of", "the contrary of")
    questions = ", ".join(f"{word} {pair[0]}" for word, pair in zip(words, pairs))
    answers = ", ".join(f"{word} {pair[0]} is {pair[1]}" for word, pair in zip(words, pairs))
    return (
        rng.choice(("Complete the text.", "Say what these are.")),
        f"We want {questions}.",
        f"We know that {answers}.",
    )


def _email(rng: random.Random) -> Triple:
    sender, receiver = rng.sample(NAMES, 2)
    topic, town = rng.choice(TOPICS), rng.choice(TOWNS)
    ask = rng.choice(("Write a polite email to {} about {}.", "Please write an email to {} about {}."))
    close = f"Regards from {sender} in {town}"
    body = "Could you please send me your answer by tomorrow?"
    return ask.format(receiver, topic), f"{close}.", f"An email to {receiver} about {topic}.\n{body}\n{close}"


KINDS: tuple[Callable[[random.Random], Triple], ...] = (
    *(_past, _sentiment, _opposites, _email, retold),
    *(listed, queue, _note_of_person) * 2,
    *(_sums,) * 6,
)
