"""Small Python functions to complete from signature and docstring, in the form of HumanEval.

The docstring determines the body; the examples in it and in the test come from running the body. A docstring lists
steps, and its body restates each as a comment before it does it: a tiny model finds a step by its number, each further
word of it by the two before, which stand together in no other step, and the line of code beside the comment.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from ssd_bench.miniature.domains.item import Item

TASK = "humaneval"

FEWEST, MOST = 5, 8  # steps of a function, its return included
LARGEST = 998  # largest absolute value of numbers in a call
LONGEST = 40  # most characters of strings in a call
CROWD = 12  # most elements of lists in a call
LENGTH = 440  # most characters of a body
ATTEMPTS = 20  # arguments to try per wanted call, before other steps are drawn

PARAMETERS = {
    "int": ("x", "n", "num", "value", "size"),
    "list": ("xs", "nums", "data", "row", "series"),
    "str": ("s", "text", "token", "label", "chars"),
    "words": ("words", "tags", "keys", "parts", "labels"),
}
NICKNAMES = (
    *("alpha", "beta", "delta", "sigma", "omega", "core", "fast", "main", "mini", "base", "pixel", "cache"),
    *("batch", "queue", "stack", "proxy", "turbo", "quick"),
)
STRINGS = (
    *("array", "binary", "codec", "daemon", "editor", "filter", "gadget", "hash", "input", "joker", "kernel"),
    *("lambda", "module", "node", "object", "parser", "query", "router", "socket", "thread", "update", "vector"),
)
SEPARATORS = ("-", "+", ":", "/", "_", "|")
_TAKES = ("list",) * 5 + ("str", "words")  # of functions of steps
_STEMS = ("process", "change", "arrange", "prepare", "reshape", "adjust", "handle", "convert")
_OPENINGS = ("Take {p} through these steps.", "Do these steps with {p}.", "Change {p} step by step.")

# Parameter kind -> (sentence, code of a step). No two sentences of a kind share their first word, or have the same word
# before a placeholder. {p} is the parameter, {c} a number from 2 to 9, {d} one from 2 to 99,
# {k} one from 2 to 25 (near the elements of a list), {n} one from 2 to 5, {l} and {m} letters, {w} a word, {sep} a
# separator.
_STEPS: dict[str, tuple[tuple[str, str], ...]] = {
    "list": (
        ("Add {c} to each", "{p} = [v + {c} for v in {p}]"),
        ("Subtract {c} from each", "{p} = [v - {c} for v in {p}]"),
        ("Multiply with {n}", "{p} = [v * {n} for v in {p}]"),
        ("Divide by {n}", "{p} = [v // {n} for v in {p}]"),
        ("Keep those above {k}", "{p} = [v for v in {p} if v > {k}]"),
        ("Retain numbers below {d}", "{p} = [v for v in {p} if v < {d}]"),
        ("Drop multiples of {c}", "{p} = [v for v in {p} if v % {c} != 0]"),
        ("Lift to at least {k}", "{p} = [max(v, {k}) for v in {p}]"),
        ("Cap at {d}", "{p} = [min(v, {d}) for v in {p}]"),
        ("Measure distances from {k}", "{p} = [abs(v - {k}) for v in {p}]"),
        ("Reverse the order", "{p} = {p}[::-1]"),
        ("Sort upwards", "{p} = sorted({p})"),
        ("Order downwards", "{p} = sorted({p}, reverse=True)"),
        ("Append {d}", "{p} = {p} + [{d}]"),
        ("Prepend {d}", "{p} = [{d}] + {p}"),
        ("Leave only first {n}", "{p} = {p}[:{n}]"),
        ("Use just {n} final ones", "{p} = {p}[-{n}:]"),
        ("Remove what comes first", "{p} = {p}[1:]"),
        ("Omit the last", "{p} = {p}[:-1]"),
        ("Repeat the list", "{p} = {p} * 2"),
        ("Attach the total", "total = sum({p})\n{p} = {p} + [total]"),
        ("Insert the length in front", "size = len({p})\n{p} = [size] + {p}"),
        ("Increase each by the largest", "top = max({p})\n{p} = [v + top for v in {p}]"),
        ("Decrease all using the minimum", "low = min({p})\n{p} = [v - low for v in {p}]"),
    ),
    "str": (
        ("Add '{l}' behind", "{p} = {p} + '{l}'"),
        ("Put '{l}' in front", "{p} = '{l}' + {p}"),
        ("Replace '{l}' by '{m}'", "{p} = {p}.replace('{l}', '{m}')"),
        ("Drop every '{l}'", "{p} = {p}.replace('{l}', '')"),
        ("Reverse the order", "{p} = {p}[::-1]"),
        ("Use upper case", "{p} = {p}.upper()"),
        ("Swap the case", "{p} = {p}.swapcase()"),
        ("Sort all letters", "{p} = ''.join(sorted({p}))"),
        ("Keep only first {n}", "{p} = {p}[:{n}]"),
        ("Leave just {n} final ones", "{p} = {p}[-{n}:]"),
        ("Remove what comes first", "{p} = {p}[1:]"),
        ("Omit the last", "{p} = {p}[:-1]"),
        ("Repeat it {n} times", "{p} = {p} * {n}"),
        ("Join with '{sep}'", "{p} = '{sep}'.join({p})"),
        ("Append the length", "size = len({p})\n{p} = {p} + str(size)"),
        ("Insert the number of '{l}' in front", "count = {p}.count('{l}')\n{p} = str(count) + {p}"),
    ),
    "words": (
        ("Use upper case", "{p} = [w.upper() for w in {p}]"),
        ("Add '{l}' to each", "{p} = [w + '{l}' for w in {p}]"),
        ("Put '{l}' before each", "{p} = ['{l}' + w for w in {p}]"),
        ("Turn each around", "{p} = [w[::-1] for w in {p}]"),
        ("Cut each to {n} letters", "{p} = [w[:{n}] for w in {p}]"),
        ("Replace '{l}' by '{m}'", "{p} = [w.replace('{l}', '{m}') for w in {p}]"),
        ("Keep those longer than {n}", "{p} = [w for w in {p} if len(w) > {n}]"),
        ("Drop those with '{l}'", "{p} = [w for w in {p} if '{l}' not in w]"),
        ("Reverse the order", "{p} = {p}[::-1]"),
        ("Sort upwards", "{p} = sorted({p})"),
        ("Order by length", "{p} = sorted({p}, key=len)"),
        ("Append '{w}'", "{p} = {p} + ['{w}']"),
        ("Insert '{w}' in front", "{p} = ['{w}'] + {p}"),
        ("Remove what comes first", "{p} = {p}[1:]"),
        ("Omit the last", "{p} = {p}[:-1]"),
        ("Repeat the list", "{p} = {p} * 2"),
    ),
}
_RETURNS: dict[str, tuple[tuple[str, str], ...]] = {
    "list": (
        *(("Return {p}", "return {p}"),) * 4,
        ("Return the sum", "return sum({p})"),
        ("Return the length", "return len({p})"),
        ("Return the largest", "return max({p})"),
        ("Return the smallest", "return min({p})"),
    ),
    "str": (
        *(("Return {p}", "return {p}"),) * 3,
        ("Return the length", "return len({p})"),
    ),
    "words": (
        *(("Return {p}", "return {p}"),) * 2,
        ("Return all joined with '{sep}'", "return '{sep}'.join({p})"),
        ("Return the length", "return len({p})"),
    ),
}

# Words by which bodies find the next word in their docstrings: the first of every step.
POINTERS = tuple(sorted({sentence.split()[0] for steps in _STEPS.values() for sentence, _ in steps}))


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
        "p": rng.choice(PARAMETERS[takes]),
        "c": rng.randint(2, 9),
        "d": rng.randint(2, 99),
        "k": rng.randint(2, 25),
        "n": rng.randint(2, 5),
        "l": letter,
        "m": second_letter,
        "w": rng.choice(STRINGS),
        "sep": rng.choice(SEPARATORS),
    }


def _steps(rng: random.Random, count: int) -> Item:
    """Draw functions of `count` steps, the last a return, until one is within all limits; make its item."""
    while True:
        kind = rng.choice(_TAKES)
        name, parameter = f"{rng.choice(_STEMS)}_{rng.choice(NICKNAMES)}", rng.choice(PARAMETERS[kind])
        chosen = [*rng.sample(_STEPS[kind], count - 1), rng.choice(_RETURNS[kind])]
        docstring_lines, code_steps = [], []
        for i, step in enumerate(chosen, start=1):
            fillings = _fillings(rng, kind) | {"p": parameter}
            sentence, code = (part.format(**fillings) for part in step)
            docstring_lines.append(f"{i}: {sentence}.")
            code_steps.append(_indented(f"# {docstring_lines[-1]}\n{code}"))
        opening = rng.choice(_OPENINGS).format(p=parameter)
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
