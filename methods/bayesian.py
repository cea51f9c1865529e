"""Bayesian optimisation over layer sets, for every method that searches this way: the next point of the unit cube."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

NOISE = 1e-2  # alpha of the Gaussian process, in Self-SD (searching.py:29-33) and SWIFT (inference_swift.py:293-295)


def suggest(
    points: Sequence[NDArray[np.float64]], scores: Sequence[float], random: np.random.RandomState, kappa: float
) -> NDArray[np.float64]:
    """The point of highest upper confidence bound, as bayes_opt finds it.

    Its optimiser object is not used: that copies all points whenever one is added, and prints every repeated one.

    Args:
        points: [dims] each, in the unit cube; at least one.
        scores: their values.
        random: advances.
        kappa: posterior deviations above the mean.

    Returns:
        [dims] in the unit cube.
    """
    from bayes_opt import TargetSpace
    from bayes_opt.acquisition import UpperConfidenceBound
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern
    from threadpoolctl import threadpool_limits

    # the process of bayes_opt.BayesianOptimization
    process = GaussianProcessRegressor(
        Matern(nu=2.5), alpha=NOISE, normalize_y=True, n_restarts_optimizer=5, random_state=random
    )
    space = TargetSpace(None, {f"x{i}": (0.0, 1.0) for i in range(len(points[0]))})
    space.register(points[-1], scores[-1])  # an empty space is refused; its points are not read
    # one thread: matrices this small gain nothing from a second, which spins beside the first
    with warnings.catch_warnings(), threadpool_limits(1, user_api="blas"):
        warnings.simplefilter("ignore")  # length scales at their bounds
        process.fit(np.stack(points), np.array(scores))
        proposed = UpperConfidenceBound(kappa).suggest(process, space, fit_gp=False, random_state=random)
    return np.asarray(proposed, dtype=np.float64)
