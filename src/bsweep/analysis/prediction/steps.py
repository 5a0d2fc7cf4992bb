"""The fit of the law S(B) = S_min + E_min / B to the steps that runs with global batch B take to a
target.

S_min is the limit of steps at large batches, and E_min the limit of examples at small ones. Runs
that did not reach the target count by a bound. The law is from McCandlish et al. (arXiv 1812.06162)
and Shallue et al. (JMLR 20:112). It holds for learning rates that suit each batch size, tuned or by
a rule within its range. All priors are weak. They are given as a median and a factor for one
standard deviation:

- S at the geometric mean B0 of the batches: the median of what was measured, factor 10;
- critical batch E_min / S_min: B0, factor 10; in a search, the geometric mean of the grid's
  batches, factor 10. If another measurement of it counts, that value and its factor, which is 3 or
  more;
- scatter of log S between seeds: 0.08, factor 2;
- what the law misses of log S at a batch size: 0.05, factor 2. Beyond the batches of the runs, each
  doubling adds as much variance again, so that intervals widen with the distance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bsweep.analysis.prediction import likelihood
from bsweep.analysis.prediction.likelihood import CellRuns, Weights
from bsweep.analysis.prediction.sampler import NUM_DRAWS, Array

_LEVEL_FACTOR = 10.0
CRITICAL_FACTOR = 10.0  # one standard deviation of the critical batch, without an estimate
SCATTER = 0.08  # of log steps between runs
_MISSED, _SPREAD_FACTOR = 0.05, 2.0


@dataclass(frozen=True)
class CriticalBatchPrior:
    """A log-normal prior for the critical batch size: its median, and the factor that is one
    standard deviation on the log scale.
    """

    critical_batch: float
    factor: float


@dataclass(frozen=True, eq=False)
class StepsFit:
    """Posterior draws of the parameters of S(B) = S_min + E_min / B, the law of the steps to a
    target at global batch B.

    `minimum_steps`, `minimum_examples`, `sigma` and `tau` are by draw, `effects` by draw and batch.
    """

    batches: tuple[float, ...]
    minimum_steps: Array
    minimum_examples: Array
    sigma: Array
    tau: Array
    effects: Array
    weights: Weights  # of the runs, by batch
    seed: int = 0

    @property
    def critical_batch(self) -> Array:
        return self.minimum_examples / self.minimum_steps

    def curve(self, batch: float) -> Array:
        """Return the logarithm of the steps to the target by the law S_min + E_min / B alone, one
        value for each posterior draw. The deviations of batch sizes from the law are left out.
        """
        return np.asarray(np.log(self.minimum_steps + self.minimum_examples / batch))

    def log_steps(self, batch: float) -> Array:
        """Return the logarithm of the predicted steps to the target at a batch size, one value for
        each posterior draw.

        It includes what the formula misses at the batch size, but not the scatter of single runs.
        """
        if batch in self.batches:
            return self.curve(batch) + self.effects[:, self.batches.index(batch)]
        beyond = likelihood.doublings_beyond(batch, self.batches)
        # The seed depends on the batch alone: all worker counts share one effect.
        seeds = self.seed, round(1e3 * batch)
        return self.curve(batch) + likelihood.effect_beyond(self.tau, beyond, seeds)


def fit_steps(
    runs: Mapping[float, CellRuns],
    known: CriticalBatchPrior | None = None,
    num_draws: int = NUM_DRAWS,
    seed: int = 0,
    *,
    weights: Weights | None = None,
) -> StepsFit:
    """Fit the law S(B) = S_min + E_min / B to the steps that runs with global batch B took to the
    target.

    At least one run must have reached the target, or have an upper bound of its steps. With the
    `weights` of another fit to these runs and others, none are estimated, which halves the time.
    """
    runs = dict(sorted(runs.items()))
    batches = tuple(runs)
    levels = np.concatenate([np.concatenate([cell.exact, cell.below]) for cell in runs.values()])
    assert len(levels), "no run reached the target"
    middle = float(np.exp(np.mean(np.log(batches))))
    prior = known or CriticalBatchPrior(middle, CRITICAL_FACTOR)
    inverse = 1 / np.asarray(batches)

    def parameters(points: Array) -> tuple[Array, Array, Array, Array]:
        level = np.median(levels) + np.log(_LEVEL_FACTOR) * points[:, 0]
        critical = np.exp(np.log(prior.critical_batch) + np.log(prior.factor) * points[:, 1])
        sigma = SCATTER * _SPREAD_FACTOR ** points[:, 2]
        return (
            level - np.log1p(critical / middle),
            critical,
            sigma,
            _MISSED * _SPREAD_FACTOR ** points[:, 3],
        )

    def expected(points: Array, places: Sequence[int]) -> tuple[Array, Array, Array]:
        log_minimum, critical, sigma, tau = parameters(points)
        model = log_minimum[:, None] + np.log1p(critical[:, None] * inverse)
        return model[:, places], sigma, tau

    points, effects, weights = likelihood.fitted(
        runs, expected, 4, num_draws, (seed, 1), weights=weights
    )
    log_minimum, critical, sigma, tau = parameters(points)
    minimum = np.exp(log_minimum)
    return StepsFit(batches, minimum, minimum * critical, sigma, tau, effects, weights, seed)
