"""ROUGE by the `rouge-score` package, as the scorer of free text and between a method's outputs and those of AR.

The package's tokenizer keeps only `[a-z0-9]`: a text without Latin letters scores 0 against itself. It is used if at
least nine of ten letters of the reference are a to z, counting digits of other scripts as letters: to match the
package's scores for English with foreign names, German and French, although accented letters split words. Other
references, and texts compared with them, are split into Unicode words.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from tasks.scoring.scorer import Scorer, mean

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenizers import DefaultTokenizer

KINDS = ("rougeL", "rouge1", "rouge2")
LATIN_SHARE = 0.9
"""Least share of a to z among a reference's letters for the package's tokenizer."""
ZERO_WIDTH_SPACE = "\u200b"
# Scripts without spaces between words: each character, with its marks, is a token.
_UNSPACED = (
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19FF), (0x1A20, 0x1AAF)),  # Thai to Tai Tham
    *((0xA9E0, 0xA9FF), (0xAA60, 0xAADF)),  # Myanmar extended, Tai Viet
    *((0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3021, 0x312F), (0x31A0, 0x31BF), (0x31F0, 0x31FF)),  # Han, kana
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0xFF66, 0xFF9F), (0x1B000, 0x1B16F), (0x20000, 0x323AF)),
)
_PLAIN = {code: unicodedata.normalize("NFKC", chr(code)) for code in (*range(0xFB00, 0xFB07), *range(0xFF10, 0xFF5B))}
"""Latin ligatures and full-width letters and digits -> plain letters and digits."""


@lru_cache(maxsize=4096)  # AR and a lossless method give the same text, and a run scores it twice
def rouge(prediction: str, reference: str) -> dict[str, float]:
    """Return F1 of every kind with Porter stemming, L over the whole text; empty for a reference without tokens."""
    if not any(_kind(character) in ("word", "single") for character in reference):
        return {}
    scores = _scorer(_is_plain_latin(reference)).score(reference, prediction)
    return {kind: float(scores[kind].fmeasure) for kind in KINDS}


def _is_plain_latin(text: str) -> bool:
    composed = unicodedata.normalize("NFC", text)
    # other digits count as letters: the package's tokenizer drops them, too
    letters = [c for c in composed if c.isalpha() or (not c.isascii() and _kind(c) in ("word", "single"))]
    return sum(map(str.isascii, letters)) >= LATIN_SHARE * len(letters)


def is_unspaced(text: str) -> bool:
    """Return whether a text has characters of a script without spaces."""
    return any(_kind(character) == "single" for character in text)


class Words:
    """A tokenizer for `RougeScorer`: Unicode words in lower case, ASCII words stemmed as in the package.

    A word is a run of letters, decimal digits and their marks, in composed form (NFC). Full-width letters and ligatures
    count as plain letters. Layout characters (joiners, soft hyphens) do not split a word. In scripts without spaces
    (Chinese, Japanese, Thai, Lao, Khmer, Burmese) every character is a word.
    """

    def tokenize(self, text: str) -> list[str]:
        """Return the tokens."""
        tokens: list[str] = []
        word = ""
        for character in unicodedata.normalize("NFC", text.translate(_PLAIN).lower()) + " ":
            kind = _kind(character)
            if kind == "word" or (kind == "mark" and word):
                word += character
            elif kind == "mark" and tokens and is_unspaced(tokens[-1]):
                tokens[-1] += character
            elif kind != "layout":
                if word:
                    tokens.append(_stemmed(word))
                    word = ""
                if kind == "single":
                    tokens.append(character)
        return tokens


@lru_cache(maxsize=8192)
def _kind(character: str) -> str:
    """Return a character's role: word, mark, single (a word by itself), layout or gap."""
    category, code = unicodedata.category(character), ord(character)
    if category[0] == "M":
        selects_glyph = 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF or category == "Me"
        return "layout" if selects_glyph else "mark"
    if category == "Cf":
        return "gap" if character == ZERO_WIDTH_SPACE else "layout"
    if category[0] != "L" and category not in ("Nd", "Nl"):  # no superscripts and fractions, as in the package
        return "gap"
    return "single" if any(first <= code <= last for first, last in _UNSPACED) else "word"


@lru_cache(maxsize=65536)
def _stemmed(word: str) -> str:
    return "".join(_tokenizer().tokenize(word)) if word.isascii() else word


@cache
def _tokenizer() -> DefaultTokenizer:
    from rouge_score.tokenizers import DefaultTokenizer

    return DefaultTokenizer(use_stemmer=True)


@cache
def _scorer(plain_latin: bool) -> RougeScorer:
    from rouge_score.rouge_scorer import RougeScorer  # imports nltk and numpy: only if a text is scored

    return RougeScorer(list(KINDS), tokenizer=_tokenizer() if plain_latin else Words())


class Rouge(Scorer):
    """ROUGE F1 with Porter stemming: L over the whole text (one longest common subsequence), 1 and 2.

    A reference without a word (punctuation, emoji) has no score.
    """

    metric = "rougeL"

    def item(self, prediction: str, reference: str) -> float | None:
        """Return ROUGE-L."""
        return rouge(prediction, reference).get("rougeL")

    def corpus(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Return the means of ROUGE-1 and ROUGE-2."""
        means = mean(rouge(p, r) for p, r in zip(predictions, references, strict=True))
        return {name: value for name, value in means.items() if name != self.metric}
