"""Answers as letters, translations, short texts, queries and code: what counts, and its score."""

from __future__ import annotations

import json
import math

import pytest
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF

from tasks.scoring.choice import MultipleChoice, chosen_option
from tasks.scoring.code import program, until_top_level
from tasks.scoring.passk import pass_at_k
from tasks.scoring.qa import ShortAnswer, normalise
from tasks.scoring.rouge import Rouge, Words, rouge
from tasks.scoring.sql import SqlMatch
from tasks.scoring.translation import Translation, translation
from tests.tasks.test_tasks import make, score

# letter -> texts, further to those of scored_answers.jsonl
CHOSEN = {
    "B": (
        *("Answer: A\nWait.\nAnswer: B", "The answer is (A).\nAnswer: B\nSo the answer is (C)."),
        *("Answer: B\n\nQuestion: another\nAnswer: C", "B\n\nQ: another\nA: C", "Answer: B not A"),
        *('In the format "Answer: [OPTION]": Answer: B', 'Answer: B, in the format "Answer: [OPTION]".'),
        *("The answer is B since heat flows.", "Answer: B is right, A is not", "Answer: (B) a man"),
        *("Answer: B $4.2", r"Answer: B \frac{1}{2}", "Answer: B Photosynthesis", "Answer: [B] 42 joules"),
        *('Answer: "B"', "Answer: 'B'", "Answer: “B”", "Answer: <B>", "`Answer: B`", "Answer = B", "__Answer__: B"),
        *("**Answer:** **B. Heat**", "### Answer\nThe answer is B"),
    ),
    "C": (
        *("ANSWER : C.", "Reasons.\nAnswer: (C)\n", "**Answer**: **C**", "Answer: Option C", "Answer: C: Heat"),
        *(r"Answer: \boxed{\text{C}}", "Answer: C - Heat", "So we select (C).", "(C) is correct, (D) is wrong."),
        *("Option C is the correct answer.", "**(C)** is the best choice.", "It is cold, not hot.\n(C)"),
    ),
    "D": (
        *(r"The answer is (A), so \boxed{D}", r"\boxed{\textbf{(D)}}", r"\boxed{\text{D: } 42}", r"\fbox{D}"),
        *(r"\boxed{\mathbf{D}}", r"\[\boxed{\text{Option D}}\]", r"the answer is \(D\).", "the answer is d because"),
        *("the correct choice is: **D**", "The answer would be D.", "The correct answer is therefore (D)."),
        *("The answer to this question is D.", "**[d]**", "**D) 12 J**", "__D. 12 J__", "Answer\uff1a D", "So, (D)."),
    ),
    "I": ("I",),
}
# words, not letters
UNCHOSEN = (
    *("The answer is A man", "The answer is A 12-year-old boy", "The answer is I'd say no", "Answer: I Don't know"),
    *("the answer is b cells", "The best option is a new one.", "The answer is Carbon", "the answer is (see below)"),
    *("The answer is in Figure B", "A choice is a burden.", "I choose a card.", "I choose C-14.", "Answer: A man ran"),
    *("Vitamin C is correct.", "They lack vitamin C.\nI think", "The answer is a due date", "Answer: K", "K", ""),
    *("Answer: A not-for-profit body", "Answer: B cells", "Answer: C-14 dating", "C is what I choose", "Reply: C"),
    *("E. coli grows.", "A) warm\nB) cold", "So I", "Thus A man", "It must be C-14", "It must be a gas"),
)


def test_the_option_that_an_answer_ends_on() -> None:
    for letter, texts in CHOSEN.items():
        assert {text: chosen_option(text) for text in texts} == dict.fromkeys(texts, letter)
    assert {text: chosen_option(text) for text in UNCHOSEN} == dict.fromkeys(UNCHOSEN)


