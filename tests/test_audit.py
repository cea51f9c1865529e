"""Lossless or not: identical, a tie within rounding, or a bug."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd_bench.core.lossless import LOGIT_TOLERANCE, Verdict, classify, tolerance
from ssd_bench.errors import ConfigError

IDS = st.lists(st.integers(0, 3), max_size=8)


def never(position: int) -> float:
    raise AssertionError(f"the gap at {position} is not needed")


def gap(value: float, at: list[int]) -> Callable[[int], float]:
    return lambda position: at.append(position) or value  # type: ignore[func-returns-value]


@given(IDS)
def test_equal_outputs_are_identical_and_cost_nothing(ids: list[int]) -> None:
    assert classify(ids, tuple(ids), never, 0.5) == Verdict(None, None, "identical")


@given(IDS, IDS, st.floats(0, 1), st.floats(0, 1))
def test_the_first_difference_decides(ids: list[int], other: list[int], logit_gap: float, limit: float) -> None:
    asked: list[int] = []
    verdict = classify(ids, other, gap(logit_gap, asked), limit)
    differing = [i for i, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b]
    if differing:
        expected = "tie" if logit_gap <= limit else "bug"
        assert verdict == Verdict(differing[0], logit_gap, expected)
        assert asked == differing[:1]
    elif len(ids) != len(other):
        assert verdict == Verdict(min(len(ids), len(other)), None, "bug")
        assert not asked
    else:
        assert verdict.verdict == "identical"


def test_stopping_early_or_late_is_a_bug_even_where_logits_tie() -> None:
    assert classify([1, 2], [1, 2, 3], never, math.inf).verdict == "bug"
    assert classify([1, 2, 3], [1, 2], never, math.inf).verdict == "bug"


def test_a_nan_gap_is_no_tie() -> None:
    assert classify([1], [2], lambda _: math.nan, math.inf).verdict == "bug"


def test_tolerances_follow_precision_and_unknown_arithmetic_is_refused() -> None:
    """What rounds more may turn over a larger gap, whether activations, inputs or the cache do."""
    f64, f32, f16, b16 = "float64", "float32", "float16", "bfloat16"
    ordered = [(f64, f64, f64), (f32, f32, f32), (f32, f32, f16), (f32, f32, b16), (f32, b16, b16), (b16, b16, b16)]
    assert [tolerance(*kinds) for kinds in ordered] == sorted(tolerance(*kinds) for kinds in ordered)
    assert set(LOGIT_TOLERANCE) == {*ordered, (f16, f16, f16)}
    with pytest.raises(ConfigError, match="int8"):
        tolerance("float32", "float32", "int8")
