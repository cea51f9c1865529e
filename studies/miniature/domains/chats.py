"""Conversations of two turns: an instruction in the form of Alpaca, its output, and a second message about that output.

The second answer follows from the first and the message alone. It takes the pieces in their order, or from one on that
the message names, so that a tiny model finds each next piece after the same two words as in the first answer.
"""

from __future__ import annotations

import random
from pathlib import Path

from ssd_bench.conf import read_yaml
from studies.miniature.domains.item import Item
from studies.miniature.domains.requests import ASKS, POOL, listed, notes, queue

MESSAGES = read_yaml(Path(__file__).with_suffix(".yaml"))

# A message and its answer.
Pair = tuple[str, str]


def make(rng: random.Random) -> Item:
    """Make a list, a queue or notes, each with a matching follow-up."""
    return rng.choice((_list, _queue, _notes))(rng)


def _item(instruction: str, input_text: str, output: str, follow_up: Pair) -> Item:
    return Item({"instruction": instruction, "input": input_text, "output": output}, output, (follow_up,))


def _list(rng: random.Random) -> Item:
    instruction, input_text, output = listed(rng)
    words = output.removeprefix("List: ").removesuffix(".").split(", ")
    new_word = rng.choice([word for word in POOL if word not in words])
    position = rng.randrange(1, len(words) - 1)
    follow_up = rng.choice(
        (
            _again(rng, output),
            _onwards(rng, words[position], f"{', '.join(words[position:])}."),
            (rng.choice(MESSAGES["addition"]).format(new_word), f"Now we add {new_word}. {output}"),
            (f"What is next after {words[position]}?", f"The next after {words[position]}, {words[position + 1]}."),
            (
                rng.choice(MESSAGES["twice"]),
                f"List: {', '.join(f'{word} {word}' for word in words)}.",
            ),
        )
    )
    return _item(instruction, input_text, output, follow_up)


def _queue(rng: random.Random) -> Item:
    instruction, input_text, output = queue(rng)
    names = output.removeprefix("It begins with ").split(" before ")
    position = rng.randrange(1, len(names) - 2)
    follow_up = rng.choice((_again(rng, output), _onwards(rng, names[position], " before ".join(names[position:]))))
    return _item(instruction, input_text, output, follow_up)


def _notes(rng: random.Random) -> Item:
    now, before, names = notes(rng)
    note_of_person = dict(zip(names, before.removeprefix("Notes. ").removesuffix(".").split(". ")))
    position = rng.randrange(1, len(names))
    name, remaining = names[position], [f"{note_of_person[name]}." for name in names[position:]]
    follow_up = rng.choice(
        (
            _again(rng, before),
            _onwards(rng, name, " ".join([f"{name}.", *remaining])),
            (
                rng.choice(MESSAGES["person"]).format(name),
                f"We tell about {name}. {remaining[0]}",
            ),
            (rng.choice(MESSAGES["present"]), now),
        )
    )
    return _item(rng.choice(ASKS["notes"]), now, before, follow_up)


def _again(rng: random.Random, output: str) -> Pair:
    return rng.choice(MESSAGES["again"]), output


def _onwards(rng: random.Random, piece: str, remaining: str) -> Pair:
    """Return a message that asks to start from a piece, and its answer."""
    return rng.choice(MESSAGES["onwards"]).format(piece), f"We start from {remaining}"
