"""Correction of speedups that are predicted from a paper's acceptance, tested on papers that it was not fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from ssd_bench.papers.printed.catalogue import version_name
from ssd_bench.predict.predictions import PAPER_ACCEPTANCE, Skill, skill


@dataclass(frozen=True)
class Correction:
    """Factor on predictions at a paper's acceptance, which leave out searches and the prefill.

    Attributes:
        ratio: median of printed / predicted over all speedups that the papers measured.
        raw: skill without a factor.
        held_out: skill with the factor that follows from the other papers alone.
        by_paper: signed median error of each paper without a factor.
    """

    ratio: float
    raw: Skill
    held_out: Skill
    by_paper: Mapping[str, float]

    @property
    def factor(self) -> float:
        """Factor to apply: `ratio` if such a factor helps papers to which it was not fitted, else 1."""
        return self.ratio if self.held_out.miss < self.raw.miss else 1.0

    @property
    def text(self) -> str:
        """Sentences on the accuracy of the predictions, and on the factor."""
        papers = ", ".join(f"{version_name(paper)} {100 * miss:+.1f} %" for paper, miss in self.by_paper.items())
        verdict = (
            f"multiplied by {self.factor:.2f}"
            if self.factor != 1
            else f"not corrected: the factor of all papers would be {self.ratio:.2f}, but it does not carry over"
        )
        return (
            f"Predictions at a paper's acceptance: {self.raw.n} speedups that the papers measured have a "
            f"{self.raw.text}; signed by paper: {papers}. With the median of printed over predicted speedups of the "
            f"other papers as a factor: {self.held_out.text}. So predictions are {verdict}."
        )


def correction(frame: pd.DataFrame) -> Correction | None:
    """Return the correction by the papers' measured speedups, tested on each paper with the factor of the others.

    Args:
        frame: result of `predictions`.

    Returns:
        The correction; None with fewer than `FEW` speedups or with one paper.
    """
    usable = (frame["metric"] == "speedup") & frame["predicted"].notna() & (frame["acceptance"] == PAPER_ACCEPTANCE)
    rows = frame[usable]
    raw, papers = skill(rows), list(dict.fromkeys(rows["paper"]))
    if raw is None or len(papers) < 2:
        return None
    ratios = rows["printed"].astype(float) / rows["predicted"]
    factors = {paper: float(ratios[rows["paper"] != paper].median()) for paper in papers}
    held_out = skill(rows.assign(predicted=rows["predicted"] * rows["paper"].map(factors)))
    assert held_out is not None, "it has as many rows as `raw`"
    by_paper = {paper: float((1 / ratios[rows["paper"] == paper] - 1).median()) for paper in papers}
    return Correction(float(ratios.median()), raw, held_out, by_paper)
