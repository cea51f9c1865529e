"""Bayesian optimisation over layer sets, for every method that searches this way: the next point of the unit cube.

The process and the search for its highest confidence bound are those of bayes_opt, the library of Self-SD and SWIFT,
number drawn by number drawn. But that climbs by finite differences, with a prediction for every dimension at every
step, and here the gradient is known: proposals are the same but where rounding decides, for a fraction of the time.
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
RESTARTS = 5  # of the fit: bayes_opt's, as the kernel
TRIED, CLIMBS = 10_000, 10  # random points, and climbs from the best of them: bayes_opt's
AT_ONCE = 1000  # points predicted together: larger matrices are allocated and paged in anew every time


def suggest(
    points: Sequence[NDArray[np.float64]], scores: Sequence[float], random: np.random.RandomState, kappa: float
) -> NDArray[np.float64]:
    """The point of highest upper confidence bound that climbs (L-BFGS-B) from the best random points find.

    Args:
        points: [dims] each, in the unit cube; at least one.
        scores: their values.
        random: advances.
        kappa: posterior deviations above the mean.

    Returns:
        [dims] in the unit cube; the same bits whatever the number of threads.
    """
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits

    # one thread: matrices this small gain nothing from a second, which spins beside the first
    with warnings.catch_warnings(), threadpool_limits(1, user_api="blas"):
        warnings.simplefilter("ignore")  # length scales at their bounds
        process = fitted(points, scores, random)
        tried = random.rand(len(points[0]), TRIED).T  # bayes_opt draws dimension by dimension
        predicted = [process.predict(some, return_std=True) for some in np.split(tried, TRIED // AT_ONCE)]
        bounds = np.concatenate([mean + kappa * deviation for mean, deviation in predicted])

        def descend(point: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            bound, gradient = confidence_bound(process, point, kappa)
            return -bound, -gradient

        cube = [(0.0, 1.0)] * tried.shape[1]
        starts = tried[np.argsort(-bounds, kind="stable")[:CLIMBS]]
        tops = [minimize(descend, start, method="L-BFGS-B", jac=True, bounds=cube) for start in starts]
    return np.asarray(min(tops, key=lambda top: float(top.fun)).x, dtype=np.float64)


def fitted(
    points: Sequence[NDArray[np.float64]], scores: Sequence[float], random: np.random.RandomState
) -> GaussianProcessRegressor:
    """The Gaussian process of bayes_opt: scores normalised, a Matérn kernel of one length scale, of highest likelihood.

    Args:
        points: [dims] each; at least one.
        scores: their values.
        random: of the restarts; advances.
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
    """Upper confidence bound μ + κσ of a process of `fitted` at a point x, in normalised scores, and its gradient by x.

    With offsets δᵢ = (x - xᵢ) / l and u = √5 |δᵢ| the kernel is k = (1 + u + u² / 3) e⁻ᵘ, its gradient
    -5/3 (1 + u) e⁻ᵘ δᵢ / l; with K of the points and their noise μ = kᵀK⁻¹y and σ² = 1 - kᵀK⁻¹k (Rasmussen and
    Williams 2006, Eqs. 2.25, 2.26 and 4.17).

    Args:
        process: fitted to n points.
        point: x, [dims].
        kappa: κ.

    Returns:
        The bound, and [dims].
    """
    from scipy.linalg import cho_solve

    length = process.kernel_.length_scale
    offsets = (point - process.X_train_) / length
    u = np.sqrt(5 * (offsets * offsets).sum(1))
    decay = np.exp(-u)
    k = (1 + u + u * u / 3) * decay
    solved = cho_solve((process.L_, True), k)
    deviation = np.sqrt(1 - k @ solved)  # noise keeps it above 0: σ² is at least NOISE / (n + NOISE)
    by_kernel = process.alpha_ - kappa / deviation * solved
    gradient = (-5 / 3 / length * by_kernel * (1 + u) * decay) @ offsets
    return float(k @ process.alpha_ + kappa * deviation), gradient
