"""Short answers to open questions, of which any of several is right."""

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
    """Compares the first line of an answer with a JSON list of accepted ones, normalised as SQuAD's evaluation does.

    `exact_match` is 1.0 where it is one of them; `contains` is 1.0 where the words of one of them stand in it, side by
    side and in order, as usual for models that answer in sentences. Else they are 0.0.
    """

    metric = "exact_match"

    def item(self, prediction: str, reference: str) -> float | None:
        """Exact match."""
        return _scores(prediction, reference).get(self.metric)

    def corpus(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Mean of `contains`."""
        found = mean(_scores(p, r) for p, r in zip(predictions, references, strict=True))
        return {name: value for name, value in found.items() if name != self.metric}


def normalised(text: str) -> str:
    """In lower case, without ASCII punctuation and English articles, words separated by one space.

    As `normalize_answer` of SQuAD 1.1's `evaluate-v1.1.py`.
    """
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _scores(prediction: str, reference: str) -> dict[str, float]:
    """Both scores; nothing where no accepted answer has a word."""
    accepted = {normalised(text) for text in json.loads(reference or "[]")} - {""}
    if not accepted:
        return {}
    line = prediction.strip().partition("\n")[0]
    # A base model goes on to invent further questions, sometimes in the same line.
    answer = normalised(_NEXT.split(line, maxsplit=1)[0])
    return {
        "exact_match": float(answer in accepted),
        "contains": float(any(f" {text} " in f" {answer} " for text in accepted)),
    }
