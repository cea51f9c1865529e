"""Arithmetic word problems in the form of GSM8K.

The operations follow the order of the text, no number leaves 0..50 and what is added or taken away is at most 6, so
that a tiny model sees every sum often enough to learn it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ssd_bench.conf import read_yaml
from studies.miniature.domains.item import Item

LARGEST = 50
SMALL = 6  # largest number that is added or taken away


@dataclass(frozen=True)
class _Skeleton:
    """A kind of word problem.

    Attributes:
        steps: the first calculation with both operands ("a*b"), then an operator and an operand for each further one,
            whose left operand is the previous result; a repeated letter is the same number.
        question: the problem, with the operands as `{a}` to `{d}`.
        lines: the sentence of every step, with `{step}` for the calculation.
    """

    steps: Sequence[str]
    question: str
    lines: Sequence[str]


TEXTS = read_yaml(Path(__file__).with_suffix(".yaml"))
_PEOPLE = [(name, pronoun) for pronoun, names in TEXTS["people"].items() for name in names]
_HOLDERS = list(TEXTS["holders"].items())
_SKELETONS = [_Skeleton(**skeleton) for skeleton in TEXTS["skeletons"]]


@dataclass(frozen=True)
class _Calculation:
    left: int
    operator: str
    right: int
    result: int

    def __str__(self) -> str:
        return f"{self.left}{self.operator}{self.right}"


def make(rng: random.Random) -> Item:
    """Make a word problem with a solution as in GSM8K: calculator annotations, and the result after `####`."""
    skeleton = rng.choice(_SKELETONS)
    numbers, calculations = _draw(rng, skeleton.steps)
    (name, pronoun), (friend, _) = rng.sample(_PEOPLE, 2)
    holder, holders = rng.choice(_HOLDERS)
    words = {
        "name": name,
        "She": pronoun,
        "friend": friend,
        "things": rng.choice(TEXTS["things"]),
        "holder": holder,
        "holders": holders,
        "place": rng.choice(TEXTS["places"]),
    }
    solution = [
        line.format(step=f"{step}=<<{step}={step.result}>>{step.result}", **words)
        for line, step in zip(skeleton.lines, calculations)
    ]
    answer = "\n".join([*solution, f"#### {calculations[-1].result}"])
    return Item({"question": skeleton.question.format(**numbers, **words), "answer": answer}, answer)


def calculation(rng: random.Random) -> str:
    """Draw one calculation; return it with its result, such as `6*8=48`."""
    (step,) = _draw(rng, [f"a{rng.choice('*+-/')}b"])[1]
    return f"{step}={step.result}"


def _draw(rng: random.Random, steps: Sequence[str]) -> tuple[dict[str, int], list[_Calculation]]:
    """Draw operands until every result is within bounds; return them by letter, and the calculations."""
    while True:
        numbers: dict[str, int] = {}
        calculations: list[_Calculation] = []
        for step in steps:
            operator = step[-2]
            if operator == "/":  # always the first step; drawn from its quotient, so that the division is exact
                numbers["b"] = rng.randint(2, 9)
                numbers["a"] = numbers["b"] * rng.randint(2, min(9, LARGEST // numbers["b"]))
            for letter in step.replace(operator, ""):
                if letter not in numbers:
                    largest = LARGEST - SMALL if letter == "a" else SMALL
                    numbers[letter] = rng.randint(2, 9 if operator == "*" else largest)
            left = calculations[-1].result if calculations else numbers[step[0]]
            result = _result(left, operator, numbers[step[-1]])
            if result is None:
                break
            calculations.append(_Calculation(left, operator, numbers[step[-1]], result))
        else:
            return numbers, calculations


def _result(left: int, operator: str, right: int) -> int | None:
    """Return the result; None outside 0..50, or for a product outside the times table of 2 to 9."""
    if operator == "/":
        return left // right
    if operator == "*" and not 2 <= left <= 9:
        return None
    result = {"*": left * right, "+": left + right, "-": left - right}[operator]
    return result if 0 <= result <= LARGEST else None
