r"""Calculations of many steps that carry a number along, as mathematical problems in the form of AIME.

The steps stand in the problem in random order, and each names the next place. A solution restates a step, does it and
names what it holds, so that every piece is copied from what stands near, or follows two tokens that stand together once
in the problem: nothing has to be counted.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from ssd_bench.conf import read_yaml
from studies.miniature.domains.arithmetic import LARGEST, SMALL
from studies.miniature.domains.item import Item

STEPS = (30, 76)  # drawn uniformly; about 18 tokens per step
TABLES = 0.35  # share of problems with rules in a table
TABLE_STEPS = (23, 58)  # about 24 tokens a step
HELD = (10, LARGEST)  # bounds of the number that is carried along
ADDED = (2, SMALL - 1)  # bounds of summands; all sums also occur in word problems, and are learnt there
DOUBLED = 0.08  # share of steps that double or halve, if the result is within bounds

TEXTS = read_yaml(Path(__file__).with_suffix(".yaml"))
PLACES: Sequence[str] = TEXTS["places"]


def make(rng: random.Random, scale: float = 1.0) -> Item:
    r"""Make a walk over places that each change a number; the solution ends in `\boxed{}`.

    Args:
        scale: in (0, 1]; factor on the number of steps.
    """
    if rng.random() < TABLES:
        return _table(rng, steps(rng, TABLE_STEPS, scale))
    return _walk(rng, steps(rng, STEPS, scale))


def steps(rng: random.Random, bounds: tuple[int, int], scale: float) -> int:
    """Draw a number of steps within bounds times `scale`, at least 2."""
    return max(2, round(rng.randint(*bounds) * scale))


def route(rng: random.Random, n: int) -> tuple[list[str], list[str]]:
    """Draw the places in the order of a walk; return them and the place after each."""
    places = rng.sample(PLACES, n)
    return places, [*places[1:], "home"]


def shuffled(rng: random.Random, lines: Sequence[str]) -> str:
    """Return the lines in random order as one text."""
    return "\n".join(rng.sample(lines, len(lines)))


def _walk(rng: random.Random, n: int) -> Item:
    places, ways = route(rng, n)
    held = first = rng.randint(*HELD)
    lines, solution = [], []
    for place, next_place in zip(places, ways):
        operation, result = _operation(rng, held)
        lines.append(f"From {place} to {next_place} {operation}.")
        solution.append(f"{lines[-1]} Now {held}{operation}={result} at {next_place}.")
        held = result
    return _item(rng, [f"A walk begins at {places[0]} with the number {first}."], lines, solution, held)


def _table(rng: random.Random, n: int) -> Item:
    """Make a walk whose places name a rule of a table."""
    places, ways = route(rng, n)
    held = first = rng.randint(20, 40)
    all_changes = [(sign, by) for sign in "+-" for by in range(ADDED[0], ADDED[1] + 1)]
    changes = dict(zip(TEXTS["colours"], rng.sample(all_changes, len(all_changes))))
    lines, solution = [], []
    for place, next_place in zip(places, ways):
        valid = [name for name, (sign, by) in changes.items() if HELD[0] <= held + int(f"{sign}{by}") <= HELD[1]]
        colour = rng.choice(valid)
        sign, by = changes[colour]
        before, held = held, held + int(f"{sign}{by}")
        lines.append(f"From {place} to {next_place} {colour}.")
        rule = f"Rule {colour} {sign}{by}."
        solution.append(f"{lines[-1]} {rule} Now {before}{sign}{by}={held} at {next_place}.")
    opening = f"A walk begins at {places[0]} with the number {first}."
    rules = [f"Rule {name} {sign}{by}." for name, (sign, by) in changes.items()]
    return _item(rng, [opening, *rules], lines, solution, held)


def _operation(rng: random.Random, held: int) -> tuple[str, int]:
    """Draw an operation on the number, such as `+5` or `*2`; return it and the result."""
    if rng.random() < DOUBLED:
        if 2 * held <= HELD[1]:
            return "*2", 2 * held
        if held % 2 == 0 and held // 2 >= HELD[0]:
            return "/2", held // 2
    return change(rng, held)


def change(rng: random.Random, held: int) -> tuple[str, int]:
    """Draw an addition or subtraction, such as `+5`, with a result within bounds; return it and the result."""
    by = rng.randint(*ADDED)
    valid = [text for text in (f"+{by}", f"-{by}") if HELD[0] <= held + int(text) <= HELD[1]]
    operation = rng.choice(valid)
    return operation, held + int(operation)


def _item(rng: random.Random, opening: Sequence[str], lines: Sequence[str], solution: Sequence[str], held: int) -> Item:
    problem = "\n".join([*opening, shuffled(rng, lines), rng.choice(TEXTS["asks"])])
    text = "\n".join([*solution, rf"The answer is \boxed{{{held}}}."])
    return Item({"problem": problem, "answer": str(held)}, text)
