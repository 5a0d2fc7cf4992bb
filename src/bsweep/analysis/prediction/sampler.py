"""Draws from a posterior by sequential Monte Carlo, for a handful of parameters and likelihoods
that take microseconds.

The parameters are standard normal a priori; whoever asks maps them to what they mean. Points drawn
from that prior are brought to the posterior through tempered likelihoods, L^t with t from 0 to 1
(Del Moral, Doucet and Jasra, 2006): each step halves the effective number of points, resamples them
and moves them by differential evolution (ter Braak, 2006), which needs neither gradients nor a
scale. No starting value has to be chosen, two modes are both found, and parameters of which the
data say nothing keep their prior. The draws are the same for the same data: the seed is fixed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

NUM_DRAWS = 4000
_MOVES, _LAST_MOVES = 6, 20  # of each point, at each temperature and at the last
_LEAST_SHARE = 0.5  # of points that count after a change of temperature


def posterior(
    log_likelihood: Callable[[Array], Array],
    num_parameters: int,
    num_draws: int = NUM_DRAWS,
    seed: int = 0,
) -> Array:
    """Draws of shape (num_draws, num_parameters), of standard normal parameters given data.

    Args:
        log_likelihood: from points of shape (n, num_parameters) to (n,); -inf where the data are
            impossible.
        num_parameters: how many there are.
        num_draws: an even number.
        seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((num_draws, num_parameters))
    heights, temperature = log_likelihood(points), 0.0
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
    """The change of temperature that leaves the wanted share of points to count, or `most` if that
    leaves more.
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
    return high  # greater than nothing, also where a single point is possible


def _resampled(weights: Array, rng: np.random.Generator) -> NDArray[np.intp]:
    """Systematic resampling, in random order."""
    places = (np.arange(len(weights)) + rng.random()) / len(weights)
    chosen = np.minimum(np.searchsorted(np.cumsum(weights), places), len(weights) - 1)
    return rng.permutation(chosen)


def _moved(
    points: Array,
    heights: Array,
    temperature: float,
    log_likelihood: Callable[[Array], Array],
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """Each half steps along differences of two points of the other one, which keeps the tempered
    posterior.
    """
    points, heights = points.copy(), heights.copy()
    half, dim = len(points) // 2, points.shape[1]
    for own, other in ((slice(0, half), slice(half, None)), (slice(half, None), slice(0, half))):
        pool, old = points[other], points[own]
        first, second = (pool[rng.integers(len(pool), size=len(old))] for _ in range(2))
        scale = 2.38 / np.sqrt(2 * dim) * rng.uniform(0.4, 1.2, (len(old), 1))
        scale[rng.random(len(old)) < 0.1] = 1.0  # from one mode to another
        new = old + scale * (first - second) + 1e-4 * rng.standard_normal(old.shape)
        new_heights = log_likelihood(new)
        change = temperature * (new_heights - heights[own]) - 0.5 * (
            np.sum(new**2, axis=1) - np.sum(old**2, axis=1)
        )
        accepted = np.log(rng.random(len(old))) < change
        points[own] = np.where(accepted[:, None], new, old)
        heights[own] = np.where(accepted, new_heights, heights[own])
    return points, heights