def test_choice_is_accuracy_over_items_with_a_reference() -> None:
    scorer = MultipleChoice()
    assert scorer.item("Answer: C", " c ") == 1.0
    assert scorer.item("Answer: C", "D") == 0.0
    assert scorer.item("Answer: C", "") is None
    # accuracy is the mean of `item`
    assert scorer.corpus(["Answer: C", "no idea", "Answer: D", "x"], ["C", "C", "C", ""]) == {"unread": 1 / 3}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (" The house is old.\n", "The house is old."),
        ("The house is old.\n \nMore", "The house is old."),
        ("The house is old.\nTranslate German to English: Der Hund\nAnswer: The dog", "The house is old."),
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
    perfect = scorer.corpus(REFERENCES, REFERENCES)
    assert perfect == pytest.approx({"corpus chrF": 1.0, "BLEU": 1.0}) and max(perfect.values()) <= 1
    assert scorer.corpus([], []) == scorer.corpus(["text"], [""]) == {}


@pytest.mark.parametrize(
    ("text", "accepted", "exact", "contains"),
    [
        ("  the PARIS.\n", ["Paris"], 1, 1),
        ("It is Paris, of course", ["Paris"], 0, 1),
        ("Parisian", ["Paris"], 0, 0),
        ("London", ["Paris", "London"], 1, 1),
        ("York City, New", ["New York"], 0, 0),
        ("the United States of America", ["United States"], 0, 1),
        ("U.S.A.", ["USA"], 1, 1),
        ("14 December 1972 UTC", ["December 1972"], 0, 1),
        ("I do not know.\nParis", ["Paris"], 0, 0),
        ("\nParis\n\nLondon", ["Paris"], 1, 1),
        ("Paris\nQuestion: where?\nAnswer: London", ["London"], 0, 0),
        ("Paris Q: where is London? A: here", ["Paris"], 1, 1),
        ("", ["Paris"], 0, 0),
        ("the", ["The", "Paris"], 0, 0),
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
    assert scorer.corpus(["Paris", "in Rome", "x"], ['["Paris"]', '["Rome"]', "[]"]) == {"contains": 1.0}


def test_normalisation_is_squads() -> None:
    assert normalise("The  Cat's (a) hat, an “Émile”\tanthem") == "cats hat “émile” anthem"


def test_pass_at_k_is_the_share_of_choices_with_a_pass() -> None:
    for n in range(1, 9):
        for c in range(n + 1):
            for k in range(1, n + 1):
                product = 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1)) if n - c >= k else 1.0
                assert pass_at_k(n, c, k) == pytest.approx(product)  # the form of Chen et al., Fig. 3
    assert [pass_at_k(10, 3, 1), pass_at_k(10, 0, 10), pass_at_k(10, 1, 10)] == [pytest.approx(0.3), 0.0, 1.0]
    assert pass_at_k(2000, 1, 1000) == pytest.approx(0.5)
    for counts in ((3, 4, 1), (3, -1, 1), (3, 1, 4), (3, 1, 0)):
        with pytest.raises(ValueError, match="no estimate"):
            pass_at_k(*counts)


QUERY = "SELECT name, COUNT(*) FROM users WHERE city = 'Bern' GROUP BY name;"
PROMPT = 'import math\n\n\ndef add(a, b):\n    """ Add. """\n'
MARGIN = ("def g():", "x = 1", "# next", '"""', "@cache", "```")
TEST = "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(0, 0) == 0\n"


@pytest.mark.parametrize(
    ("text", "equal"),
    [
        (QUERY, True),
        (" select NAME , count( * )\nfrom Users\twhere city='Bern'\ngroup by name ", True),
        (QUERY + ";\n", True),
        (QUERY + "\nInstruction: another one\nSQL Query: SELECT 1", True),
        ("Here:\n\n```sql\n" + QUERY + "\n```\nIt counts.", True),
        ("-- people\n" + QUERY.replace("FROM", "/* by\nname */ FROM"), True),
        (QUERY.replace("'Bern'", "'bern'"), False),
        (QUERY.replace("'Bern'", "'--Bern'"), False),
        (QUERY.replace("name,", '"name",'), False),
        (QUERY.replace("GROUP BY", "GROUPBY"), False),
        (QUERY + " SELECT 1", False),
        # chat forms
        ("The query is:\n" + QUERY[:-1], True),
        ("You can select the name so:\n\n" + QUERY + "\n\nIt's done; select it.", True),
        (QUERY[:-1] + "\n\nThis query selects names from users.", True),
        ("With users, it is: " + QUERY, True),
        ("**Answer:** `" + QUERY + "`", True),
        ("Use `" + QUERY[:-1] + "` for this.", True),
        ("```sql " + QUERY + " ```", True),
        ("~~~\n" + QUERY, True),
        ("1. So:\n   ```sql\n   " + QUERY + "\n   ```", True),
        ("```\nname\n```\n```sql\n" + QUERY + "\n```", True),
        ("> " + QUERY, True),
        ("[SQL] " + QUERY[:-1] + " [/SQL]", True),
        ("sql\n" + QUERY, True),
        ("EXPLAIN " + QUERY, False),
        ("The query is " + QUERY[:-1] + " LIMIT 5;", False),
        ("DELETE FROM users; " + QUERY, False),
        ("", False),
    ],
)
def test_sql_is_compared_without_white_space_and_case(text: str, equal: bool) -> None:
    assert SqlMatch().item(text, QUERY) == float(equal)


