"""chrF and BLEU of translations, by the `sacrebleu` package with its defaults."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tasks.scoring.rouge import is_unspaced
from tasks.scoring.scorer import Scorer

_NEXT_PROMPT = re.compile(r"\n\s*(?:\n|(?:Translate German to English|German|English|Answer):)")


class Translation(Scorer):
    """chrF of a translation (character n-grams up to 6, beta 2), and BLEU of many."""

    metric = "chrF"

    def item(self, prediction: str, reference: str) -> float | None:
        from sacrebleu.metrics import CHRF  # imported here: only if a text is scored

        if not reference.strip():
            return None
        return _share(CHRF().sentence_score(translation(prediction), [reference]).score)

    def corpus(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Return the corpus's chrF and BLEU (tokenizer 13a, exponential smoothing), not means over sentences.

        BLEU is left out if any reference is in a script without spaces, at which the tokenizer splits.
        """
        from sacrebleu.metrics import BLEU, CHRF

        pairs = [(translation(p), r) for p, r in zip(predictions, references, strict=True) if r.strip()]
        if not pairs:
            return {}
        translations, expected = map(list, zip(*pairs))
        scores = {"corpus chrF": _share(CHRF().corpus_score(translations, [expected]).score)}
        if any(map(is_unspaced, expected)):
            return scores
        return scores | {"BLEU": _share(BLEU().corpus_score(translations, [expected]).score)}


def _share(percent: float) -> float:
    """Return a percentage as a share of at most 1: rounding makes the package return 100.00000000000004."""
    return min(percent / 100, 1.0)


def translation(text: str) -> str:
    """Return an answer's scored part, up to the first blank line or further prompt.

    Base models go on with lines that begin `Translate German to English:`, `German:`, `English:` or `Answer:`; after a
    blank line come a chat model's remarks, since items are single sentences.
    """
    return _NEXT_PROMPT.split(text.strip(), maxsplit=1)[0].strip()
