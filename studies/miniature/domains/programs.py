"""Small Python functions to complete from signature and docstring, in the form of HumanEval.

The docstring determines the body; the examples in it and in the test come from running the body. A docstring lists
steps, and its body restates each as a comment before it does it: a tiny model finds a step by its number, each further
word of it by the two before, which stand together in no other step, and the line of code beside the comment.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssd_bench.conf import read_yaml
from studies.miniature.domains.item import Item

FEWEST, MOST = 5, 8  # steps of a function, its return included
LARGEST = 998  # largest absolute value of numbers in a call
LONGEST = 40  # most characters of strings in a call
CROWD = 12  # most elements of lists in a call
LENGTH = 440  # most characters of a body
ATTEMPTS = 20  # arguments to try per wanted call, before other steps are drawn

TAKES = ("list",) * 5 + ("str", "words")  # parameter kinds of functions

TEXTS = read_yaml(Path(__file__).with_suffix(".yaml"))
STRINGS: Sequence[str] = TEXTS["strings"]
STEPS = {kind: list(steps.items()) for kind, steps in TEXTS["steps"].items()}

# Words by which bodies find the next word in their docstrings: the first of every step.
POINTERS = tuple(sorted({sentence.split()[0] for steps in STEPS.values() for sentence, _ in steps}))


@dataclass(frozen=True)
class _Function:
    """A function: name, parameter, description and indented body."""

    name: str
    parameter: str
    text: str
    body: str

    @property
    def signature(self) -> str:
        return f"def {self.name}({self.parameter}):\n"

    def item(self, calls: list[tuple[str, str]], shown: int) -> Item:
        """Make the item; its docstring has the first `shown` calls with their results, its test the others."""
        examples = "".join(f"    >>> {self.name}({argument})\n    {result}\n" for argument, result in calls[:shown])
        asserts = "".join(f"    assert candidate({argument}) == {result}\n" for argument, result in calls[shown:])
        row = {
            "prompt": f'{self.signature}    """{self.text}\n{examples}    """\n',
            "canonical_solution": self.body,
            "test": f"def check(candidate):\n{asserts}",
            "entry_point": self.name,
        }
        return Item(row, self.body)


def make(rng: random.Random, scale: float = 1.0) -> Item:
    """Make a signature with a docstring of steps, the body, and a test.

    Args:
        scale: in (0, 1]; factor on the number of steps, low at the beginning of a training.
    """
    return _steps(rng, max(2, round(rng.randint(FEWEST, MOST) * scale)))


def _fillings(rng: random.Random, takes: str) -> dict[str, Any]:
    """Draw a word or number for every placeholder."""
    letter, second_letter = rng.sample("aeorst", 2)
    return {
        "p": rng.choice(TEXTS["parameters"][takes]),
        "c": rng.randint(2, 9),
        "d": rng.randint(2, 99),
        "k": rng.randint(2, 25),
        "n": rng.randint(2, 5),
        "l": letter,
        "m": second_letter,
        "w": rng.choice(STRINGS),
        "sep": rng.choice(TEXTS["separators"]),
    }


def _steps(rng: random.Random, count: int) -> Item:
    """Draw functions of `count` steps, the last a return, until one is within all limits; make its item."""
    while True:
        kind = rng.choice(TAKES)
        name = f"{rng.choice(TEXTS['stems'])}_{rng.choice(TEXTS['nicknames'])}"
        parameter = rng.choice(TEXTS["parameters"][kind])
        chosen = [*rng.sample(STEPS[kind], count - 1), rng.choice(TEXTS["returns"][kind])]
        docstring_lines, code_steps = [], []
        for i, step in enumerate(chosen, start=1):
            fillings = _fillings(rng, kind) | {"p": parameter}
            sentence, code = (part.format(**fillings) for part in step)
            docstring_lines.append(f"{i}: {sentence}.")
            code_steps.append(_indented(f"# {docstring_lines[-1]}\n{code}"))
        opening = rng.choice(TEXTS["openings"]).format(p=parameter)
        text = "\n    ".join([opening, *docstring_lines])
        function = _Function(name, parameter, text, "".join(code_steps))
        shown, tested = rng.choice((1, 2)), rng.choice((3, 4))
        calls = _traced(rng, function, code_steps, kind, shown + tested)
        if calls is not None and len(function.body) <= LENGTH:
            return function.item(calls, shown)


def _traced(
    rng: random.Random, function: _Function, steps: list[str], kind: str, count: int
) -> list[tuple[str, str]] | None:
    """Return `count` calls, without an empty or too large value after any step, and their results.

    None if too few are found, or if all results are equal.
    """
    seen: list[Any] = []
    scope: dict[str, Any] = {"seen": seen}
    exec(function.signature + f"    seen.append({function.parameter})\n".join(steps), scope)
    calls: dict[str, str] = {}
    for _ in range(ATTEMPTS * count):
        argument = _argument(rng, kind)
        seen.clear()
        try:
            result = scope[function.name](argument)
        except ValueError:  # max or min of an empty list
            continue
        if all(map(_moderate, [*seen, [result] if isinstance(result, int) else result])):
            calls[repr(argument)] = repr(result)
        if len(calls) == count:
            return list(calls.items()) if len(set(calls.values())) > 1 else None
    return None


def _moderate(value: list[Any] | str) -> bool:
    if isinstance(value, str):
        return 0 < len(value) <= LONGEST
    return 0 < len(value) <= CROWD and all(abs(v) <= LARGEST if isinstance(v, int) else _moderate(v) for v in value)


def _indented(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.split("\n"))


def _argument(rng: random.Random, kind: str) -> list[Any] | str:
    if kind == "list":
        return [rng.randint(1, 30) for _ in range(rng.randint(4, 6))]
    return rng.choice(STRINGS) if kind == "str" else rng.sample(STRINGS, rng.randint(3, 5))