@pytest.mark.parametrize(
    "query",
    [
        "WITH t AS (\n  SELECT a FROM b\n),\n\nUsers AS (SELECT a FROM t)\n\nSELECT a FROM Users",
        "SELECT a FROM b -- note; x\nWHERE c = 'is: SELECT 1'\n\nORDER BY a",
        "SELECT a FROM `x.y` UNION SELECT `c` FROM d",
        "(SELECT a FROM b)",
        "VALUES (1)",
    ],
)
@pytest.mark.parametrize("form", ["{}", "{};", "The query is {};", "```sql\n{}\n```", "So:\n{};\nIt is done."])
def test_a_query_is_the_same_in_every_form(query: str, form: str) -> None:
    assert SqlMatch().item(form.replace("{}", query), query) == 1.0


def test_sql_quotes_hold_what_is_quoted() -> None:
    item = SqlMatch().item
    assert item("select 'it''s; -- A' ;", "SELECT 'it''s; -- A'") == 1.0
    assert item("select 'it''s; -- a'", "SELECT 'it''s; -- A'") == 0.0
    assert item('select `A b` from "T"', 'SELECT `A b` FROM "T"') == 1.0
    assert item('select `A b` from "t"', 'SELECT `A b` FROM "T"') == 0.0
    assert item(";", ";") == 0.0


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("    return 1\n", "    return 1\n"),
        ("    x = [\n        1,\n]\n    return x\n\n\ndef g():\n", "    x = [\n        1,\n]\n    return x\n\n\n"),
        *((f"    return 1\n{line}\n    y\n", "    return 1\n") for line in MARGIN),
        ("\n    return 1\n", "\n    return 1\n"),
        ("return 1", ""),
        ("", ""),
    ],
)
def test_a_completion_ends_at_the_first_line_at_the_margin(text: str, kept: str) -> None:
    assert until_top_level(text) == kept


@pytest.mark.parametrize(
    ("answer", "passes"),
    [
        ("\tif a:\n\t    return a + b\n    return b\n", True),
        ("   return a + b\n", True),  # as a SentencePiece tokenizer decodes four spaces
        ("    return a + b\n\nprint(undefined)\n", True),
        ("```python\n\ndef add(a, b):\n\treturn int(math.fsum((a, b)))\n", True),
        ("    return a +\n", False),
        ("return a + b\n", False),
        ("```python\ndef other(a, b):\n    return a + b\n```", False),
        ("", False),
    ],
)
def test_humaneval_runs_what_an_answer_completes(answer: str, passes: bool) -> None:
    reference = json.dumps({"prompt": PROMPT, "test": TEST, "entry_point": "add"})
    assert score(make("humaneval"), reference, answer) == float(passes)


def test_tabs_and_a_prompt_that_ends_within_a_line() -> None:
    source = program('def f(x):\n\t""" Tab. """\n\treturn', " x\n\t# done\nprint(1)\n", "f", "TEST\n")
    assert source == 'def f(x):\n    """ Tab. """\n    return x\n    # done\n\n\nTEST\n\n\ncheck(f)\n'
    literal = program(PROMPT, '\treturn "a\tb"\n', "add", TEST)
    assert '    return "a\tb"\n' in literal


