"""Checks that a speedup left the output unchanged: lossless audit, task scores, comparison with AR's outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ssd_bench.records.schema import PAIR
from ssd_bench.results.rows import UNIT, arm_rows, pair_positions
from tasks.scoring.passk import pass_at_k
from tasks.scoring.rouge import rouge


def lossless_counts(prompts: pd.DataFrame) -> dict[str, Any]:
    """Count the outcomes of comparing the method's outputs with AR's.

    Returns:
        Counts of identical, tie (near-tie), bug (mismatch) and unchecked. `first`: prompt_id, repeat, index, gap and
        verdict of the first bug in stream order, else of the first tie, else None.
    """
    rows = arm_rows(prompts, "method").sort_values(UNIT)
    counts = {verdict: int((rows["lossless"] == verdict).sum()) for verdict in ("identical", "tie", "bug")}
    different = rows[rows["lossless"] == ("bug" if counts["bug"] else "tie")]
    first = None
    if len(different):
        row = different.iloc[0]
        gap = None if pd.isna(row["divergence_gap"]) else float(row["divergence_gap"])
        first = {key: row[key] for key in ("prompt_id", "lossless")} | {"gap": gap, "repeat": int(row["repeat"])}
        first["index"] = None if pd.isna(row["divergence_index"]) else int(row["divergence_index"])
    return {**counts, "unchecked": len(rows) - sum(counts.values()), "first": first}


def score_counts(prompts: pd.DataFrame) -> dict[str, int]:
    """Count the answers with a score (`n_scored`) and all answers (`n_answers`)."""
    return {"n_scored": int(prompts["score"].notna().sum()), "n_answers": len(prompts)}


def pass_at(prompts: pd.DataFrame, k: int) -> float | None:
    """Return pass@k of the rows; a repeat passes if its `score` is 1. None with fewer than k repeats."""
    counts = prompts.dropna(subset=["score"]).groupby("prompt_index")["score"].agg(["size", "sum"])
    if counts.empty or (counts["size"] < k).any():
        return None
    # mean over prompts of 1 - C(n - c, k) / C(n, k), c of n repeats passing (Chen et al. 2021, Eq. 1)
    return float(sum(pass_at_k(int(n), int(c), k) for n, c in counts.to_numpy()) / len(counts))


def output_rouge2(prompts: pd.DataFrame) -> float | None:
    """Return the mean ROUGE-2 F1 of the method's outputs with AR's as references (Lin 2004); None without a pair.

    The papers' measure of quality; 1 for equal texts.
    """
    text, (ar, method) = prompts["text"].to_numpy(), pair_positions(prompts)
    texts = zip(text[method], text[ar], strict=True)
    likeness = [1.0 if text == reference else rouge(text, reference).get("rouge2", 0.0) for text, reference in texts]
    return sum(likeness) / len(likeness) if likeness else None


def same_token_share(prompts: pd.DataFrame, arms: tuple[str, str] = PAIR) -> float | None:
    """Return the share of paired outputs (same prompt and repeat) with equal tokens; None without a pair."""
    output_ids, rows = prompts["output_ids"].to_numpy(), pair_positions(prompts, arms)
    equal = [np.array_equal(output_ids[first], output_ids[second]) for first, second in zip(*rows, strict=True)]
    return sum(equal) / len(equal) if equal else None
