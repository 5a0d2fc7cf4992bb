"""A sampler of a posterior by sequential Monte Carlo.

It suits a handful of parameters and likelihoods that take microseconds. The parameters are standard
normal a priori; the caller maps them to what they mean. Points drawn from that prior are brought to
the posterior through tempered likelihoods, L^t with t from 0 to 1 (Del Moral, Doucet and Jasra,
2006). Each rise of t leaves at least about half of the effective number of points. The points are
then resampled and moved by differential evolution (ter Braak, 2006), which needs neither gradients
nor a scale. The caller chooses no starting value, the points can cover several modes, and
parameters that the data do not determine keep their prior. The same data and seed give the same
draws.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Likelihood = Callable[[Array, Array], Array]

NUM_DRAWS = 4000
_MOVES, _LAST_MOVES = 6, 20  # moves of each point, at each t below 1 and at t = 1
_LEAST_SHARE = 0.5  # effective share of the points after a change of t


def posterior(
    log_likelihood: Likelihood,
    num_parameters: int,
    num_draws: int = NUM_DRAWS,
    seed: int = 0,
) -> Array:
    """Return posterior draws, of shape (num_draws, num_parameters), of parameters whose priors are
    standard normal.

    Args:
        log_likelihood: A function from points of shape (n, num_parameters) to log likelihoods of
            shape (n,). It returns -inf where the data are impossible. Its second argument, of shape
            (n,), are the log likelihoods below which points are refused: there it may return -inf.
        num_parameters: The number of parameters.
        num_draws: The number of draws, which must be even.
        seed: The seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((num_draws, num_parameters))
    heights, temperature = log_likelihood(points, np.full(num_draws, -np.inf)), 0.0
    while temperature < 1:
        rise = _rise(heights, 1 - temperature)
        temperature = min(1.0, temperature + rise)
        chosen = _resampled(_weights(rise * heights), rng)
        points, heights = points[chosen], heights[chosen]
        for _ in range(_MOVES if temperature < 1 else _LAST_MOVES):
            points, heights = _moved(points, heights, temperature, log_likelihood, rng)
    return rng.permutation(points)


def _weights(logs: Array) -> Array:
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


def _rise(heights: Array, most: float) -> float:
    """Return by how much t, the exponent of the likelihood, may rise while the effective sample
    size of the reweighted points stays at least half of their number.

    The result is at most `most`.
    """
    wanted = _LEAST_SHARE * len(heights)

    def effective(rise: float) -> float:
        return 1 / float(np.sum(_weights(rise * heights) ** 2))

    if effective(most) >= wanted:
        return most
    low, high = 0.0, most
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if effective(middle) >= wanted else (low, middle)
    return high  # above 0 even if only a single point is possible


def _resampled(weights: Array, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw points by systematic resampling with the given weights, and return their indices in
    random order.
    """
    places = (np.arange(len(weights)) + rng.random()) / len(weights)
    chosen = np.minimum(np.searchsorted(np.cumsum(weights), places), len(weights) - 1)
    return rng.permutation(chosen)


def _moved(
    points: Array,
    heights: Array,
    temperature: float,
    log_likelihood: Likelihood,
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """Move each of the sampler's points by one Metropolis step, and return all points with their
    log likelihoods.

    A point moves along a difference between two points of the other half (differential evolution).
    The moves keep the tempered posterior.
    """
    points, heights = points.copy(), heights.copy()
    half, dim = len(points) // 2, points.shape[1]
    for own, other in ((slice(0, half), slice(half, None)), (slice(half, None), slice(0, half))):
        pool, old = points[other], points[own]
        first, second = (pool[rng.integers(len(pool), size=len(old))] for _ in range(2))
        scale = 2.38 / np.sqrt(2 * dim) * rng.uniform(0.4, 1.2, (len(old), 1))
        scale[rng.random(len(old)) < 0.1] = 1.0  # Such a step can jump from one mode to another.
        new = old + scale * (first - second) + 1e-4 * rng.standard_normal(old.shape)
        farther = 0.5 * (np.sum(new**2, axis=1) - np.sum(old**2, axis=1))
        limits = np.log(rng.random(len(old)))
        new_heights = log_likelihood(new, heights[own] + (limits + farther) / temperature)
        accepted = limits < temperature * (new_heights - heights[own]) - farther
        points[own] = np.where(accepted[:, None], new, old)
        heights[own] = np.where(accepted, new_heights, heights[own])
    return points, heights
