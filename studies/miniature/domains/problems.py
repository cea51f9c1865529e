r"""Mathematical problems of the seven subjects of MATH, with answers in LaTeX."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction

from studies.miniature.domains.item import Item

# A problem, its solution without the last sentence, and the answer.
Solved = tuple[str, str, str]


def make(rng: random.Random) -> Item:
    r"""Make a problem of a random subject; its solution ends in `\boxed{}`."""
    subject = rng.choice(tuple(KINDS))
    problem, solution, answer = rng.choice(KINDS[subject])(rng)
    solution = rf"{solution} The answer is $\boxed{{{answer}}}$."
    return Item({"problem": problem, "solution": solution, "answer": answer, "subject": subject}, solution)


def _latex(value: Fraction) -> str:
    """Return a value in LaTeX, as an integer or a fraction in lowest terms."""
    if value.denominator == 1:
        return str(value.numerator)
    return rf"{'-' if value < 0 else ''}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def _equation(rng: random.Random) -> Solved:
    a, b, c = rng.randint(2, 12), rng.randint(1, 40), rng.randint(1, 40)
    problem = f"Solve the equation ${a}x + {b} = {c}$ for $x$."
    return problem, f"Taking {b} from both sides gives ${a}x = {c - b}$; divide by {a}.", _latex(Fraction(c - b, a))


def _value(rng: random.Random) -> Solved:
    a, b, x = rng.randint(2, 9), rng.randint(1, 30), rng.randint(2, 9)
    problem = f"If $f(x) = {a}x^2 - {b}$, what is $f({x})$?"
    return problem, f"We have $f({x}) = {a} \\cdot {x * x} - {b}$.", str(a * x * x - b)


def _probability(rng: random.Random) -> Solved:
    red, blue = rng.randint(2, 20), rng.randint(2, 20)
    problem = f"A box holds {red} red and {blue} blue balls. One is drawn at random. What is the probability of red?"
    return problem, f"Of {red + blue} balls {red} are red.", _latex(Fraction(red, red + blue))


def _ways(rng: random.Random) -> Solved:
    n, k = rng.randint(5, 30), rng.choice((2, 3))
    problem = f"In how many ways can {k} of {n} children be chosen for a team?"
    return problem, f"The order does not matter: $\\binom{{{n}}}{{{k}}}$.", str(math.comb(n, k))


def _triangle(rng: random.Random) -> Solved:
    a, b = rng.randint(3, 40), rng.randint(3, 40)
    problem = f"The legs of a right triangle are ${a}$ and ${b}$ long. What is its area?"
    return problem, f"It is half of the rectangle of ${a * b}$.", _latex(Fraction(a * b, 2))


def _circle(rng: random.Random) -> Solved:
    radius = rng.randint(2, 60)
    problem = f"What is the area of a circle of radius ${radius}$, in terms of $\\pi$?"
    return problem, f"It is ${radius}^2$ times $\\pi$.", rf"{radius * radius}\pi"


def _root(rng: random.Random) -> Solved:
    factor, radicand = rng.randint(2, 20), rng.choice((2, 3, 5, 6, 7, 10, 11, 13))
    problem = f"Simplify $\\sqrt{{{factor * factor * radicand}}}$."
    return problem, f"It is $\\sqrt{{{factor * factor} \\cdot {radicand}}}$.", rf"{factor}\sqrt{{{radicand}}}"


def _reciprocals(rng: random.Random) -> Solved:
    a, b = rng.randint(1, 15), rng.randint(1, 15)
    problem = (
        f"The roots of $x^2 - {a + b}x + {a * b} = 0$ are $r$ and $s$. Find $\\frac{{1}}{{r}} + \\frac{{1}}{{s}}$."
    )
    return (
        problem,
        f"It is $\\frac{{r + s}}{{rs}}$, with $r + s = {a + b}$ and $rs = {a * b}$.",
        _latex(Fraction(a + b, a * b)),
    )


def _remainder(rng: random.Random) -> Solved:
    a, b = rng.randint(100, 999), rng.randint(7, 40)
    problem = f"What is the remainder when ${a}$ is divided by ${b}$?"
    return problem, f"We have ${a} = {a // b} \\cdot {b} + {a % b}$.", str(a % b)


def _divisor(rng: random.Random) -> Solved:
    common, (a, b) = rng.randint(2, 20), rng.sample((2, 3, 5, 7, 11, 13), 2)
    problem = f"What is the greatest common divisor of ${common * a}$ and ${common * b}$?"
    return problem, f"The numbers are ${a} \\cdot {common}$ and ${b} \\cdot {common}$.", str(common)


def _sum(rng: random.Random) -> Solved:
    a, b, c, d = rng.randint(1, 9), rng.randint(2, 12), rng.randint(1, 9), rng.randint(2, 12)
    problem = f"What is $\\frac{{{a}}}{{{b}}} + \\frac{{{c}}}{{{d}}}$? Write it in lowest terms."
    return problem, f"Over ${b * d}$ it is ${a * d} + {c * b}$.", _latex(Fraction(a, b) + Fraction(c, d))


def _percent(rng: random.Random) -> Solved:
    part, total = rng.choice((5, 10, 20, 25, 40, 50, 75, 80)), rng.randint(2, 60) * 4
    problem = f"What is ${part}\\%$ of ${total}$?"
    return problem, f"It is ${total} \\cdot {part}$ over 100.", _latex(Fraction(part * total, 100))


def _polar(rng: random.Random) -> Solved:
    radius = rng.randint(2, 90)
    angle, x, y = rng.choice((("0", 1, 0), (r"\frac{\pi}{2}", 0, 1), (r"\pi", -1, 0), (r"\frac{3\pi}{2}", 0, -1)))
    problem = f"Convert the point $\\left({radius}, {angle}\\right)$ in polar coordinates to rectangular coordinates."
    answer = f"({x * radius},{y * radius})"
    return problem, f"Its cosine and sine are ${x}$ and ${y}$.", answer


def _dot(rng: random.Random) -> Solved:
    a, b, c, d = (rng.randint(-9, 9) for _ in range(4))
    problem = f"What is the dot product of the vectors $({a}, {b})$ and $({c}, {d})$?"
    return problem, f"It is ${a * c} + ({b * d})$.", str(a * c + b * d)


KINDS: dict[str, tuple[Callable[[random.Random], Solved], ...]] = {
    "Algebra": (_equation, _value),
    "Counting & Probability": (_probability, _ways),
    "Geometry": (_triangle, _circle),
    "Intermediate Algebra": (_root, _reciprocals),
    "Number Theory": (_remainder, _divisor),
    "Prealgebra": (_sum, _percent),
    "Precalculus": (_polar, _dot),
}
