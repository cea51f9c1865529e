"""Small Python functions to complete from signature and docstring, in the form of HumanEval.

The docstring's sentence determines the body; the examples in it and in the test come from running the body.
"""

from __future__ import annotations

import random
from typing import Any

from ssd_bench.miniature.domains.item import Item

TASK = "humaneval"

PARAMETERS = {
    "int": ("x", "n", "num", "value", "size"),
    "list": ("xs", "nums", "data", "row", "series"),
    "str": ("s", "text", "token", "label", "chars"),
    "words": ("words", "tags", "keys", "parts", "labels"),
}
_SECOND = ("y", "m", "other", "step", "bonus")
NICKNAMES = (
    *("alpha", "beta", "delta", "sigma", "omega", "core", "fast", "main", "mini", "base", "pixel", "cache"),
    *("batch", "queue", "stack", "proxy", "turbo", "quick"),
)
STRINGS = (
    *("array", "binary", "codec", "daemon", "editor", "filter", "gadget", "hash", "input", "joker", "kernel"),
    *("lambda", "module", "node", "object", "parser", "query", "router", "socket", "thread", "update", "vector"),
)
SEPARATORS = ("-", "+", ":", "/", "_", "|")

# Parameter kind -> (stem of the name, sentence, body). {p} and {q} are parameters, {c} a number from 2 to 9, {d} one
# from 2 to 99, {k} one from 2 to 25 (near the elements of a list), {l} and {m} letters, {sep} a separator.
_KINDS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "int": (
        ("scale_add", "Return {p} times {c} plus {d}.", "return {p} * {c} + {d}"),
        ("scale_cut", "Return {p} times {c} minus {d}.", "return {p} * {c} - {d}"),
        ("add", "Return {p} plus {d}.", "return {p} + {d}"),
        ("cut", "Return {p} minus {d}.", "return {p} - {d}"),
        ("square_add", "Return {d} plus the square of {p}.", "return {d} + {p} * {p}"),
        ("remainder", "Return the remainder of {p} divided by {c}.", "return {p} % {c}"),
        ("quotient", "Return the whole quotient of {p} divided by {c}.", "return {p} // {c}"),
        ("divides", "Return True if {p} is divisible by {c}, else False.", "return {p} % {c} == 0"),
        ("at_least", "Return the larger of {p} and {d}.", "return max({p}, {d})"),
        ("at_most", "Return the smaller of {p} and {d}.", "return min({p}, {d})"),
        (
            "excess",
            "Return {p} minus {d} if {p} is greater than {d}, else 0.",
            "if {p} > {d}:\n    return {p} - {d}\nreturn 0",
        ),
        (
            "parity",
            "Return {p} times {c} if {p} is even, else {p} plus {d}.",
            "if {p} % 2 == 0:\n    return {p} * {c}\nelse:\n    return {p} + {d}",
        ),
        (
            "steps",
            "Return the sum of i times {c} for i from 1 to {p}.",
            "total = 0\nfor i in range(1, {p} + 1):\n    total += i * {c}\nreturn total",
        ),
    ),
    "pair": (
        ("mix", "Return {p} plus {c} times {q}.", "return {p} + {c} * {q}"),
        ("product_add", "Return {d} plus the product of {p} and {q}.", "return {d} + {p} * {q}"),
        ("larger_scale", "Return {c} times the larger of {p} and {q}.", "return {c} * max({p}, {q})"),
        ("gap_add", "Return {d} plus the absolute difference of {p} and {q}.", "return {d} + abs({p} - {q})"),
        (
            "order",
            "Return {p} minus {q} if {p} is greater than {q}, else {d}.",
            "if {p} > {q}:\n    return {p} - {q}\nelse:\n    return {d}",
        ),
    ),
    "list": (
        (
            "sum_above",
            "Return the sum of the elements of {p} greater than {k}.",
            "return sum(v for v in {p} if v > {k})",
        ),
        ("sum_below", "Return the sum of the elements of {p} less than {k}.", "return sum(v for v in {p} if v < {k})"),
        ("keep_above", "Return the elements of {p} greater than {k}.", "return [v for v in {p} if v > {k}]"),
        ("keep_below", "Return the elements of {p} less than {k}.", "return [v for v in {p} if v < {k}]"),
        ("keep_multiples", "Return the elements of {p} divisible by {c}.", "return [v for v in {p} if v % {c} == 0]"),
        ("square", "Return the square of each element of {p}.", "return [v * v for v in {p}]"),
        ("scale", "Return each element of {p} times {c}.", "return [v * {c} for v in {p}]"),
        ("shift", "Return each element of {p} plus {d}.", "return [v + {d} for v in {p}]"),
        ("first", "Return the first {c} elements of {p}.", "return {p}[:{c}]"),
        ("last", "Return the last {c} elements of {p}.", "return {p}[-{c}:]"),
        ("reverse", "Return the elements of {p} in reverse order.", "return {p}[::-1]"),
        ("top_add", "Return {d} plus the largest element of {p}.", "return {d} + max({p})"),
        ("low_scale", "Return {c} times the smallest element of {p}.", "return {c} * min({p})"),
        ("sort_up", "Return the elements of {p} from smallest to largest.", "return sorted({p})"),
        ("sort_down", "Return the elements of {p} from largest to smallest.", "return sorted({p}, reverse=True)"),
        ("all_above", "Return True if all elements of {p} are above {k}.", "return all(v > {k} for v in {p})"),
        ("any_below", "Return True if any element of {p} is less than {k}.", "return any(v < {k} for v in {p})"),
        (
            "count_above",
            "Return the number of elements of {p} greater than {k}.",
            "count = 0\nfor v in {p}:\n    if v > {k}:\n        count += 1\nreturn count",
        ),
        (
            "count_multiples",
            "Return the number of elements of {p} divisible by {c}.",
            "count = 0\nfor v in {p}:\n    if v % {c} == 0:\n        count += 1\nreturn count",
        ),
        (
            "sum_scaled",
            "Return the sum of each element of {p} times {c}.",
            "total = 0\nfor v in {p}:\n    total += v * {c}\nreturn total",
        ),
        (
            "running",
            "Return the running totals of {p} that start at {d}.",
            "total = {d}\nout = []\nfor v in {p}:\n    total += v\n    out.append(total)\nreturn out",
        ),
    ),
    "str": (
        ("upper_repeat", "Return {p} in upper case repeated {c} times.", "return {p}.upper() * {c}"),
        ("repeat", "Return {p} repeated {c} times.", "return {p} * {c}"),
        ("count_letter", "Return how often '{l}' is in {p}.", "return {p}.count('{l}')"),
        ("ends", "Return True if {p} ends with '{l}'.", "return {p}.endswith('{l}')"),
        ("starts", "Return True if {p} starts with '{l}'.", "return {p}.startswith('{l}')"),
        ("drop_letter", "Return {p} without any '{l}'.", "return {p}.replace('{l}', '')"),
        ("swap", "Return {p} with '{m}' in place of every '{l}'.", "return {p}.replace('{l}', '{m}')"),
        ("prefix", "Return the first {c} characters of {p}.", "return {p}[:{c}]"),
        ("length_add", "Return {d} plus the length of {p}.", "return {d} + len({p})"),
        (
            "pad",
            "Return {p} plus '{l}' if {p} is shorter than {c}, else {p}.",
            "if len({p}) < {c}:\n    return {p} + '{l}'\nreturn {p}",
        ),
    ),
    "words": (
        ("join", "Return the strings of {p} joined with '{sep}'.", "return '{sep}'.join({p})"),
        ("longer", "Return the strings of {p} longer than {c}.", "return [w for w in {p} if len(w) > {c}]"),
        ("lengths_add", "Return {c} plus the length of each string of {p}.", "return [{c} + len(w) for w in {p}]"),
        ("with_letter", "Return the strings of {p} that contain '{l}'.", "return [w for w in {p} if '{l}' in w]"),
        (
            "count_ends",
            "Return the number of strings of {p} that end with '{l}'.",
            "count = 0\nfor w in {p}:\n    if w.endswith('{l}'):\n        count += 1\nreturn count",
        ),
    ),
}
_ALL = tuple((takes, *kind) for takes, kinds in _KINDS.items() for kind in kinds)


