"""The module for `evaluate`: loaded by path, offline, from another folder, with the scorers' numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.scoring.choice import MultipleChoice
from tasks.scoring.math_answer import MathAnswer
from tasks.scoring.numbers import FinalNumber
from tasks.scoring.qa import ShortAnswer
from tasks.scoring.rouge import Rouge
from tasks.scoring.scorer import Scorer
from tasks.scoring.sql import SqlMatch
from tasks.scoring.translation import Translation

MODULE = Path(__file__).parents[2] / "tasks/modules.py"

# scorer, predictions, references
CASES: dict[str, tuple[Scorer, list[str], list[str]]] = {
    "rouge": (Rouge(), ["Dogs were sleeping.", "Nothing alike", "x"], ["The dog sleeps there.", "A summary", ""]),
    "final_number": (FinalNumber(), ["so 1,000.00 in all", "#### 4"], ["#### 1000", "5"]),
    "math_answer": (MathAnswer(), [r"\boxed{0.5}", r"\boxed{3}"], [r"\frac{1}{2}", "4"]),
    "choice": (MultipleChoice(), ["Answer: C", "The answer is (D)"], ["C", "E"]),
    "translation": (Translation(), ["The house is very old.", "A dog."], ["The house is old.", "The dog."]),
    "short_answer": (ShortAnswer(), ["Paris", "in Rome", "?"], ['["Paris"]', '["Rome"]', '["Bonn"]']),
    "sql": (SqlMatch(), ["select 1;", "SELECT 2"], ["SELECT 1", "SELECT 3"]),
}
PROBLEM = {"prompt": "def one():\n", "entry_point": "one", "test": "def check(f):\n    assert f() == 1\n"}
RIGHT, WRONG = "    return 1\n", "    return 2\n"

# One process for all scorers, since `import evaluate` takes seconds. It may connect to nothing.
PROGRAM = """
import json, socket, sys
def refuse(*args): raise AssertionError("network")
socket.socket.connect = socket.getaddrinfo = refuse
import evaluate
path, calls = json.load(sys.stdin)
found = {}
for name, made in calls.items():
    module = evaluate.load(path, name.partition(" ")[0], keep_in_memory=True)
    found[name] = module.compute(**made)
for name in ("default", "bleu"):
    try:
        evaluate.load(path, name)
    except ValueError as error:
        found[f"{name} refused"] = {"message": str(error)}
try:
    evaluate.load(path, "final_number", keep_in_memory=True).compute(predictions=["1"], references=["twelve"])
except ValueError as error:
    found["twelve refused"] = {"message": str(error)}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every scorer's results, in a process with an empty folder and cache."""
    folder = tmp_path_factory.mktemp("elsewhere")
    calls: dict[str, dict[str, Any]] = {
        name: {"predictions": predictions, "references": references, "items": True}
        for name, (_, predictions, references) in CASES.items()
    }
    calls["rouge without items"] = {"predictions": ["a dog"], "references": ["a cat"]}
    problems = [json.dumps(PROBLEM)] * 2
    mixed = [[f"<think>\n{WRONG}</think>{RIGHT}"] + [WRONG] * 8 + [f"{RIGHT}</think>{WRONG}"], [WRONG] * 10]
    calls["choice after thoughts"] = {"predictions": ["<think>Answer: B</think>Answer: C"], "references": ["C"]}
    calls["pass_at_k"] = {"predictions": mixed, "references": problems}
    calls["pass_at_k with few candidates"] = {"predictions": [[RIGHT, WRONG], [WRONG]], "references": problems}
    calls["pass_at_k with k"] = {"predictions": mixed, "references": problems, "k": [2, 5]}
    environment = os.environ | {"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1"}
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([str(MODULE), calls]),
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert made.returncode == 0, made.stderr
    found: dict[str, dict[str, Any]] = json.loads(made.stdout.splitlines()[-1])
    return found


def test_every_scorer_is_tested_and_named(computed: dict[str, dict[str, Any]]) -> None:
    for name in ("default", "bleu"):
        said = computed[f"{name} refused"]["message"]
        named = set(said.partition("one of ")[2].split(", "))
        assert f"config_name={name!r}" in said and named == {*CASES, "pass_at_k"}


@pytest.mark.parametrize("name", CASES)
def test_modules_compute_what_the_scorers_do(name: str, computed: dict[str, dict[str, Any]]) -> None:
    scorer, predictions, references = CASES[name]
    items = [scorer.item(p, r) for p, r in zip(predictions, references)]
    scored = [score for score in items if score is not None]
    mean = {scorer.metric: sum(scored) / len(scored)}
    assert computed[name] == mean | scorer.corpus(predictions, references) | {"items": items}
    assert 0 < computed[name][scorer.metric] < 1


def test_what_else_is_computed_and_refused(computed: dict[str, dict[str, Any]]) -> None:
    assert computed["choice after thoughts"]["accuracy"] == 1.0
    assert computed["twelve refused"]["message"].startswith("references[0]='twelve' is invalid: expected a text")
    assert computed["rouge without items"] == {"rougeL": 0.5, "rouge1": 0.5, "rouge2": 0.0}


def test_pass_at_k_is_the_mean_of_estimates_over_problems(computed: dict[str, dict[str, Any]]) -> None:
    assert computed["pass_at_k"] == pytest.approx({"pass@1": 0.05, "pass@10": 0.5})
    assert computed["pass_at_k with few candidates"] == {"pass@1": 0.25}
    assert computed["pass_at_k with k"] == pytest.approx({"pass@2": 0.1, "pass@5": 0.25})
