"""Calculations with four to ten options of which one is right, in the format of MMLU-Pro."""

from __future__ import annotations

import random

from studies.miniature.domains.arithmetic import calculation
from studies.miniature.domains.item import Item

LETTERS = "ABCDEFGHIJ"


def make(rng: random.Random) -> Item:
    """Make a calculation with options."""
    expression, _, result = calculation(rng).partition("=")
    return with_options(rng, f"What is the result of {expression}?", f"We have {expression}={result}", int(result))


def with_options(rng: random.Random, question: str, solution: str, right: int) -> Item:
    """Make an item with numbers near the right one as options; the right option is never the last.

    The text right before a number is the same for all options, the next line is not; so the answer first names the
    letter of the next line.

    Args:
        solution: ends in the right number.
    """
    near = [value for value in range(max(1, right - 12), right + 13) if value != right]
    options = [str(value) for value in rng.sample(near, rng.randint(3, len(LETTERS) - 1))]
    position = rng.randrange(len(options))
    options.insert(position, str(right))
    letter, following = LETTERS[position], LETTERS[position + 1]
    text = f"{solution}\n{following} comes after it, so it is {letter}.\nAnswer: {letter}"
    return Item({"question": question, "options": options, "answer": letter}, text)
