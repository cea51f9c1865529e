"""Intervals cover what they say, on recorded prompts and timings."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from ssd_bench.papers.ours.cells import REPEATED_TIMINGS, Cell
from ssd_bench.results.quantity import QUANTITIES, measure, ratio_of_sums
from tests import interval_coverage as coverage


@cache
def cells(experiment: str) -> list[Cell]:
    return coverage.cells_of(experiment)


@pytest.mark.parametrize("n", [8, 20])
@pytest.mark.parametrize("method", ["uniform half-skip", "SWIFT", "KnapSpec", "adaptive"])
def test_speedups_of_recorded_prompts_are_covered(method: str, n: int) -> None:
    cell = next(one for one in cells(coverage.POPULATION) if one["method"] == method)
    assert cell.run.prompts["prompt_index"].nunique() == 60
    share, width = coverage.coverage(measure, QUANTITIES["speedup"], coverage.columns_of(cell.run), n, coverage.DRAWS)
    assert share >= 0.92 and 0 < width < 2


def test_the_floor_covers_other_moments() -> None:
    tasks = {cell["task"] for cell in cells(REPEATED_TIMINGS)}
    assert len(tasks) == 3
    for task in tasks:
        moments = [coverage.columns_of(cell.run) for cell in cells(REPEATED_TIMINGS) if cell["task"] == task]
        assert len(moments) == 8
        without, with_floor = coverage.coverage_over_timings(moments, 20, coverage.DRAWS)
        assert with_floor >= max(without, 0.87)  # all but one of eight moments


def test_coverage_counts_what_lies_in_the_interval() -> None:
    rng = np.random.default_rng(0)
    columns = [rng.lognormal(0, 0.3, 60), np.ones(60)]
    share, _ = coverage.coverage(measure, ratio_of_sums, columns, 20, 400)
    assert 0.9 < share < 1
    none, _ = coverage.coverage(lambda *_: coverage.Measured(1.0, 5.0, 6.0, 20), ratio_of_sums, columns, 20, 50)
    assert none == 0


@pytest.mark.parametrize("name", list(coverage.MAKERS))
def test_each_kind_of_interval_is_one(name: str) -> None:
    rng = np.random.default_rng(1)
    columns = [rng.lognormal(1, 0.2, 12) for _ in range(4)]
    made = coverage.MAKERS[name](QUANTITIES["speedup"], *columns)
    assert made.low is not None and made.high is not None and made.value is not None and made.low < made.high
