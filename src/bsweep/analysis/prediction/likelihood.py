"""The likelihood of y, the steps or seconds that runs took: log y = model + effect of the cell +
noise of the run.

The effect is normal with standard deviation tau. It is what the model misses at a cell, and all
runs of the cell share it. The noise has Student's t distribution with scale sigma and four degrees
of freedom, and differs between runs. So the prediction for a measured cell depends on the model
*and* on the cell's own runs, and a model that fits badly widens the intervals.

A value with noise from a t distribution is normal given its weight, with the variance
sigma^2 / weight. `fitted` finds the expected weights from small samples of the posterior
(expectation maximization; Lange, Little and Taylor, 1989), and then samples with these weights. So
a run that took unusually long counts little.

Some runs are censored: they tell only that log y is above or below a bound. Such a run enters the
likelihood by the probability of that event (Tobin, 1958), with normal noise; the effect is
integrated out, exactly for one such run of a cell, and by quadrature around the mode for several.

A value that was interpolated between two evaluations is known to within their distance d. This adds
d^2 / 12, the variance of a uniform error, to the noise of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, logsumexp, ndtri_exp

from bsweep.analysis.prediction.sampler import Array, posterior

# The weights of runs, by a cell and the logarithm of its run's value.
Weights = Mapping[tuple[Hashable, float], float]

FREEDOM = 4.0  # degrees of freedom of the noise
_PILOTS, _PILOT_DRAWS = 2, 150  # samples of the posterior from which the weights of runs come
_LOG_2PI = float(np.log(2 * np.pi))
# To the mode of an effect. If all bounds are of one kind, the slope is convex or concave, and the
# steps converge from one side. With bounds of both kinds, six steps ended within 0.0002 standard
# deviations of the mode in each of 20,000 random cells.
_NEWTON_STEPS = 6
_SLACK = 0.01  # more than the errors of the integral over an effect
_REACH = 8.0  # standard deviations on both sides of the mode, in which an effect lies


def _nodes(number_of: int) -> tuple[Array, Array]:
    """Return places on both sides of 0 up to 1 and -1, dense near 0, and the logarithms of their
    weights for an integral.
    """
    places, weights = np.polynomial.legendre.leggauss(number_of)
    places, weights = (places + 1) / 2, weights / 2
    both = np.concatenate([-places[::-1], places])
    return both**3, np.log(np.concatenate([weights[::-1], weights]) * 3 * both**2)


_FEW, _MANY = _nodes(12), _nodes(100)  # to integrate, and to draw from


@dataclass(frozen=True)
class CellRuns:
    """The logarithms of the steps or seconds that the runs of one cell took; for a censored run,
    only a bound of the unknown value.

    `exact` holds the values of uncensored runs. `above` and `below` hold the bounds of censored
    runs, whose values lie above or below them. `resolution` is the extra variance of an exact value
    due to the distance between its evaluations, averaged over the cell's runs.
    """

    exact: Array
    above: Array
    below: Array
    resolution: float = 0.0

    @property
    def is_censored(self) -> bool:
        return len(self.above) + len(self.below) > 0


@dataclass(frozen=True)
class Measurements:
    """The logarithms of values that were measured in several cells, with the count and the mean of
    each cell's uncensored values.

    The values are the steps of runs to the target, or the seconds of steps, passes or exchanges.
    `weights` has the weight of each exact value. `count` is the number of a cell's exact values,
    `weight` is the sum of their weights, `mean` is the weighted mean of their logarithms, `within`
    is the weighted sum of squared deviations from that mean, and `resolution` is that of
    `CellRuns`.
    """

    runs: tuple[CellRuns, ...]
    weights: tuple[Array, ...]
    count: Array
    weight: Array
    mean: Array
    within: Array
    resolution: Array
    censored: tuple[int, ...]  # numbers of the cells that have censored runs


def measurements(runs: Iterable[CellRuns], weights: Sequence[Array] | None = None) -> Measurements:
    """Return the runs of several cells with their counts and means. All weights are 1 if none are
    given.
    """
    known = tuple(runs)
    weights = [np.ones(len(cell.exact)) for cell in known] if weights is None else weights
    numbers = []
    for cell, each in zip(known, weights, strict=True):
        mean = float(np.average(cell.exact, weights=each)) if len(each) else 0.0
        within = float(each @ (cell.exact - mean) ** 2)
        numbers.append((float(len(each)), float(each.sum()), mean, within, cell.resolution))
    censored = tuple([number for number, cell in enumerate(known) if cell.is_censored])
    count, weight, means, withins, resolution = np.array(numbers).reshape(-1, 5).T
    return Measurements(known, tuple(weights), count, weight, means, withins, resolution, censored)


def fitted(
    runs: Mapping[Any, CellRuns],
    expected: Callable[[Array, Sequence[int]], tuple[Array, Array, Array]],
    num_parameters: int,
    num_draws: int,
    seeds: tuple[int, int],
    chosen: Sequence[int] | None = None,
    weights: Weights | None = None,
) -> tuple[Array, Array, Weights]:
    """Fit a model to the runs of several cells.

    Args:
        runs: The runs of each cell, by a key of the cell.
        expected: A function from points of shape (n, num_parameters) and places of cells to the
            model's logarithms, sigma and tau, as `log_likelihood` takes them.
        num_parameters: The number of parameters, all standard normal a priori.
        num_draws: The number of draws.
        seeds: The seed of the random numbers, and a second one for those of the effects.
        chosen: Places of the cells from which the parameters come; None for all.
        weights: The weights of the runs from another fit; None: they are estimated.

    Returns:
        Draws from the posterior of the parameters, of shape (draws, num_parameters), draws of the
        cells' effects, of shape (draws, cells), and the weights of the runs.
    """
    cells, seed = measurements(runs.values()), seeds[0]
    if weights is not None:
        known = [
            np.array([weights[key, float(value)] for value in cell.exact])
            for key, cell in runs.items()
        ]
        cells = measurements(cells.runs, known)
    everywhere = range(len(cells.runs))
    places = list(everywhere if chosen is None else chosen)
    num_pilots = _PILOTS if weights is None else 0
    for pilot in range(num_pilots + 1):
        fitted_cells = measurements(
            [cells.runs[place] for place in places], [cells.weights[place] for place in places]
        )

        def height(points: Array, least: Array, cells: Measurements = fitted_cells) -> Array:
            model, sigma, tau = expected(points, places)
            return log_likelihood(cells, model, sigma, tau, least)

        draws = num_draws if pilot == num_pilots else min(num_draws, _PILOT_DRAWS)
        points = posterior(height, num_parameters, draws, seed)
        if pilot < num_pilots:
            rng = np.random.default_rng([seed, 4, pilot])
            cells = _weighed(cells, *expected(points, everywhere), rng)
    rng = np.random.default_rng(seeds)
    effects = draw_effects(cells, *expected(points, everywhere), rng)
    estimated = {
        (key, float(value)): float(weight)
        for key, cell, of_runs in zip(runs, cells.runs, cells.weights, strict=True)
        for value, weight in zip(cell.exact, of_runs, strict=True)
    }
    return points, effects, estimated


def _weighed(
    cells: Measurements, model: Array, sigma: Array, tau: Array, rng: np.random.Generator
) -> Measurements:
    """Return the cells with the expected weights of their runs, given draws of the parameters."""
    effects = draw_effects(cells, model, sigma, tau, rng)
    weights = []
    for number, cell in enumerate(cells.runs):
        variance = (sigma**2 + cell.resolution)[:, None]
        away = (cell.exact - (model + effects)[:, number, None]) ** 2 / variance
        weights.append(((FREEDOM + 1) / (FREEDOM + away)).mean(axis=0))
    return measurements(cells.runs, weights)


def doublings_beyond(value: float, measured: Sequence[float]) -> float:
    """Return by how many doublings a value, such as a batch size, lies above the largest or below
    the smallest measured value; 0 if it lies between them, or nothing was measured.
    """
    if not measured:
        return 0.0
    return float(max(0.0, np.log2(value / max(measured)), np.log2(min(measured) / value)))


def effect_beyond(tau: Array, doublings: float, seeds: Sequence[int]) -> Array:
    """Draw the effect of a cell without runs, which lies so many doublings beyond the measured
    ones. Each doubling adds as much variance again. The same `seeds` give the same draws.
    """
    rng = np.random.default_rng(seeds)
    return np.asarray(tau * np.sqrt(1 + doublings) * rng.standard_normal(len(tau)))


def evenly(count: int, most: int) -> list[int]:
    """Return the places of at most `most` of `count` items, spread evenly from the first to the
    last.
    """
    places = np.linspace(0, count - 1, min(count, most)).round().astype(int)
    return [int(place) for place in np.unique(places)]


def cell_runs(
    exact: ArrayLike = (), above: ArrayLike = (), below: ArrayLike = (), spacing: ArrayLike = 0.0
) -> CellRuns:
    """Return the logarithms of the steps or seconds that one cell's runs took, and of the bounds of
    its censored runs.

    `spacing` is the distance between the evaluations around each exact value, in the unit of the
    value; NaN where it is not known.
    """
    known, most, least = (np.log(np.asarray(values, float)) for values in (exact, above, below))
    apart = np.nan_to_num(np.broadcast_to(np.asarray(spacing, float), known.shape) / np.exp(known))
    return CellRuns(known, most, least, float(np.mean(apart**2)) / 12 if len(apart) else 0.0)


def mean_log(runs: CellRuns, sigma: float) -> float:
    """Return the most likely mean of the log steps or log seconds of a cell's runs, given the
    standard deviation between runs.

    Censored runs count by their bounds. The result is NaN where only bounds are known.
    """
    if not len(runs.exact):
        return float("nan")
    if not runs.is_censored:
        return float(runs.exact.mean())

    def slope(mean: float) -> float:
        """Return `sigma` times the derivative of the runs' log likelihood with respect to their
        mean. It is 0 at the most likely mean.
        """
        total = float(np.sum(runs.exact - mean)) / sigma
        for bounds, sign in ((runs.above, 1), (runs.below, -1)):
            away = sign * (mean - bounds) / sigma
            total += sign * float(np.sum(np.exp(-0.5 * (away**2 + _LOG_2PI) - log_ndtr(away))))
        return total

    from scipy.optimize import brentq  # whose import takes long, and few predictions need it

    every = np.concatenate([runs.exact, runs.above, runs.below])
    reach = sigma * (1 + len(every))
    return float(brentq(slope, every.min() - reach, every.max() + reach))


def log_likelihood(
    cells: Measurements, model: Array, sigma: Array, tau: Array, least: Array | float = -np.inf
) -> Array:
    """Return the log likelihood of all runs of several cells, one value for each draw of the
    model's parameters, of shape (draws,).

    Args:
        cells: The cells and their runs.
        model: Logarithms by the model, of shape (draws, cells).
        sigma: Standard deviation of the noise, of shape (draws,).
        tau: Standard deviation of the effect, of shape (draws,) or (draws, cells).
        least: The log likelihoods that matter, of shape (draws,). The result is -inf for a draw
            that lies below its own by more than `_SLACK`.
    """
    spread = np.broadcast_to(tau if tau.ndim == 2 else tau[:, None], model.shape)
    total = np.asarray(_of_exact(cells, model, sigma[:, None], spread).sum(axis=1))
    for number in cells.censored:
        # Censored runs can only lower the sum, by logarithms of probabilities.
        rows = np.flatnonzero(total >= least - _SLACK)
        cell, expected, noise = cells.runs[number], model[rows, number], sigma[rows]
        mean, deviation = _effect(cells, number, expected, noise, spread[rows, number])
        if len(cell.above) + len(cell.below) == 1:
            total[rows] += log_ndtr(_away(cell, expected + mean, np.hypot(noise, deviation)))
        else:
            _, logs = _around_mode(cell, expected, noise, mean, deviation, _FEW)
            total[rows] += logsumexp(logs, axis=1)
    return np.where(total < least - _SLACK, -np.inf, total)


def draw_effects(
    cells: Measurements, model: Array, sigma: Array, tau: Array, rng: np.random.Generator
) -> Array:
    """Draw each cell's effect (its deviation from the model) at random, given the cell's runs: one
    effect for each draw of the model's parameters.

    The shape is (draws, cells).
    """
    tau = np.broadcast_to(tau if tau.ndim == 2 else tau[:, None], model.shape)
    drawn = []
    for number, cell in enumerate(cells.runs):
        expected, few = model[:, number], len(cell.above) + len(cell.below)
        mean, deviation = _effect(cells, number, expected, sigma, tau[:, number])
        if few > 1:
            drawn.append(_drawn_around_mode(cell, expected, sigma, mean, deviation, rng))
            continue
        if few:
            # The censored value is drawn from its truncated normal; the effect follows from it.
            whole = np.hypot(sigma, deviation)
            most = log_ndtr(_away(cell, expected + mean, whole))
            sign = 1 if len(cell.above) else -1
            value = -sign * ndtri_exp(np.log(rng.random(len(most))) + most)
            mean, deviation = (
                mean + deviation**2 / whole * value, deviation * sigma / whole
            )  # fmt: skip
        drawn.append(mean + deviation * rng.standard_normal(len(model)))
    return np.stack(drawn, axis=1)


def _away(cell: CellRuns, expected: Array, scale: Array) -> Array:
    """Return by how many standard deviations the expected value of a cell's only censored run lies
    on the side of its bound on which the value is.
    """
    bound = cell.above if len(cell.above) else cell.below
    return np.asarray((1 if len(cell.above) else -1) * (expected - bound[0]) / scale)


def _around_mode(
    cell: CellRuns, model: Array, sigma: Array, mean: Array, deviation: Array,
    nodes: tuple[Array, Array],
) -> tuple[Array, Array]:  # fmt: skip
    """Return values of a cell's effect on both sides of its mode, and the logarithms of their
    densities times their weights for an integral, of shape (draws, nodes).

    The density is that of the effect given the uncensored runs, times the probability of the
    censored runs.
    """
    effect = mean
    for _ in range(_NEWTON_STEPS):
        slope, bend = (mean - effect) / deviation**2, -1 / deviation**2
        for bounds, sign in ((cell.above, 1), (cell.below, -1)):
            known = {}  # Runs that trained equally long have equal bounds.
            for bound in bounds:
                if bound not in known:
                    away = sign * (model + effect - bound) / sigma
                    ratio = np.exp(-0.5 * (away**2 + _LOG_2PI) - log_ndtr(away))
                    known[bound] = sign * ratio / sigma, ratio * (away + ratio) / sigma**2
                slope, bend = slope + known[bound][0], bend - known[bound][1]
        effect = effect - slope / bend
    reach = (_REACH * deviation)[:, None]
    effects = effect[:, None] + reach * nodes[0]
    away = (effects - mean[:, None]) / deviation[:, None]
    logs = _of_censored(cell, model, effects, sigma) - 0.5 * (away**2 + _LOG_2PI)
    return effects, logs + nodes[1] + np.log(_REACH)


def _drawn_around_mode(
    cell: CellRuns, model: Array, sigma: Array, mean: Array, deviation: Array,
    rng: np.random.Generator,
) -> Array:  # fmt: skip
    """Draw the effect of a cell with several censored runs, by its distribution function."""
    effects, logs = _around_mode(cell, model, sigma, mean, deviation, _MANY)
    sums = np.cumsum(np.exp(logs - logs.max(axis=1, keepdims=True)), axis=1)
    place = (sums < (rng.random(len(model)) * sums[:, -1])[:, None]).sum(axis=1)
    # A node stands for the values that are nearer to it than to the others.
    ends = np.concatenate(
        [effects[:, :1], (effects[:, 1:] + effects[:, :-1]) / 2, effects[:, -1:]], 1
    )
    rows = np.arange(len(model))
    low, high = ends[rows, place], ends[rows, place + 1]
    return np.asarray(low + rng.random(len(model)) * (high - low))


def _of_exact(cells: Measurements, model: Array, sigma: Array, tau: Array) -> Array:
    """Return the log likelihood of each cell's uncensored runs for each draw of the model's
    parameters, of shape (draws, cells).

    Each run is normal with variance sigma^2 plus its resolution, divided by its weight. Any two
    runs of a cell have covariance tau^2.
    """
    n, variance = cells.count, sigma**2 + cells.resolution
    whole = variance + cells.weight * tau**2
    misses = cells.weight * (cells.mean - model) ** 2 / whole + cells.within / variance
    logs = (n - 1) * np.log(variance) + np.log(whole) + misses + n * _LOG_2PI
    return np.where(n > 0, -0.5 * logs, 0.0)


def _effect(
    cells: Measurements, number: int, model: Array, sigma: Array, tau: Array
) -> tuple[Array, Array]:
    """Return the mean and the standard deviation of a cell's effect (its deviation from the model),
    given the cell's uncensored runs.
    """
    weight, variance = cells.weight[number], sigma**2 + cells.resolution[number]
    whole = variance + weight * tau**2
    mean = tau**2 * weight * (cells.mean[number] - model) / whole
    return mean, tau * np.sqrt(variance / whole)


def _of_censored(cell: CellRuns, model: Array, effects: Array, sigma: Array) -> Array:
    """Return the log probability of a cell's censored runs at each candidate value of the cell's
    effect (its deviation from the model), of shape (draws, effects).
    """
    expected, scale = model[:, None] + effects, sigma[:, None]
    logs: NDArray[np.float64] = np.zeros(effects.shape)
    for bounds, sign in ((cell.above, 1), (cell.below, -1)):
        for bound, count in zip(*np.unique(bounds, return_counts=True), strict=True):
            logs += count * log_ndtr(sign * (expected - bound) / scale)
    return logs
