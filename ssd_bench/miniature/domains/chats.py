"""Conversations of two turns: an instruction in the form of Alpaca, its output, and a second message about that output.

The second answer follows from the first and the message alone. It takes the pieces in their order, or from one on that
the message names, so that a tiny model finds each next piece after the same two words as in the first answer.
"""

from __future__ import annotations

import random

from ssd_bench.miniature.domains.item import Item
from ssd_bench.miniature.domains.requests import POOL, listed, notes, queue

# A message and its answer.
Pair = tuple[str, str]


def make(rng: random.Random) -> Item:
    """A list, a queue or notes, with one of the follow-ups that it allows."""
    return rng.choice((_list, _queue, _notes))(rng)


def _item(instruction: str, given: str, output: str, follow_up: Pair) -> Item:
    return Item({"instruction": instruction, "input": given, "output": output}, output, (follow_up,))


def _list(rng: random.Random) -> Item:
    instruction, given, output = listed(rng)
    words = output.removeprefix("List: ").removesuffix(".").split(", ")
    spare = rng.choice([word for word in POOL if word not in words])
    at = rng.randrange(1, len(words) - 1)
    follow_up = rng.choice(
        (
            _again(rng, output),
            _onwards(rng, words[at], f"{', '.join(words[at:])}."),
            (rng.choice(("Now we add {}!", "Next we add {}.")).format(spare), f"Now we add {spare}. {output}"),
            (f"What is next after {words[at]}?", f"The next after {words[at]}, {words[at + 1]}."),
            (
                rng.choice(("Write each of them twice.", "Now everything twice, please.")),
                f"List: {', '.join(f'{word} {word}' for word in words)}.",
            ),
        )
    )
    return _item(instruction, given, output, follow_up)


def _queue(rng: random.Random) -> Item:
    instruction, given, output = queue(rng)
    names = output.removeprefix("It begins with ").split(" before ")
    at = rng.randrange(1, len(names) - 2)
    follow_up = rng.choice((_again(rng, output), _onwards(rng, names[at], " before ".join(names[at:]))))
    return _item(instruction, given, output, follow_up)


def _notes(rng: random.Random) -> Item:
    now, before, names = notes(rng)
    told = dict(zip(names, before.removeprefix("Notes. ").removesuffix(".").split(". ")))
    at = rng.randrange(1, len(names))
    name, rest = names[at], [f"{told[name]}." for name in names[at:]]
    follow_up = rng.choice(
        (
            _again(rng, before),
            _onwards(rng, name, " ".join([f"{name}.", *rest])),
            (
                rng.choice(("Now tell about {}!", "Just tell about {}.")).format(name),
                f"We tell about {name}. {rest[0]}",
            ),
            (rng.choice(("Now in the present tense.", "Back to the present tense.")), now),
        )
    )
    ask = rng.choice(("Rewrite all notes in the past tense.", "Put every note into the past tense."))
    return _item(ask, now, before, follow_up)


def _again(rng: random.Random, output: str) -> Pair:
    return rng.choice(("Say that again.", "Please repeat your answer.", "Once more, please.")), output


def _onwards(rng: random.Random, piece: str, rest: str) -> Pair:
    """From a piece on."""
    ask = rng.choice(("Now start from {}!", "Please start from {}!"))
    return ask.format(piece), f"We start from {rest}"
