"""Answers that are letters, translations and short texts: what of a text counts, and its score."""

from __future__ import annotations

import json
import math

import pytest
from sacrebleu.metrics import BLEU, CHRF

from tasks.scoring.choice import MultipleChoice, chosen_option
from tasks.scoring.passk import pass_at_k
from tasks.scoring.qa import ShortAnswer, normalised
from tasks.scoring.translation import Translation, translation


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("Answer: C", "C"),
        ("answer: c", "C"),
        ("ANSWER : J.", "J"),
        ("Reasons.\nAnswer: (C)\n", "C"),
        ("**Answer:** (C)", "C"),
        ("**Answer: C**", "C"),
        ("**Answer**: **C**", "C"),
        ("Answer: [C]", "C"),
        ("Answer: [OPTION C]", "C"),
        ("Answer: Option C", "C"),
        ("Answer: C. Photosynthesis", "C"),
        ("Answer: C) Photosynthesis", "C"),
        ("Answer: C: Photosynthesis", "C"),
        ("Answer: C - Photosynthesis", "C"),
        ("Answer:\n\nC", "C"),
        (r"Answer: $\boxed{C}$", "C"),
        (r"Answer: \boxed{\text{C}}", "C"),
        ("Final Answer: C", "C"),
        ("Answer: A\nWait.\nAnswer: B", "B"),
        ("The answer is (A).\nAnswer: B\nSo the answer is (C).", "B"),
        ("The answer is (A). No, the answer is (C).", "C"),
        ("the correct answer is C.", "C"),
        ("The answer is: **D**", "D"),
        ("The answer is option (E)", "E"),
        (r"The answer is (A), so \boxed{F}", "F"),
        (r"\boxed{\textbf{(G)}}", "G"),
        (r"The answer is $\boxed{H}$.", "H"),
        ("C", "C"),
        (" (C)\n", "C"),
        ("C.", "C"),
        ("**[d]**", "D"),
        ("Answer: B\n\nQuestion: another\nAnswer: C", "B"),
        ("B\n\nQ: another\nA: C", "B"),
        ('In the format "Answer: [OPTION]": Answer: B', "B"),
        ('Answer: B, in the format "Answer: [OPTION]".', "B"),
        ("Answer: K", None),
        ("Answer: A man walks", None),
        ("Answer: I think it is hard", None),
        ("Answer: B cells", None),
        ("Answer: C-14 dating", None),
        ("Answer: Carbon", None),
        ("The answer is a good one", None),
        ("C is what I choose", None),
        ("It must be C", None),
        ("Reply: C", None),
        ("K", None),
        ("", None),
    ],
)
def test_the_option_that_an_answer_ends_on(text: str, letter: str | None) -> None:
    assert chosen_option(text) == letter


def test_choice_is_accuracy_over_items_with_a_reference() -> None:
    scorer = MultipleChoice()
    assert scorer.item("Answer: C", " c ") == 1.0
    assert scorer.item("Answer: C", "D") == 0.0
    assert scorer.item("Answer: C", "") is None
    assert scorer.corpus(["Answer: C"], ["C"]) == {}  # accuracy is the mean of `item`, and there is no more


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (" The house is old.\n", "The house is old."),
        ("The house is old.\n\nI chose 'old' for 'alt'.", "The house is old."),
        ("The house is old.\n \nMore", "The house is old."),
        ("The house is old.\nTranslate German to English: Der Hund\nAnswer: The dog", "The house is old."),
        ("The house is old.\n\nTranslate German to English:\nGerman: Der Hund", "The house is old."),
        ("The house is old.\nGerman: Der Hund", "The house is old."),
        ("The house is old.\nEnglish: The dog", "The house is old."),
        ("The house is old.\nAnswer: The dog", "The house is old."),
        ("The house is old,\nthe German: new.", "The house is old,\nthe German: new."),
        ("German: a language", "German: a language"),
        ("", ""),
    ],
)
def test_where_a_translation_ends(text: str, kept: str) -> None:
    assert translation(text) == kept


HYPOTHESES = ["The house is very old .", "A dog sleeps in the garden.\n\nA note", "", "We go home tomorrow, perhaps."]
REFERENCES = ["The house is quite old.", "The dog sleeps in the garden.", "Not translated.", "We go home tomorrow."]


