"""pass@k of Python functions, for `evaluate.load`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import datasets
import evaluate

from tasks.modules.base import info
from tasks.scoring.code import PassesTests
from tasks.scoring.passk import pass_at_k
from tasks.scoring.sandbox import Limits


class PassAtKModule(evaluate.Metric):
    """Mean over problems of the estimated pass@k, called as `evaluate`'s own `code_eval` is.

    Predictions are a list of candidates for each problem, references the JSON of `tasks.scoring.code.PassesTests`. As
    in `code_eval`, a k is left out where a problem has fewer candidates. It runs the candidates: see
    `tasks.scoring.sandbox` for what that is guarded against and what not.
    """

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return info(self.__doc__, {"predictions": datasets.Sequence(text), "references": text})

    def _compute(
        self,
        predictions: list[list[str]],
        references: list[str],
        k: Sequence[int] = (1, 10),
        cpu_seconds: int = 5,
        wall_seconds: int = 30,
        memory_mib: int = 1024,
    ) -> dict[str, float]:
        scorer = PassesTests(Limits(cpu_seconds, wall_seconds, memory_mib))
        passed = [
            [scorer.item(candidate, reference) == 1.0 for candidate in candidates]
            for candidates, reference in zip(predictions, references, strict=True)
        ]
        fewest = min(map(len, passed), default=0)
        return {f"pass@{size}": fmean(pass_at_k(len(p), sum(p), size) for p in passed) for size in k if size <= fewest}
