"""Scorer of short answers to open questions with several accepted answers."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Sequence

from tasks.scoring.scorer import Scorer, mean

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_NEXT = re.compile(r"\b(?:Question|Q):")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class ShortAnswer(Scorer):
    """An answer's first line against a JSON list of accepted answers, normalised as in SQuAD's evaluation.

    `exact_match` is 1.0 if the line is one of them; `contains` is 1.0 if one's words occur in it in sequence, for
    models that answer in sentences. Else they are 0.0.
    """

    metric = "exact_match"

    def item(self, prediction: str, reference: str) -> float | None:
        return _scores(prediction, reference).get(self.metric)

    def corpus(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        means = mean(_scores(p, r) for p, r in zip(predictions, references, strict=True))
        return {name: value for name, value in means.items() if name != self.metric}


def normalise(text: str) -> str:
    """Return a text as `normalize_answer` of SQuAD 1.1's `evaluate-v1.1.py`: lower case, no punctuation or articles."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _scores(prediction: str, reference: str) -> dict[str, float]:
    """Return both scores; empty if no accepted answer has a word."""
    accepted = {normalise(text) for text in json.loads(reference or "[]")} - {""}
    if not accepted:
        return {}
    line = prediction.strip().partition("\n")[0]
    # a base model goes on with invented questions, sometimes in the same line
    answer = normalise(_NEXT.split(line, maxsplit=1)[0])
    return {
        "exact_match": float(answer in accepted),
        "contains": float(any(f" {text} " in f" {answer} " for text in accepted)),
    }
