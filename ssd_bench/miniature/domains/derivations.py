r"""Calculations of many steps that carry a number along, as mathematical problems in the form of AIME.

The steps stand in the problem in random order, and each names the next place. A solution restates a step, does it and
names what it holds, so that every piece is copied from what stands near, or follows two tokens that stand together once
in the problem: nothing has to be counted.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ssd_bench.miniature.domains.arithmetic import LARGEST, SMALL
from ssd_bench.miniature.domains.item import Item

TASK = "aime24"
STEPS = (30, 76)  # drawn uniformly; about 18 tokens a step
TABLES = 0.35  # share of the problems whose rules stand in a table
TABLE_STEPS = (23, 58)  # about 24 tokens a step
HELD = (10, LARGEST)  # what is held stays in these
ADDED = (2, SMALL - 1)  # what is added or taken; so all are sums of word problems, which are learnt with them
DOUBLED = 0.08  # share of the steps that double or halve, where they can

PLACES = (
    *("amber", "anchor", "apple", "arrow", "badge", "basil", "beach", "birch", "bison", "brick", "canal", "cedar"),
    *("chalk", "clover", "coral", "crane", "delta", "ember", "fable", "fern", "flint", "forge", "glade", "grove"),
    *("harbor", "hazel", "heron", "inlet", "ivory", "jade", "kettle", "lagoon", "lantern", "lemon", "lotus"),
    *("maple", "marsh", "meadow", "mint", "nectar", "oasis", "olive", "onyx", "orchid", "otter", "pearl"),
    *("pebble", "pepper", "pine", "plaza", "quarry", "quartz", "raven", "reef", "ridge", "saddle", "sage"),
    *("shell", "slate", "spruce", "thistle", "tower", "tulip", "velvet", "violet", "walnut", "willow"),
    *("acorn", "barley", "bramble", "cobalt", "copper", "cotton", "falcon", "garnet", "ginger", "juniper", "moss"),
)
ASKS = ("What do we hold at the end?", "Find the number at the end.", "Determine the last number.")
COLOURS = ("red", "blue", "green", "white", "black", "gold", "pink", "gray")


def make(rng: random.Random, scale: float = 1.0) -> Item:
    r"""A walk over places that each change a number; the solution ends in `\boxed{}`.

    Args:
        scale: in (0, 1], share of the steps that are drawn.
    """
    if rng.random() < TABLES:
        return _table(rng, steps(rng, TABLE_STEPS, scale))
    return _walk(rng, steps(rng, STEPS, scale))


def steps(rng: random.Random, bounds: tuple[int, int], scale: float) -> int:
    """A number of steps within bounds that shrink with `scale`, at least 2."""
    return max(2, round(rng.randint(*bounds) * scale))


def route(rng: random.Random, n: int) -> tuple[list[str], list[str]]:
    """Places in the order of the walk, and where each sends the walk."""
    places = rng.sample(PLACES, n)
    return places, [*places[1:], "home"]


def shuffled(rng: random.Random, lines: Sequence[str]) -> str:
    """The lines in random order, one below the other."""
    return "\n".join(rng.sample(lines, len(lines)))


def _walk(rng: random.Random, n: int) -> Item:
    places, ways = route(rng, n)
    held = first = rng.randint(*HELD)
    lines, solution = [], []
    for place, way in zip(places, ways):
        what, result = _operation(rng, held)
        lines.append(f"From {place} to {way} {what}.")
        solution.append(f"{lines[-1]} Now {held}{what}={result} at {way}.")
        held = result
    problem = f"A walk begins at {places[0]} with the number {first}.\n{shuffled(rng, lines)}\n{rng.choice(ASKS)}"
    return _item(problem, solution, held)


def _table(rng: random.Random, n: int) -> Item:
    """A walk whose places name a rule, which stands in a table."""
    places, ways = route(rng, n)
    held = first = rng.randint(20, 40)
    every = [(sign, by) for sign in "+-" for by in range(ADDED[0], ADDED[1] + 1)]
    changes = dict(zip(COLOURS, rng.sample(every, len(every))))
    lines, solution = [], []
    for place, way in zip(places, ways):
        fits = [name for name, (sign, by) in changes.items() if HELD[0] <= held + int(f"{sign}{by}") <= HELD[1]]
        colour = rng.choice(fits)
        sign, by = changes[colour]
        before, held = held, held + int(f"{sign}{by}")
        lines.append(f"From {place} to {way} {colour}.")
        rule = f"Rule {colour} {sign}{by}."
        solution.append(f"{lines[-1]} {rule} Now {before}{sign}{by}={held} at {way}.")
    rules = "\n".join(f"Rule {name} {sign}{by}." for name, (sign, by) in changes.items())
    problem = (
        f"A walk begins at {places[0]} with the number {first}.\n{rules}\n{shuffled(rng, lines)}\n{rng.choice(ASKS)}"
    )
    return _item(problem, solution, held)


def _operation(rng: random.Random, held: int) -> tuple[str, int]:
    """What is done to the number, as `+5` or `*2`, and the result."""
    if rng.random() < DOUBLED:
        if 2 * held <= HELD[1]:
            return "*2", 2 * held
        if held % 2 == 0 and held // 2 >= HELD[0]:
            return "/2", held // 2
    return change(rng, held)


def change(rng: random.Random, held: int) -> tuple[str, int]:
    """What is added or taken, as `+5`, and the result, which stays in bounds."""
    by = rng.randint(*ADDED)
    fits = [text for text in (f"+{by}", f"-{by}") if HELD[0] <= held + int(text) <= HELD[1]]
    what = rng.choice(fits)
    return what, held + int(what)


def _item(problem: str, solution: Sequence[str], held: int) -> Item:
    text = "\n".join([*solution, rf"The answer is \boxed{{{held}}}."])
    return Item({"problem": problem, "answer": str(held)}, text)
