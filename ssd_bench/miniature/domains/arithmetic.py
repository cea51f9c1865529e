"""Arithmetic word problems in the form of GSM8K.

The operations follow the order of the text, no number leaves 0..50 and what is added or taken away is at most 6, so
that a tiny model sees every sum often enough to learn it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ssd_bench.miniature.domains.item import Item

TASK = "gsm8k"

LARGEST = 50
SMALL = 6  # largest number that is added or taken away

_PEOPLE = tuple(
    (name, pronoun)
    for pronoun, names in (
        ("She", "Lena Priya Nora Zoe Mina Ruth Tess Aisha Wanda Ivy"),
        ("He", "Omar Felix Hugo Ravi Boris Kurt Nils Pablo Sven Emil"),
    )
    for name in names.split()
)
_THINGS = (
    *("marbles", "stickers", "stamps", "pencils", "buttons", "coins", "beads", "crayons", "balloons", "ribbons"),
    *("cookies", "candles", "puzzles", "whistles", "magnets", "badges", "erasers", "kites", "dominoes", "postcards"),
)
_HOLDERS = ("bag", "box", "jar", "drawer", "tin", "basket")
_PLURALS = {"box": "boxes"}
_PLACES = ("at the fair", "at school", "at a party", "in the park", "in the attic", "at the market")


@dataclass(frozen=True)
class _Skeleton:
    """A kind of word problem.

    Attributes:
        steps: the first calculation with both operands ("a*b"), then an operator and an operand for each further one,
            whose left operand is the previous result; a repeated letter is the same number.
        question: the problem, with the operands as `{a}` to `{d}`.
        lines: the sentence of every step, with `{step}` for the calculation.
    """

    steps: tuple[str, ...]
    question: str
    lines: tuple[str, ...]


_SKELETONS = (
    _Skeleton(
        ("a*b", "-c"),
        "{name} buys {a} {holders} {place}. There are {b} {things} in each {holder}. {She} gives {c} {things} to "
        "{friend}. How many {things} does {name} keep?",
        ("{name} buys {step} {things}.", "{She} keeps {step} {things}."),
    ),
    _Skeleton(
        ("a*b", "+c"),
        "{name} owns {a} {holders} with {b} {things} in each {holder}. {She} finds {c} more {things} {place}. "
        "How many {things} does {name} have now?",
        ("{name} owns {step} {things}.", "{She} now has {step} {things}."),
    ),
    _Skeleton(
        ("a+b", "-c"),
        "{name} has {a} {things} in a {holder} and gets {b} more from {friend}. Then {name} loses {c} {things} "
        "{place}. How many {things} does {name} have left?",
        ("{name} gets up to {step} {things}.", "{She} has {step} {things} left."),
    ),
    _Skeleton(
        ("a/b", "+c"),
        "{name} shares {a} {things} equally among {b} friends {place}. {friend} is one of them and already had {c} "
        "{things} at home. How many {things} does {friend} have now?",
        ("{friend} gets {step} {things}.", "Now {friend} has {step} {things}."),
    ),
    _Skeleton(
        ("a*b", "-c", "+d"),
        "{name} fills {a} {holders} with {b} {things} each. {She} drops {c} {things} {place} and then gets {d} new "
        "{things} from {friend}. How many {things} does {name} have in the end?",
        (
            "{name} fills in {step} {things}.",
            "After the drop there are {step} {things}.",
            "The end is {step} {things}.",
        ),
    ),
    _Skeleton(
        ("a*b", "+c", "-d"),
        "{name} sells {a} {things} {place} for {b} dollars each. {She} already had {c} dollars and pays {d} dollars "
        "to {friend} for a {holder}. How many dollars does {name} have left?",
        ("{name} earns {step} dollars.", "With the old money it is {step} dollars.", "{She} has {step} dollars left."),
    ),
    _Skeleton(
        ("a*b", "+a"),
        "{friend} has a {holder} with {a} {things}. {name} looks {place} and finds {b} times as many {things} as "
        "{friend} has. How many {things} do {friend} and {name} have together?",
        ("{name} finds {step} {things}.", "Together they have {step} {things}."),
    ),
    _Skeleton(
        ("a-b", "*c"),
        "{name} takes {a} {things} out of a {holder}. {She} keeps {b} {things} and sells all the others {place} for "
        "{c} dollars each. How many dollars does {name} earn?",
        ("{name} sells {step} {things}.", "{She} earns {step} dollars."),
    ),
    _Skeleton(
        ("a+b", "-c", "-d"),
        "{name} paints {a} {things} on Monday and {b} {things} on Tuesday. {friend} takes {c} of them, and {d} more "
        "break {place}. How many painted {things} are left?",
        ("{name} paints {step} {things}.", "Without those of {friend} there are {step} {things}.", "{step} are left."),
    ),
)


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
    holder = rng.choice(_HOLDERS)
    words = {
        "name": name,
        "She": pronoun,
        "friend": friend,
        "things": rng.choice(_THINGS),
        "holder": holder,
        "holders": _PLURALS.get(holder, f"{holder}s"),
        "place": rng.choice(_PLACES),
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
