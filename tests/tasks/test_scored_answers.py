"""Answers in real models' forms, each with the verdicts of a reader, lm-eval's scorers and math-verify.

`scored_answers.jsonl` has an answer a line: `right` is a reader's verdict, `theirs` the released scorers', `ours` this
project's if wrong. docs/scoring.md says how the others' verdicts were made, and counts them.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.test_tasks import make, score

FILE = Path(__file__).with_name("scored_answers.jsonl")
PAGE = Path(__file__).parents[2] / "docs/scoring.md"
ANSWERS: list[dict[str, Any]] = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
TASKS = {"gsm8k": "gsm8k", "aime": "aime24", "math": "math", "mmlu_pro": "mmlu_pro"}


@pytest.mark.parametrize("name", TASKS)
def test_answers_score_as_a_reader_scores_them(name: str) -> None:
    task = make(TASKS[name])
    rows = [row for row in ANSWERS if row["task"] == name]
    assert len(rows) > 100
    for row in rows:
        expected = row.get("ours", row["right"])
        assert score(task, row["reference"], row["answer"]) == float(expected), row


def test_the_page_counts_these_answers() -> None:
    counts: dict[tuple[str, str], Counter[str]] = {}
    for row in ANSWERS:
        ours = row.get("ours", row["right"])
        for scorer, theirs in row["theirs"].items():
            count = counts.setdefault((row["task"], scorer), Counter())
            right = {ours: "ours", theirs: "theirs"}[row["right"]] if ours != theirs else ""
            count.update(["n", "agree" if ours == theirs else right])
            count["wrong"] += ours == theirs != row["right"]
    page = PAGE.read_text(encoding="utf-8")
    for (task, scorer), count in counts.items():
        cells = (count["n"], count["agree"], count["ours"], count["theirs"], count["wrong"])
        assert f"| `{task}` | {scorer} | {' | '.join(map(str, cells))} |" in page
