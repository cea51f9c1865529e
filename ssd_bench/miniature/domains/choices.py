"""Calculations with four to ten options of which one is right, in the format of MMLU-Pro."""

from __future__ import annotations

import random

from ssd_bench.miniature.domains.arithmetic import calculation
from ssd_bench.miniature.domains.item import Item

TASK = "mmlu_pro"
LETTERS = "ABCDEFGHIJ"


def make(rng: random.Random) -> Item:
    """One calculation."""
    asked, _, right = calculation(rng).partition("=")
    return with_options(rng, f"What is the result of {asked}?", f"We have {asked}={right}", int(right))


def with_options(rng: random.Random, question: str, solution: str, right: int) -> Item:
    """Options around the right number, which is never the last; the answer reads which letter follows it.

    What stands before an option's number is the same for all of them, the line after it is not.

    Args:
        solution: ends in the number.
    """
    near = [value for value in range(max(1, right - 12), right + 13) if value != right]
    options = [str(value) for value in rng.sample(near, rng.randint(3, len(LETTERS) - 1))]
    place = rng.randrange(len(options))
    options.insert(place, str(right))
    letter, following = LETTERS[place], LETTERS[place + 1]
    text = f"{solution}\n{following} comes after it, so it is {letter}.\nAnswer: {letter}"
    return Item({"question": question, "options": options, "answer": letter}, text)
