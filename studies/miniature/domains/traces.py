"""Small programs over three registers, traced line by line to the right option, in the format of MMLU-Pro."""

from __future__ import annotations

import random

from studies.miniature.domains.choices import with_options
from studies.miniature.domains.derivations import HELD, change, route, shuffled, steps
from studies.miniature.domains.item import Item

STEPS = (15, 40)  # drawn uniformly; about 35 tokens per step
REGISTERS = "abc"


def make(rng: random.Random, scale: float = 1.0) -> Item:
    """Make a program whose lines name the next line, and a question on a register; the answer ends in the letter.

    Args:
        scale: in (0, 1]; factor on the number of lines.
    """
    places, ways = route(rng, steps(rng, STEPS, scale))
    state = {name: rng.randint(*HELD) for name in REGISTERS}
    start = _state(state)
    lines, solution = [], []
    for place, next_place in zip(places, ways):
        name = rng.choice(REGISTERS)
        before = state[name]
        operation, state[name] = change(rng, before)
        lines.append(f"At {place} {name} {next_place} {operation}.")
        solution.append(
            f"{lines[-1]} Now {name}={before}{operation}={state[name]}, so {_state(state)} at {next_place}."
        )
    register = rng.choice(REGISTERS)
    ask = rng.choice(
        ("Find the value of {} at the end.", "What is the value of {} at the end?", "Give the value of {}.")
    )
    opening = f"A program begins at {places[0]} with {start}. A line has a register, the next line and a change."
    question = f"{opening}\n{shuffled(rng, lines)}\n{ask.format(register)}"
    solution.append(f"We want {register}={state[register]}")
    return with_options(rng, question, "\n".join(solution), state[register])


def _state(state: dict[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in state.items())