def test_translation_scores_are_sacrebleus() -> None:
    scorer = Translation()
    cut = [text.partition("\n\n")[0] for text in HYPOTHESES]
    for text, kept, reference in zip(HYPOTHESES, cut, REFERENCES):
        assert scorer.item(text, reference) == CHRF().sentence_score(kept, [reference]).score / 100
    expected = {
        "corpus chrF": CHRF().corpus_score(cut, [REFERENCES]).score / 100,
        "BLEU": BLEU().corpus_score(cut, [REFERENCES]).score / 100,
    }
    assert scorer.corpus(HYPOTHESES, REFERENCES) == expected
    assert scorer.corpus([*HYPOTHESES, "more"], [*REFERENCES, " "]) == expected
    assert 0 < expected["BLEU"] < expected["corpus chrF"] < 1


def test_translation_scores_have_ends_of_zero_and_one() -> None:
    scorer = Translation()
    assert scorer.item(REFERENCES[0], REFERENCES[0]) == scorer.item(REFERENCES[0] + "\n\nx", REFERENCES[0]) == 1.0
    assert scorer.item("", REFERENCES[0]) == 0.0
    assert scorer.item("text", "") is None
    assert scorer.corpus(REFERENCES, REFERENCES) == pytest.approx({"corpus chrF": 1.0, "BLEU": 1.0})
    assert scorer.corpus([], []) == scorer.corpus(["text"], [""]) == {}


@pytest.mark.parametrize(
    ("text", "accepted", "exact", "contains"),
    [
        ("Paris", ["Paris"], 1, 1),
        ("  the PARIS.\n", ["Paris"], 1, 1),
        ("It is Paris, of course", ["Paris"], 0, 1),
        ("Parisian", ["Paris"], 0, 0),
        ("London", ["Paris"], 0, 0),
        ("London", ["Paris", "London"], 1, 1),
        ("New York City", ["York New"], 0, 0),
        ("in New York City", ["New York"], 0, 1),
        ("York City, New", ["New York"], 0, 0),
        ("the United States of America", ["United States"], 0, 1),
        ("U.S.A.", ["USA"], 1, 1),
        ("14 December 1972 UTC", ["December 1972"], 0, 1),
        ("I do not know.\nParis", ["Paris"], 0, 0),
        ("\nParis\n\nLondon", ["Paris"], 1, 1),
        ("Paris\nQuestion: where?\nAnswer: London", ["London"], 0, 0),
        ("Paris Q: where is London? A: here", ["Paris"], 1, 1),
        ("Paris Question: London", ["London"], 0, 0),
        ("Question: Paris", ["Paris"], 0, 0),
        ("", ["Paris"], 0, 0),
        ("the", ["The", "Paris"], 0, 0),
        ("Beyoncé", ["beyoncé"], 1, 1),
    ],
)
def test_short_answers(text: str, accepted: list[str], exact: float, contains: float) -> None:
    scorer, reference = ShortAnswer(), json.dumps(accepted)
    assert scorer.item(text, reference) == exact
    assert scorer.corpus([text], [reference]) == {"contains": contains}


def test_short_answers_without_a_reference_are_left_out() -> None:
    scorer = ShortAnswer()
    for nothing in ("", "[]", '["the"]'):
        assert scorer.item("Paris", nothing) is None
        assert scorer.corpus(["Paris"], [nothing]) == {}
    found = scorer.corpus(["Paris", "in Rome", "x"], ['["Paris"]', '["Rome"]', "[]"])
    assert found == {"contains": 1.0}


def test_normalisation_is_squads() -> None:
    assert normalised("The  Cat's (a) hat, an “Émile”\tanthem") == "cats hat “émile” anthem"


def test_pass_at_k_is_the_share_of_choices_with_a_pass() -> None:
    for n in range(1, 9):
        for c in range(n + 1):
            for k in range(1, n + 1):
                product = 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1)) if n - c >= k else 1.0
                assert pass_at_k(n, c, k) == pytest.approx(product)  # the form of Chen et al., Fig. 3
    assert [pass_at_k(10, 3, 1), pass_at_k(10, 0, 10), pass_at_k(10, 1, 10)] == [pytest.approx(0.3), 0.0, 1.0]
    assert pass_at_k(2000, 1, 1000) == pytest.approx(0.5)


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 4), (3, 1, 0)])
def test_pass_at_k_refuses_impossible_counts(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="no estimate"):
        pass_at_k(n, c, k)