def make(rng: random.Random) -> Item:
    """A signature with a docstring, the body that it asks for, and a test."""
    takes, stem, sentence, body = rng.choice(_ALL)
    letter, other = rng.sample("aeorst", 2)
    words = {
        "p": rng.choice(PARAMETERS["int" if takes == "pair" else takes]),
        "q": rng.choice(_SECOND),
        "c": rng.randint(2, 9),
        "d": rng.randint(2, 99),
        "k": rng.randint(2, 25),
        "l": letter,
        "m": other,
        "sep": rng.choice(SEPARATORS),
    }
    name = f"{stem}_{rng.choice(NICKNAMES)}"
    signature = f"def {name}({words['p']}, {words['q']}):\n" if takes == "pair" else f"def {name}({words['p']}):\n"
    solution = "".join(f"    {line}\n" for line in body.format(**words).split("\n"))
    shown, tested = rng.choice((1, 2)), rng.choice((3, 4))
    calls = _calls(rng, signature + solution, name, takes, shown + tested)
    examples = "".join(f"    >>> {name}({given})\n    {result}\n" for given, result in calls[:shown])
    asserts = "".join(f"    assert candidate({given}) == {result}\n" for given, result in calls[shown:])
    row = {
        "prompt": f'{signature}    """{sentence.format(**words)}\n{examples}    """\n',
        "canonical_solution": solution,
        "test": f"def check(candidate):\n{asserts}",
        "entry_point": name,
    }
    return Item(row, solution)


def _calls(rng: random.Random, source: str, name: str, takes: str, count: int) -> list[tuple[str, str]]:
    """`count` different argument lists of the function `name` of `source`, with what it returns, all as source."""
    scope: dict[str, Any] = {}
    exec(source, scope)
    calls: dict[str, str] = {}
    while len(calls) < count:
        arguments = _arguments(rng, takes)
        calls[", ".join(map(repr, arguments))] = repr(scope[name](*arguments))
    return list(calls.items())


def _arguments(rng: random.Random, takes: str) -> tuple[Any, ...]:
    if takes == "int":
        return (rng.randint(2, 60),)
    if takes == "pair":
        return (rng.randint(2, 60), rng.randint(2, 60))
    if takes == "list":
        return ([rng.randint(1, 30) for _ in range(rng.randint(3, 5))],)
    if takes == "str":
        return (rng.choice(STRINGS),)
    return (rng.sample(STRINGS, rng.randint(2, 4)),)
