"""Bayesian optimisation over layer sets, as points of the unit cube.

Gaussian process and search for the highest confidence bound follow bayes_opt, the library of Self-SD and SWIFT, down to
the order of random numbers. bayes_opt climbs by finite differences, one prediction per dimension and step; the gradient
used here gives the same proposals (up to rounding) in a fraction of the time.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sklearn.gaussian_process import GaussianProcessRegressor

NOISE = 1e-2  # alpha of the Gaussian process, in Self-SD (searching.py:29-33) and SWIFT (inference_swift.py:293-295)
RESTARTS = 5  # restarts of the fit; as the kernel, bayes_opt's
RANDOM_POINTS, CLIMBS = 10_000, 10  # random points, and climbs from the best of them: bayes_opt's
BATCH = 1000  # points predicted together: larger matrices are allocated and paged in anew every time


def suggest(
    points: Sequence[NDArray[np.float64]], scores: Sequence[float], random: np.random.RandomState, kappa: float
) -> NDArray[np.float64]:
    """Return the point of highest upper confidence bound, by L-BFGS-B climbs from the best random points.

    Args:
        points: [dims] each, in the unit cube; at least one.
        random: advances.
        kappa: κ, posterior standard deviations above the mean.

    Returns:
        [dims] in the unit cube; the same bits for any number of threads.
    """
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits

    # one thread: matrices this small gain nothing from a second one, which would only spin
    with warnings.catch_warnings(), threadpool_limits(1, user_api="blas"):
        warnings.simplefilter("ignore")  # length scales at their bounds
        process = fit_process(points, scores, random)
        candidates = random.rand(len(points[0]), RANDOM_POINTS).T  # bayes_opt draws dimension by dimension
        batches = np.split(candidates, RANDOM_POINTS // BATCH)
        predictions = [process.predict(batch, return_std=True) for batch in batches]
        bounds = np.concatenate([mean + kappa * deviation for mean, deviation in predictions])

        def descend(point: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            bound, gradient = confidence_bound(process, point, kappa)
            return -bound, -gradient

        cube = [(0.0, 1.0)] * candidates.shape[1]
        starts = candidates[np.argsort(-bounds, kind="stable")[:CLIMBS]]
        tops = [minimize(descend, start, method="L-BFGS-B", jac=True, bounds=cube) for start in starts]
    return np.asarray(min(tops, key=lambda top: float(top.fun)).x, dtype=np.float64)


def fit_process(
    points: Sequence[NDArray[np.float64]], scores: Sequence[float], random: np.random.RandomState
) -> GaussianProcessRegressor:
    """Fit the Gaussian process of bayes_opt: normalised scores, Matérn kernel with one length scale by likelihood.

    Args:
        points: [dims] each; at least one.
        random: for the restarts; advances.
    """
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern

    process = GaussianProcessRegressor(
        Matern(nu=2.5), alpha=NOISE, normalize_y=True, n_restarts_optimizer=RESTARTS, random_state=random
    )
    return process.fit(np.stack(points), np.array(scores))


def confidence_bound(
    process: GaussianProcessRegressor, point: NDArray[np.float64], kappa: float
) -> tuple[float, NDArray[np.float64]]:
    """Return the upper confidence bound μ + κσ at a point x [dims], in normalised scores, and its gradient by x.

    With offsets δᵢ = (x - xᵢ) / l and u = √5 |δᵢ| the kernel is k = (1 + u + u² / 3) e⁻ᵘ, and its gradient is
    -5/3 (1 + u) e⁻ᵘ δᵢ / l. With the kernel matrix K of the points, noise included, μ = kᵀK⁻¹y and σ² = 1 - kᵀK⁻¹k
    (Rasmussen and Williams 2006, Eqs. 2.25, 2.26 and 4.17).
    """
    from scipy.linalg import cho_solve

    length = process.kernel_.length_scale
    offsets = (point - process.X_train_) / length
    u = np.sqrt(5 * (offsets * offsets).sum(1))
    decay = np.exp(-u)
    k = (1 + u + u * u / 3) * decay
    solution = cho_solve((process.L_, True), k)  # K⁻¹k
    deviation = np.sqrt(1 - k @ solution)  # σ; noise keeps it above 0: σ² is at least NOISE / (n + NOISE)
    by_kernel = process.alpha_ - kappa / deviation * solution  # d(μ + κσ)/dk = K⁻¹y - κ/σ K⁻¹k
    gradient = (-5 / 3 / length * by_kernel * (1 + u) * decay) @ offsets
    return float(k @ process.alpha_ + kappa * deviation), gradient  # alpha_ is K⁻¹y
