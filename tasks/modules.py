"""Scorers as one module of Hugging Face's `evaluate`: `evaluate.load("PATH/TO/tasks/modules.py", "rouge")`.

It needs this package, but no network. Runs call the scorers of `tasks.scoring` directly, with the same numbers, since
`import evaluate` takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import datasets
import evaluate

from tasks.scoring.choice import MultipleChoice
from tasks.scoring.code import PassesTests
from tasks.scoring.math_answer import MathAnswer
from tasks.scoring.numbers import FinalNumber
from tasks.scoring.passk import pass_at_k
from tasks.scoring.qa import ShortAnswer
from tasks.scoring.rouge import Rouge
from tasks.scoring.sandbox import ProgramLimits
from tasks.scoring.scorer import Scorer, mean
from tasks.scoring.sql import SqlMatch
from tasks.scoring.thoughts import without_thoughts
from tasks.scoring.translation import Translation

SCORERS: dict[str, Callable[[], Scorer]] = {
    "choice": MultipleChoice,
    "final_number": FinalNumber,
    "math_answer": MathAnswer,
    "rouge": Rouge,
    "short_answer": ShortAnswer,
    "sql": SqlMatch,
    "translation": Translation,
}
PASS_AT_K = "pass_at_k"


class ScorerMetric(evaluate.Metric):
    """A scorer of this project, chosen by the name of the configuration.

    `compute(predictions=TEXTS, references=TEXTS)` returns the mean of the scorer's `item`, by the name of its metric,
    and its `corpus`; with `items=True` also the list `items` with the score of each answer, None where its reference
    is empty. As in runs, the thoughts of a model ahead of its answer are left out. `pass_at_k` is called as
    `evaluate`'s own `code_eval` is: predictions are a list of candidates for each problem, references the JSON of
    `tasks.scoring.code.PassesTests`, and a k is left out if a problem has fewer candidates. It runs the candidates: see
    `tasks.scoring.sandbox` for the protection and its limits.

    Raises:
        ValueError: no scorer of that name, or a reference that the scorer cannot read.
    """

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        predictions = datasets.Sequence(text) if self.config_name == PASS_AT_K else text
        if self.config_name not in (*SCORERS, PASS_AT_K):
            raise ValueError(f"config_name={self.config_name!r}: one of {', '.join((*SCORERS, PASS_AT_K))}")
        features = datasets.Features({"predictions": predictions, "references": text})
        return evaluate.MetricInfo(
            description=self.__doc__ or "", citation="", inputs_description="", features=features
        )

    def _compute(self, predictions: list[Any], references: list[str], **options: Any) -> dict[str, Any]:
        if self.config_name == PASS_AT_K:
            return _pass_at_k(predictions, references, **options)
        return _scores(SCORERS[self.config_name](), predictions, references, **options)


def _check_references(scorer: Scorer, references: list[str]) -> None:
    for i, reference in enumerate(references):
        if reference.strip() and (expected := scorer.reference_fault(reference)):
            raise ValueError(f"references[{i}]={reference!r} is invalid: expected {expected}")


def _scores(scorer: Scorer, predictions: list[str], references: list[str], items: bool = False) -> dict[str, Any]:
    _check_references(scorer, references)
    answers = [without_thoughts(text) for text in predictions]
    item_scores = [scorer.item(p, r) for p, r in zip(answers, references, strict=True)]
    scores: dict[str, Any] = mean({scorer.metric: score} for score in item_scores if score is not None)
    scores |= scorer.corpus(answers, references)
    return scores | ({"items": item_scores} if items else {})


def _pass_at_k(
    predictions: list[list[str]],
    references: list[str],
    k: Sequence[int] = (1, 10),
    cpu_seconds: int = 5,
    wall_seconds: int = 30,
    memory_mib: int = 1024,
) -> dict[str, float]:
    """Return the mean over problems of the estimated pass@k, for each k."""
    scorer = PassesTests(ProgramLimits(cpu_seconds, wall_seconds, memory_mib))
    _check_references(scorer, references)
    passed = [
        [scorer.item(without_thoughts(candidate), reference) == 1.0 for candidate in candidates]
        for candidates, reference in zip(predictions, references, strict=True)
    ]
    fewest = min(map(len, passed), default=0)
    return {f"pass@{size}": fmean(pass_at_k(len(p), sum(p), size) for p in passed) for size in k if size <= fewest}
