r"""Numbers with units and exponents, with and without a \boxed{}, and answers without a readable number."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tasks.scoring.boxes import last_boxed
from tasks.scoring.choice import chosen_option
from tasks.scoring.latex import plain_formulas, plain_latex
from tasks.scoring.numbers import FinalNumber, final_number
from tasks.scoring.thoughts import without_thoughts

# number -> contents of a box
BOXED = {
    "-7": ("-7",),
    "5": ("x = 5", "x_1 = 5", r"5\%", r"\boxed{5}"),
    "18": ("12 + 6 = 18", r"\text{18 eggs}", r"\frac{36}{2}"),
    "25": (r"25 \pmod{1000}",),
    "60": (r"60\ \text{km/h}",),
    "90": (r"90^\circ", r"90^{\circ}"),
    "204": (r"204\text{ cm}^2", r"204\text{ cm}^{2}", r"204 \, \mathrm{cm^2}", "204 cm²"),
    "7": (r"7\text{ m/s}^{-2}",),
    "1024": ("2^{10}",),
    "1200": (r"\$1{,}200",),
    "2500": ("2.5e3",),
    "10080": (r"10,\!080",),
    "11111111100": (r"11,\! 111,\! 111,\! 100",),
    "35000": (r"3.5\times10^{4}", r"3.5 \cdot 10^4"),
    "1/200": (r"5\times10^{-3}",),
    "1/2": (r"\frac{1}{2}",),
    "-3/4": (r"-\dfrac34",),
    "3/4": ("3/4",),
    "3/2": (r"1\frac{1}{2}", "1 1/2"),
}
# no number, or more than one
NOT_BOXED = (
    *("", r"\text{Tuesday}", r"2\sqrt{3}", r"2\pi", "5!", "12 + 6", "3, 4", "x = 5, y = 6", "1/0", "10^{100000000}"),
    *(r"2 \text{ hours } 30 \text{ minutes}", "1" * 5000),
)
# number -> texts
TEXTS = {
    "0.5": ("Half of it is 1/2", "#### 1/2", "half is .5"),
    "3": ("#### 3, 4", "#### 3 100 dollar notes", r"In \boxed{}: \boxed{3}. \boxed{}"),
    "4": ("3 4", "The answer is not 3 but 4.", "He has 3 apples and 4."),
    "5": (r"so $\boxed 5$.", "#### 5 apples, not 6", "10-5", "10 - 5", "(4)-5", "- 5 apples"),
    "-5": ("#### \u2212$5", "It fell to -5 degrees"),
    "6": ("Question: restated 5?\nAnswer: 6", "#### about five\nor 6"),
    "-7": ("####-7", "#### $-7"),
    "7": ("7 liters of H2O",),
    "10": ("5 + 5 = 10\n#### 10\nQuestion: 3 and 4?\nAnswer: 7\n#### 7",),
    "12": ("It is 12.\n\nQ: How many are 9?\nA: 9",),
    "15": ("it is 5,10,15", "The answer is 18 minus 3, which is 15."),
    "18": (
        *("#### 18,", "#### Step 1: 5 apples\nThey are \\boxed{18}", "#### 1. Count\n5\n#### 18", "#### Answer: 18"),
        *("##### Work of 2 days\n18", "**Answer:** 18 eggs (after 3 steps).", "She keeps 3.The answer is:18"),
        *("The final answer is $18$. It took 3 days.", r"so 3 of 4, thus \boxed{18}. Check: 18 > 2"),
    ),
    "20": ("#### 20%",),
    "70": ("He pays $70.00.", r"\boxed{70.00\text{ dollars}}"),
    "100": ("They use 25 100 dollar notes", "in 2020 100 people"),
    "204": ("Its area is 204 cm^2.", "Its area is 204 cm^{2}"),
    "567": ("ids 1234,567",),
    "1200": ("#### 12,00",),
    "1250": (r"first \boxed{1}, then \boxed{\$1{,}250}",),
    "3000": ("rows 100 200 3000",),
    "100000": ("#### 10,0000",),
    "2000000": ("1,000,000 people, 50% of 2,000,000",),
    "-3.25": ("x = -3.25",),
    # commas after ####, as in the official scorer
    "123456": ("#### 1,23,456", "#### $1,23,456.00"),
    "1234567": ("#### 12,34,567.", "It has 12,34,567 people.", r"\boxed{1 234 567}"),
    "-1234.5": ("#### -$1,234.50",),
    # blanks between thousands
    "1234": (r"\boxed{1\ 234}",),
    "3400": ("They saw 3\u202f400 stars.", "They saw 3\u00a0400 stars."),
    "12000": ("They saw 12 000 stars.",),
    "12000.5": ("#### $12 000.50",),
    "12345": (r"\boxed{12~345}", "The answer is 12 345 apples."),
    "35000": (r"It has $3.5 \times 10^4$ grains",),
    "1000000": ("1 000 000", "#### 1 000 000"),
    "123456789": ("123 456 789",),
    "1000234": ("#### 1\u2009000\u2009234",),
}
NO_NUMBER = ("3/0", r"I put 5 in \boxed{}", "9" * 5000, r"\boxed{x} and 5", "none at all", "")


def test_the_number_in_a_box() -> None:
    expected = {content: Fraction(number) for number, contents in BOXED.items() for content in contents}
    expected |= dict.fromkeys(NOT_BOXED)
    found = {content: final_number(rf"First 3, thus $\boxed{{{content}}}$, 4 times.") for content in expected}
    assert found == expected


def test_the_number_of_a_text() -> None:
    expected = {text: Fraction(number) for number, texts in TEXTS.items() for text in texts}
    expected |= dict.fromkeys(NO_NUMBER)
    assert {text: final_number(text) for text in expected} == expected


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{\frac{1}{\sqrt{2}}} then", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\boxed{4}}", "4"),
        (r"\boxed{3} and \boxed{4", "3"),
        (r"\boxed{4", None),
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


REPEATED = ("\n", r"\boxed{", "{", "*", "([", "^(a", r"\text{k}", "$k$", r"\(", "answer: ", "111 ", "1,11,1", "111~")


@pytest.mark.parametrize("repeated", [*REPEATED, "####", "10^", r"\frac"])
def test_a_model_that_repeats_itself_costs_no_time(repeated: str) -> None:
    """Patterns that try every beginning of such a text to its end would take minutes."""
    text = f"Answer: {repeated * 20_000}!"
    assert chosen_option(text) is None
    assert without_thoughts(text) == text
    assert last_boxed(text) is None
    final_number(text)
    plain_latex(text)
    plain_formulas(text)
