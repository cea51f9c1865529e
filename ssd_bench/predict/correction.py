"""Correction of speedups that are predicted from a paper's acceptance, tested on papers that it was not fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from ssd_bench.papers.printed.catalogue import version_name
from ssd_bench.predict.predictions import PAPER_ACCEPTANCE, Skill, skill


@dataclass(frozen=True)
class Correction:
    """Factor on predictions at a paper's acceptance, which are too high: they leave out searches and the prefill.

    Attributes:
        factor: median of printed / predicted over all speedups that the papers measured.
        raw: skill without the factor.
        held_out: skill with the factor that follows from the other papers alone.
        by_paper: signed median error of each paper with the factor of the others.
    """

    factor: float
    raw: Skill
    held_out: Skill
    by_paper: Mapping[str, float]

    @property
    def text(self) -> str:
        """Sentences on the source of the factor and on its accuracy."""
        papers = ", ".join(f"{version_name(paper)} {100 * miss:+.1f} %" for paper, miss in self.by_paper.items())
        return (
            f"Predictions at a paper's acceptance are multiplied by {self.factor:.2f}, the median of printed over "
            f"predicted speedups: without the factor, {self.raw.n} speedups that the papers measured have a "
            f"{self.raw.text}. With the factor of the other papers: {self.held_out.text}; signed by paper: {papers}."
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
    corrected = rows.assign(predicted=rows["predicted"] * rows["paper"].map(factors))
    held_out = skill(corrected)
    assert held_out is not None, "it has as many rows as `raw`"
    errors = corrected["predicted"] / corrected["printed"].astype(float) - 1
    by_paper = {paper: float(errors[rows["paper"] == paper].median()) for paper in papers}
    return Correction(float(ratios.median()), raw, held_out, by_paper)
