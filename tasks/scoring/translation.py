"""chrF and BLEU of translations, by the `sacrebleu` package with its defaults."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ssd_bench.rouge import is_unspaced
from tasks.scoring.scorer import Scorer

_NEXT_PROMPT = re.compile(r"\n\s*(?:\n|(?:Translate German to English|German|English|Answer):)")


class Translation(Scorer):
    """chrF of a translation: character n-grams up to 6, beta 2, and for many translations also BLEU."""

    metric = "chrF"

    def item(self, prediction: str, reference: str) -> float | None:
        """The sentence's chrF."""
        from sacrebleu.metrics import CHRF  # only where a text is scored

        if not reference.strip():
            return None
        return _share(CHRF().sentence_score(translation(prediction), [reference]).score)

    def corpus(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Return chrF and BLEU (tokenizer 13a, exponential smoothing) of the corpus, which are no means over sentences.

        The tokenizer splits at spaces: where a reference is in a script without them (Chinese, Japanese, Thai) no BLEU
        is given, since a whole sentence would count as one word.
        """
        from sacrebleu.metrics import BLEU, CHRF

        pairs = [(translation(p), r) for p, r in zip(predictions, references, strict=True) if r.strip()]
        if not pairs:
            return {}
        found, expected = map(list, zip(*pairs))
        scores = {"corpus chrF": _share(CHRF().corpus_score(found, [expected]).score)}
        if any(map(is_unspaced, expected)):
            return scores
        return scores | {"BLEU": _share(BLEU().corpus_score(found, [expected]).score)}


def _share(percent: float) -> float:
    """In [0, 1]: the package's products of rounded parts make 100.00000000000004 of what is all right."""
    return min(percent / 100, 1.0)


def translation(text: str) -> str:
    """The part of an answer that is scored: up to the first blank line or the beginning of a further prompt.

    A base model goes on to invent further prompts after its few-shot answer: lines that begin `Translate German to
    English:`, `German:`, `English:` or `Answer:`, the words of the prompts. The items are single sentences, so that a
    translation has no blank line; what follows one are a chat model's remarks.
    """
    return _NEXT_PROMPT.split(text.strip(), maxsplit=1)[0].strip()