ENGLISH = "The mayor of Malmö, José Núñez, said on Thursday: “It isn’t naïve” – 3½ cafés closed… (see § 4_b, 12.5 %)."


@pytest.mark.parametrize("reference", [ENGLISH, "it's 1,000 dogs\n\nand U.S. cats_2", "12 34", "a\u00a0b"])
def test_rouge_of_plain_latin_is_the_packages(reference: str) -> None:
    official = RougeScorer(["rougeL", "rouge1", "rouge2"], use_stemmer=True)
    words = reference.split()
    for prediction in (reference, " ".join(words[::-1]), " ".join(words[: len(words) // 2]), "the ferry 12", ""):
        expected = official.score(reference, prediction)
        assert rouge(prediction, reference) == {kind: expected[kind].fmeasure for kind in rouge("a", "a")}


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("今天天气很好。", [*"今天天气很好"]),
        ("データを2回読む", ["デ", "ー", "タ", "を", "2", "回", "読", "む"]),
        ("สวัสดี น้ำ", ["ส", "วั", "ส", "ดี", "น้", "ำ"]),
        ("안녕하세요 세계", ["안녕하세요", "세계"]),
        ("Привет, мир! ПРИВЕТ", ["привет", "мир", "привет"]),
        ("می‌خواهم", ["میخواهم"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("Καλημέρα ΚΌΣΜΟΣ", ["καλημέρα", "κόσμος"]),
        ("İstanbul ığdır şöyle", ["i̇stanbul", "ığdır", "şöyle"]),
        ("Ở đâu", ["ở", "đâu"]),
        ("O\u031b\u0309 \u0111a\u0302u", ["ở", "đâu"]),
        ("用iPhone打开 the drawers、ＡＢ１ ﬁn", [*"用", "iphon", *"打开", "the", "drawer", "ab1", "fin"]),
        ("١٢ км²", ["١٢", "км"]),
        ("👍🏽 ❤️ 1️⃣ — …!", ["1"]),
    ],
)
def test_rouge_tokens_are_unicode_words(text: str, tokens: list[str]) -> None:
    assert Words().tokenize(text) == tokens


@pytest.mark.parametrize("text", ["今天天气很好。", "สวัสดี", "Привет, мир", "안녕", "नमस्ते दुनिया", "שלום", "é"])
def test_rouge_of_other_scripts_is_1_against_itself(text: str) -> None:
    assert Rouge().item(text, text) == 1.0 and Rouge().item("a dog", text) == 0.0
    if len(text) > 4:
        half = Rouge().item(text[: len(text) // 2], text)
        assert half is not None and 0 <= half < 1


@pytest.mark.parametrize("text", ["١٢٣٤", "१२३ ४५६", "１２３", "Ⅳ Ⅴ", "12 ٣٤", "𝟏𝟐"])
def test_rouge_of_other_digits_is_1_against_itself(text: str) -> None:
    assert Rouge().item(text, text) == 1.0 and Rouge().item("12", text) != 1.0


def test_rouge_of_any_character_is_1_against_itself_or_no_score() -> None:
    for code in range(0x20, 0x30000, 97):
        character = chr(code)
        assert Rouge().item(character, character) in (1.0, None), hex(code)
        if character.isalpha() or character.isdecimal():
            assert Rouge().item(f"{character} 12", f"{character} 12") == 1.0, hex(code)


@pytest.mark.parametrize("reference", ["👍🏽❤️", "…!", "—\n", "½", "\u0301", "\u200d"])
def test_rouge_of_a_reference_without_a_word_is_no_score(reference: str) -> None:
    scorer = Rouge()
    assert scorer.item("a dog", reference) is None and scorer.item(reference, reference) is None
    assert scorer.corpus(["a dog", "a dog"], [reference, "a dog"]) == {"rouge1": 1.0, "rouge2": 1.0}


def test_bleu_is_left_out_where_no_spaces_part_words() -> None:
    scorer = Translation()
    assert scorer.corpus(["今天天气很好。"], ["今天天气好。"]).keys() == {"corpus chrF"}
    assert scorer.corpus(["Сегодня хорошая погода."], ["Сегодня хорошая погода."])["BLEU"] == pytest.approx(1)
