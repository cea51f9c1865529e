"""Short questions with all accepted answers, in the format of NQ-open: lower case, no question mark."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from ssd_bench.conf import read_yaml
from studies.miniature.domains.item import Item
from studies.miniature.domains.requests import ACTIONS, CATEGORIES, OPPOSITES

TEXTS = read_yaml(Path(__file__).with_suffix(".yaml"))
SMALL: Sequence[str] = TEXTS["small"]
TENS: Sequence[str] = TEXTS["tens"]

# A question and its accepted answers.
QuestionAnswers = tuple[str, list[str]]


def make(rng: random.Random) -> Item:
    """Make a question of any kind; sums, with most variety, are nearly half of all."""
    question, accepted = rng.choice((_sum, _sum, _sum, _opposite, _kind, _past, _next))(rng)
    return Item({"question": rng.choice(TEXTS["openings"]) + question, "answer": accepted}, accepted[0])


def _word(number: int) -> str:
    """Return a number from 0 to 99 in words."""
    if number < len(SMALL):
        return SMALL[number]
    tens, units = divmod(number, 10)
    return TENS[tens - 2] + (f"-{SMALL[units]}" if units else "")


def _sum(rng: random.Random) -> QuestionAnswers:
    a, b = rng.randint(2, 49), rng.randint(2, 49)
    name, result = rng.choice((("plus", a + b), ("minus", a - b) if a > b else ("plus", a + b)))
    return f"what is {_word(a)} {name} {_word(b)}", [str(result), _word(result)]


def _opposite(rng: random.Random) -> QuestionAnswers:
    pair = rng.choice(OPPOSITES)
    word, answer = pair if rng.random() < 0.5 else pair[::-1]
    return f"what is the opposite of {word}", [answer]


def _kind(rng: random.Random) -> QuestionAnswers:
    name = rng.choice([name for name in CATEGORIES if name != "countries"])
    return f"what is a {rng.choice(CATEGORIES[name])}", [f"a {name[:-1]}", name]


def _past(rng: random.Random) -> QuestionAnswers:
    _, base, past = rng.choice(ACTIONS)
    return f"what is the past tense of {base}", [past]


def _next(rng: random.Random) -> QuestionAnswers:
    names = rng.choice(TEXTS["cycles"])
    place = rng.randrange(len(names))
    word, answer = rng.choice((("after", names[(place + 1) % len(names)]), ("before", names[place - 1])))
    return f"what comes {word} {names[place]}", [answer]
