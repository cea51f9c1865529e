"""Repetition in outputs. Loops are easy to draft, so a speedup is read with the share of repeated n-grams.

The share of an output's n-grams that are not distinct is seq-rep-n (Welleck et al., arXiv:1908.04319); here n = 8.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ssd_bench.results.quantity import Measured, ratio

NGRAM = 8
"""Tokens of an n-gram."""
LOOP_SHARE = 0.1
"""Share of repeated n-grams above which an output counts as a loop. In an output of 256 tokens (249 n-grams) a copied
phrase of 16 tokens is 9 of them (0.04); a passage repeated once is about 0.5.
"""


def repeated_ngram_share(output_ids: Sequence[int]) -> float:
    """Return the share of repeats among an output's n-grams; 0 for an output shorter than an n-gram."""
    ids = np.asarray(output_ids, dtype=np.int64)
    if len(ids) < NGRAM:
        return 0.0
    # the bytes of an n-gram are its key: np.unique over rows takes twenty times as long
    content, token = ids.tobytes(), ids.itemsize
    ngrams = [content[start : start + NGRAM * token] for start in range(0, len(content) - (NGRAM - 1) * token, token)]
    # seq-rep-n = 1 - distinct n-grams / n-grams
    return 1 - len(set(ngrams)) / len(ngrams)


def repetition(prompts: pd.DataFrame) -> Measured:
    """Return the mean share of repeated n-grams over one arm's prompts, each the mean of its answers."""
    by_prompt = prompts["output_ids"].map(repeated_ngram_share).groupby(prompts["prompt_index"]).mean()
    return ratio(by_prompt.to_numpy(), np.ones(len(by_prompt)), at_most=1.0)


def looping_prompts(rows: pd.DataFrame) -> NDArray[np.int64]:
    """Return the prompts (prompt_index) with a looping answer."""
    loops = rows["output_ids"].map(repeated_ngram_share) > LOOP_SHARE
    return rows.loc[loops, "prompt_index"].to_numpy()
