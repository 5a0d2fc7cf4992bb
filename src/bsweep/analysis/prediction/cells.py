"""The likelihood of y, the steps or seconds that runs took: log y = model + effect of the cell +
noise of the run.

The effect is normal with standard deviation tau. It is what the model misses at a cell, and all
runs of the cell share it. The noise is normal with standard deviation sigma, and differs between
runs. So the prediction for a measured cell depends on the model *and* on the cell's own runs, and a
model that fits badly widens the intervals.

Some runs are censored: they tell only that log y is above or below a bound. Such a run enters the
likelihood by the probability of that event (Tobin, 1958), given the effect; the effect is
integrated out.

A value that was interpolated between two evaluations is known to within their distance d. This adds
d^2 / 12, the variance of a uniform error, to the noise of the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, logsumexp

from bsweep.analysis.prediction.sampler import Array

_NODES, _LOG_WEIGHTS = np.polynomial.hermite_e.hermegauss(11)
_LOG_2PI = float(np.log(2 * np.pi))
_LOG_WEIGHTS = np.log(_LOG_WEIGHTS) - 0.5 * _LOG_2PI
# Number of candidates for the effect of a cell with censored runs; one of them is drawn.
_CANDIDATES = 64


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
class Cells:
    """The logarithms of values that were measured in several cells, with the count and the mean of
    each cell's uncensored values.

    The values are the steps of runs to the target, or the seconds of steps, passes or exchanges.
    `count` is the number of a cell's exact values, `mean` is the mean of their logarithms, `within`
    is the sum of squared deviations from that mean, and `resolution` is that of `CellRuns`.
    """

    runs: tuple[CellRuns, ...]
    count: Array
    mean: Array
    within: Array
    resolution: Array


def cells_of(runs: Iterable[CellRuns]) -> Cells:
    known = tuple(runs)
    count = np.array([len(cell.exact) for cell in known], float)
    mean = np.array([cell.exact.mean() if len(cell.exact) else 0.0 for cell in known])
    within = np.array(
        [np.sum((cell.exact - center) ** 2) for cell, center in zip(known, mean, strict=True)]
    )
    return Cells(known, count, mean, within, np.array([cell.resolution for cell in known]))


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

    def slope(mean: float) -> float:
        """Return `sigma` times the derivative of the runs' log likelihood with respect to their
        mean. It is 0 at the most likely mean.
        """
        total = float(np.sum(runs.exact - mean)) / sigma
        for bounds, sign in ((runs.above, 1), (runs.below, -1)):
            away = sign * (mean - bounds) / sigma
            total += sign * float(np.sum(np.exp(-0.5 * (away**2 + _LOG_2PI) - log_ndtr(away))))
        return total

    every = np.concatenate([runs.exact, runs.above, runs.below])
    reach = sigma * (1 + len(every))
    return float(brentq(slope, every.min() - reach, every.max() + reach))


def log_likelihood(cells: Cells, model: Array, sigma: Array, tau: Array) -> Array:
    """Return the log likelihood of all runs of several cells, one value for each draw of the
    model's parameters, of shape (draws,).

    Args:
        cells: The cells and their runs.
        model: Logarithms by the model, of shape (draws, cells).
        sigma: Standard deviation of the noise, of shape (draws,).
        tau: Standard deviation of the effect, of shape (draws,) or (draws, cells).
    """
    spread = np.broadcast_to(tau if tau.ndim == 2 else tau[:, None], model.shape)
    total = _of_exact(cells, model, sigma[:, None], spread).sum(axis=1)
    for number, cell in enumerate(cells.runs):
        if cell.is_censored:
            mean, deviation = _effect(cell, model[:, number], sigma, spread[:, number])
            effects = mean[:, None] + deviation[:, None] * _NODES
            logs = _of_censored(cell, model[:, number], effects, sigma) + _LOG_WEIGHTS
            total += logsumexp(logs, axis=1)
    return np.asarray(total)


def draw_effects(
    cells: Cells, model: Array, sigma: Array, tau: Array, rng: np.random.Generator
) -> Array:
    """Draw each cell's effect (its deviation from the model) at random, given the cell's runs: one
    effect for each draw of the model's parameters.

    The shape is (draws, cells).
    """
    tau = np.broadcast_to(tau if tau.ndim == 2 else tau[:, None], model.shape)
    drawn = []
    for cell, expected, spread in zip(cells.runs, model.T, tau.T, strict=True):
        mean, deviation = _effect(cell, expected, sigma, spread)
        count = _CANDIDATES if cell.is_censored else 1
        candidates = mean[:, None] + deviation[:, None] * rng.standard_normal((len(model), count))
        logs = _of_censored(cell, expected, candidates, sigma) + rng.gumbel(size=candidates.shape)
        drawn.append(candidates[np.arange(len(model)), logs.argmax(axis=1)])
    return np.stack(drawn, axis=1)


def _of_exact(cells: Cells, model: Array, sigma: Array, tau: Array) -> Array:
    """Return the log likelihood of each cell's uncensored runs for each draw of the model's
    parameters, of shape (draws, cells).

    Each run is normal with variance sigma^2 plus its resolution. Any two runs of a cell have
    covariance tau^2.
    """
    n, own = cells.count, sigma**2 + cells.resolution
    of_mean = own + n * tau**2
    misses = n * (cells.mean - model) ** 2 / of_mean + cells.within / own
    return np.where(
        n > 0, -0.5 * ((n - 1) * np.log(own) + np.log(of_mean) + misses + n * _LOG_2PI), 0.0
    )


def _effect(cell: CellRuns, model: Array, sigma: Array, tau: Array) -> tuple[Array, Array]:
    """Return the mean and the standard deviation of a cell's effect (its deviation from the model),
    given the cell's uncensored runs.
    """
    n = len(cell.exact)
    total = float(cell.exact.sum())
    own = sigma**2 + cell.resolution
    of_mean = own + n * tau**2
    return tau**2 * (total - n * model) / of_mean, tau * np.sqrt(own / of_mean)


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
