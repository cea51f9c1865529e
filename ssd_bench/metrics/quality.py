"""Whether a speedup changed the output: lossless audit, task scores, and the method's outputs against AR's."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ssd_bench.metrics.definitions import UNIT, arm_rows, paired_rows
from ssd_bench.records.schema import PAIR
from ssd_bench.rouge import rouge
from tasks.scoring.passk import pass_at_k


def lossless_counts(prompts: pd.DataFrame) -> dict[str, Any]:
    """How the method's outputs compare with AR's: counts of identical, tie, bug, unchecked, and the first bad one.

    Returns:
        identical, tie, bug, unchecked; `first`: prompt_id, repeat, index, gap and verdict of the first bug (or, without
        one, of the first tie) in stream order, or None.
    """
    rows = arm_rows(prompts, "method").sort_values(UNIT)
    counts = {verdict: int((rows["lossless"] == verdict).sum()) for verdict in ("identical", "tie", "bug")}
    found = rows[rows["lossless"] == ("bug" if counts["bug"] else "tie")]
    first = None
    if len(found):
        row = found.iloc[0]
        gap = None if pd.isna(row["divergence_gap"]) else float(row["divergence_gap"])
        first = {key: row[key] for key in ("prompt_id", "lossless")} | {"gap": gap, "repeat": int(row["repeat"])}
        first["index"] = None if pd.isna(row["divergence_index"]) else int(row["divergence_index"])
    return {**counts, "unchecked": len(rows) - sum(counts.values()), "first": first}


def mean_score(prompts: pd.DataFrame) -> float | None:
    """Mean task score of the given rows, prompts weighted equally; None if the task has none."""
    scores = prompts.dropna(subset=["score"]).groupby("prompt_index")["score"].mean()
    return float(scores.mean()) if len(scores) else None


def score_counts(prompts: pd.DataFrame) -> dict[str, int]:
    """Count what a mean score is over.

    Returns:
        n_scored: answers with a score; n_answers: all.
    """
    return {"n_scored": int(prompts["score"].notna().sum()), "n_answers": len(prompts)}


def pass_at(prompts: pd.DataFrame, k: int) -> float | None:
    """pass@k of the given rows: `score` says of each repeat whether it passed; None with fewer than k repeats."""
    counts = prompts.dropna(subset=["score"]).groupby("prompt_index")["score"].agg(["size", "sum"])
    if counts.empty or (counts["size"] < k).any():
        return None
    return float(sum(pass_at_k(int(n), int(c), k) for n, c in counts.to_numpy()) / len(counts))


def agreement(prompts: pd.DataFrame) -> dict[str, float | None]:
    """The method's outputs against AR's of the same prompt and repeat: the papers' measure of quality.

    Returns:
        output_rouge2: mean ROUGE-2 F1 of the texts, AR's as the reference; 1 where they are equal, however short.
        output_exact: share of outputs with the same tokens.
    """
    both = paired_rows(prompts).set_index(UNIT)
    ours, ar = (arm_rows(both, arm).sort_index() for arm in ("method", "ar"))
    if ours.empty:
        return {"output_rouge2": None, "output_exact": None}
    texts = zip(ours["text"], ar["text"], strict=True)
    likeness = [1.0 if text == other else rouge(text, other).get("rouge2", 0.0) for text, other in texts]
    return {"output_rouge2": sum(likeness) / len(likeness), "output_exact": same_token_share(prompts)}


def same_token_share(prompts: pd.DataFrame, arms: tuple[str, str] = PAIR) -> float | None:
    """Share of the outputs of two arms, of the same prompt and repeat, with the same tokens; None without a pair."""
    both = paired_rows(prompts, arms).set_index(UNIT)
    first, second = (arm_rows(both, arm).sort_index()["output_ids"] for arm in arms)
    same = [list(ids) == list(other) for ids, other in zip(first, second, strict=True)]
    return sum(same) / len(same) if same else None
