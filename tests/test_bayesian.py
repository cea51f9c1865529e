"""The optimiser: its bound is the process's, the gradient that of the bound, the suggestion its maximum, the same on
any number of threads.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from methods.bayesian import confidence_bound, fitted, suggest

KAPPA = 2.5


def known(n: int, dims: int) -> tuple[list[NDArray[np.float64]], list[float]]:
    """n points, inside the cube and at its corners, and scores that half of the dimensions make."""
    random = np.random.RandomState(0)
    points = [random.rand(dims) if i % 2 else random.randint(2, size=dims).astype(float) for i in range(n)]
    weights = random.randn(dims) * (random.rand(dims) < 0.5)
    return points, [float(point @ weights + 0.1 * random.randn()) for point in points]


@pytest.mark.filterwarnings("ignore:The optimal value found")  # equal scores: the longest scale
@pytest.mark.parametrize(("n", "dims"), [(1, 4), (2, 1), (9, 8), (40, 32), (60, 64)])
@pytest.mark.parametrize("scored", ["differently", "equally", "twice"])
def test_gradient_is_that_of_the_processs_bound(n: int, dims: int, scored: str) -> None:
    """By central differences: inside, at a corner, beside a known point and on it; at the longest scale, too."""
    points, scores = known(n, dims)
    if scored == "equally":
        scores = [0.5] * n
    elif scored == "twice":
        points, scores = points * 2, scores + [score + 0.3 for score in scores]
    process = fitted(points, scores, np.random.RandomState(0))
    random, spread = np.random.RandomState(1), np.std(scores) or 1.0
    for point in (random.rand(dims), random.rand(dims), np.ones(dims), points[0] + 0.01, points[0]):
        bound, gradient = confidence_bound(process, point, KAPPA)
        mean, deviation = process.predict(point[None], return_std=True)
        assert bound == pytest.approx((mean[0] + KAPPA * deviation[0] - np.mean(scores)) / spread, abs=1e-9)
        beside = 1e-5 * np.eye(dims)
        values = [[confidence_bound(process, point + sign * step, KAPPA)[0] for sign in (1, -1)] for step in beside]
        assert gradient == pytest.approx(-np.diff(values)[:, 0] / 2e-5, abs=1e-5, rel=1e-5)


@pytest.mark.parametrize(("n", "dims"), [(1, 6), (12, 6), (50, 32)])
def test_suggestion_is_a_maximum_of_the_bound(n: int, dims: int) -> None:
    """In the cube; nothing rises from it, and nothing drawn at random, nor any known point, is above it."""
    points, scores = known(n, dims)
    process = fitted(points, scores, np.random.RandomState(3))
    found = suggest(points, scores, np.random.RandomState(3), KAPPA)
    assert found.shape == (dims,) and (found >= 0).all() and (found <= 1).all()
    best, gradient = confidence_bound(process, found, KAPPA)
    rising = np.where(found == 1, np.minimum(gradient, 0), np.where(found == 0, np.maximum(gradient, 0), gradient))
    assert np.abs(rising).max() < 1e-3
    others = [*np.random.RandomState(4).rand(500, dims), *points]
    assert best >= max(confidence_bound(process, other, KAPPA)[0] for other in others)


def test_suggestion_does_not_depend_on_the_unit_of_scores() -> None:
    """Tokens per second or speedup: a power of two, for equal rounding."""
    points, scores = known(20, 8)
    made = [suggest(points, [c * s for s in scores], np.random.RandomState(0), KAPPA) for c in (1.0, 2.0**9, 2.0**-9)]
    assert np.array_equal(made[0], made[1]) and np.array_equal(made[0], made[2])


def test_suggestion_has_the_same_bits_on_any_number_of_threads() -> None:
    """Of a maximum inside the cube, whose coordinates are rounded, and of matrices that BLAS would share out."""
    points, scores = known(200, 8)
    made = []
    for threads in (1, 2, 4):
        with threadpool_limits(threads):
            made.append(suggest([0.2 + 0.6 * p for p in points], scores, np.random.RandomState(0), KAPPA))
    assert ((made[0] > 0) & (made[0] < 1)).any()
    assert np.array_equal(made[0], made[1]) and np.array_equal(made[0], made[2])
