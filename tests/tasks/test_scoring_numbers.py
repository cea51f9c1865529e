r"""Numbers with units and exponents, with and without a \boxed{}, and answers without a readable number."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tasks.scoring.boxes import last_boxed
from tasks.scoring.choice import chosen_option
from tasks.scoring.latex import plain_formulas, plain_latex
from tasks.scoring.numbers import FinalNumber, final_number
from tasks.scoring.thoughts import without_thoughts


@pytest.mark.parametrize(
    ("content", "number"),
    [
        ("-7", -7),
        ("x = 5", 5),
        ("x_1 = 5", 5),
        ("12 + 6 = 18", 18),
        (r"\$1{,}200", 1200),
        (r"10,\!080", 10080),
        (r"11,\! 111,\! 111,\! 100", 11111111100),
        (r"5\%", 5),
        (r"90^\circ", 90),
        (r"90^{\circ}", 90),
        (r"204\text{ cm}^2", 204),
        (r"204\text{ cm}^{2}", 204),
        (r"204 \, \mathrm{cm^2}", 204),
        ("204 cm²", 204),
        (r"7\text{ m/s}^{-2}", 7),
        (r"60\ \text{km/h}", 60),
        (r"\text{18 eggs}", 18),
        (r"3.5\times10^{4}", 35000),
        (r"3.5 \cdot 10^4", 35000),
        (r"5\times10^{-3}", "1/200"),
        ("2.5e3", 2500),
        ("2^{10}", 1024),
        (r"\frac{36}{2}", 18),
        (r"-\dfrac34", "-3/4"),
        (r"1\frac{1}{2}", "3/2"),
        ("1 1/2", "3/2"),
        ("3/4", "3/4"),
        (r"25 \pmod{1000}", 25),
        (r"\boxed{5}", 5),
        # no number, or more than one
        ("", None),
        (r"\text{Tuesday}", None),
        (r"2\sqrt{3}", None),
        (r"2\pi", None),
        ("5!", None),
        ("12 + 6", None),
        ("3, 4", None),
        ("x = 5, y = 6", None),
        (r"2 \text{ hours } 30 \text{ minutes}", None),
        ("1/0", None),
        ("10^{100000000}", None),
        ("1" * 5000, None),
    ],
)
def test_the_number_in_a_box(content: str, number: int | str | None) -> None:
    expected = None if number is None else Fraction(number)
    assert final_number(rf"First 3, thus $\boxed{{{content}}}$, 4 times.") == expected


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Its area is 204 cm^2.", 204),
        ("Its area is 204 cm^{2}", 204),
        (r"It has $3.5 \times 10^4$ grains", 35000),
        ("Half of it is 1/2", "1/2"),
        ("3/0", None),
        ("#### 1/2", "1/2"),
        # commas after ####, as in the official scorer
        ("#### 1,23,456", 123456),
        ("#### 12,34,567.", 1234567),
        ("#### $1,23,456.00", 123456),
        ("#### -$1,234.50", "-2469/2"),
        ("#### \u2212$5", -5),
        ("#### 12,00", 1200),
        ("#### 10,0000", 100000),
        ("#### 18,", 18),
        ("#### 3, 4", 3),
        ("it is 5,10,15", 15),
        ("It has 12,34,567 people.", 1234567),
        # blanks between thousands
        ("1 000 000", 1000000),
        ("#### 1 000 000", 1000000),
        ("#### $12 000.50", "24001/2"),
        ("#### 1\u2009000\u2009234", 1000234),
        ("They saw 3\u202f400 stars.", 3400),
        ("They saw 3\u00a0400 stars.", 3400),
        ("The answer is 12 345 apples.", 12345),
        ("They saw 12 000 stars.", 12000),
        ("123 456 789", 123456789),
        (r"\boxed{1 234 567}", 1234567),
        (r"\boxed{1\ 234}", 1234),
        (r"\boxed{12~345}", 12345),
        ("They use 25 100 dollar notes", 100),
        ("in 2020 100 people", 100),
        ("#### 3 100 dollar notes", 3),
        ("rows 100 200 3000", 3000),
        ("3 4", 4),
        ("#### Step 1: 5 apples\nThey are \\boxed{18}", 18),
        ("#### 1. Count\n5\n#### 18", 18),
        ("#### Answer: 18", 18),
        ("##### Work of 2 days\n18", 18),
        ("**Answer:** 18 eggs (after 3 steps).", 18),
        ("The final answer is $18$. It took 3 days.", 18),
        ("The answer is 18 minus 3, which is 15.", 15),
        ("The answer is not 3 but 4.", 4),
        (r"so $\boxed 5$.", 5),
        (r"In \boxed{}: \boxed{3}. \boxed{}", 3),
        (r"I put 5 in \boxed{}", None),
        ("9" * 5000, None),
    ],
)
def test_the_number_of_a_text(text: str, number: int | str | None) -> None:
    assert final_number(text) == (None if number is None else Fraction(number))


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{\frac{1}{\sqrt{2}}} then", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\boxed{4}}", "4"),
        (r"\boxed{3} and \boxed{4", "3"),
        (r"\boxed{4", None),
        (r"\boxed 4", "4"),
        (r"$\boxed 4$, that is", "4"),
        (r"\(\boxed 12\).", "12"),
        (r"\fbox{4}", "4"),
        (r"\boxed{4} in \boxed{ }", "4"),
        (r"\boxed{}", ""),
        (r"\boxedx{4}", None),
        ("4", None),
    ],
)
def test_the_last_box_with_content(text: str, content: str | None) -> None:
    assert last_boxed(text) == content


def test_answers_without_a_number_are_counted() -> None:
    scorer = FinalNumber()
    texts = ["#### 4", "#### 5", "none", r"\boxed{}", "x"]
    references = ["4", "4", "4", "4", ""]
    assert [scorer.item(*pair) for pair in zip(texts, references)] == [1.0, 0.0, 0.0, 0.0, None]
    assert scorer.corpus(texts, references) == {"unread": 0.5}
    assert scorer.corpus(["x"], [""]) == scorer.corpus([], []) == {}


@pytest.mark.parametrize(
    "repeated",
    [
        "\n",
        " ",
        r"\boxed{",
        "{",
        "*",
        "([",
        "^(a",
        r"\text{k}",
        "$k$",
        r"\(",
        "answer: ",
        "1 ",
        "1,",
        "1,11,1",
        "111 ",
        "111~",
        "####",
        "10^",
        r"\frac",
    ],
)
def test_a_model_that_repeats_itself_costs_no_time(repeated: str) -> None:
    """Patterns that try every beginning of such a text to its end would take minutes."""
    text = f"Answer: {repeated * 40_000}!"
    assert chosen_option(text) is None
    assert without_thoughts(text) == text
    assert last_boxed(text) is None
    final_number(text)
    plain_latex(text)
    plain_formulas(text)
