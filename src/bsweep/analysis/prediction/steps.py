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
- what the law misses of log S smoothly over batches: 0.1, factor 3. It is a Gaussian process over
  log batch, whose correlation falls to 0.6 at a distance of two doublings. So the runs of a batch
  size also correct the predictions for its neighbours;
- what the law misses of log S at a batch size alone: 0.03, factor 2. Beyond the batches of the
  runs, each doubling adds as much variance of both again, so that intervals widen with the
  distance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from bsweep.analysis.prediction import cells
from bsweep.analysis.prediction.cells import CellRuns
from bsweep.analysis.prediction.sampler import NUM_DRAWS, Array

_LEVEL_FACTOR = 10.0
CRITICAL_FACTOR = 10.0  # one standard deviation of the critical batch, without an estimate
_SCATTER, _MISSED, _SPREAD_FACTOR = 0.08, 0.03, 2.0
_SMOOTH, _SMOOTH_FACTOR = 0.1, 3.0
_LENGTH, _REACH = 2.0, 2.0  # of the Gaussian process, and beyond the batches of runs, in doublings
_NUM_WAVES = 3  # functions of log batch that make up the process


@dataclass(frozen=True)
class Known:
    """A log-normal prior for the critical batch size: its median, and the factor that is one
    standard deviation on the log scale.
    """

    critical_batch: float
    factor: float


@dataclass(frozen=True, eq=False)
class StepsFit:
    """Posterior draws of the parameters of S(B) = S_min + E_min / B, the law of the steps to a
    target at global batch B.

    `minimum_steps`, `minimum_examples`, `sigma`, `tau` and `smooth` are by draw, `effects` by draw
    and batch. `smooth` is the standard deviation of the smooth misfit, and `waves`, by draw and
    function, are the amounts of the functions of log batch that make it up.
    """

    batches: tuple[float, ...]
    minimum_steps: Array
    minimum_examples: Array
    sigma: Array
    tau: Array
    smooth: Array
    waves: Array
    effects: Array
    seed: int = 0

    @property
    def critical_batch(self) -> Array:
        return self.minimum_examples / self.minimum_steps

    @property
    def missed(self) -> float:
        """The part of the steps by which the law misses a run: by scatter between seeds, at a batch
        size alone, and smoothly over three batch sizes or more.
        """
        parts = [float(np.median(self.sigma)), float(np.median(self.tau))]
        if len(self.batches) > 2:
            # The law that is nearest to the predictions; waves may imitate another law.
            steps = np.exp([np.median(self.log_steps(batch)) for batch in self.batches])
            law = np.stack([1 / steps, 1 / (steps * np.asarray(self.batches))], axis=1)
            parts.append(nnls(law, np.ones(len(steps)))[1] / np.sqrt(len(steps)))
        return float(np.linalg.norm(parts))

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
        smooth = self.curve(batch) + self.waves @ _waves([batch], self.batches)[:, 0]
        if batch in self.batches:
            return np.asarray(smooth + self.effects[:, self.batches.index(batch)])
        beyond = _beyond([batch], self.batches)
        # The seed depends on the batch alone: all worker counts share one effect.
        rng = np.random.default_rng([self.seed, round(1e3 * batch)])
        return np.asarray(
            smooth + self.tau * np.sqrt(1 + beyond) * rng.standard_normal(len(self.tau))
        )


def fit_steps(
    runs: Mapping[float, CellRuns],
    known: Known | None = None,
    num_draws: int = NUM_DRAWS,
    seed: int = 0,
) -> StepsFit:
    """Fit the law S(B) = S_min + E_min / B to the steps that runs with global batch B took to the
    target.

    At least one run must have reached the target, or have an upper bound of its steps.
    """
    batches, of_batches = tuple(sorted(runs)), cells.cells_of(runs[batch] for batch in sorted(runs))
    levels = np.concatenate([np.concatenate([of.exact, of.below]) for of in of_batches.runs])
    assert len(levels), "no run reached the target"
    middle = float(np.exp(np.mean(np.log(batches))))
    prior = known or Known(middle, CRITICAL_FACTOR)
    inverse, waves_at = 1 / np.asarray(batches), _waves(batches, batches)

    def parameters(points: Array) -> tuple[Array, ...]:
        level = np.median(levels) + np.log(_LEVEL_FACTOR) * points[:, 0]
        critical = np.exp(np.log(prior.critical_batch) + np.log(prior.factor) * points[:, 1])
        smooth = _SMOOTH * _SMOOTH_FACTOR ** points[:, 4]
        return (
            level - np.log1p(critical / middle), critical,
            _SCATTER * _SPREAD_FACTOR ** points[:, 2], _MISSED * _SPREAD_FACTOR ** points[:, 3],
            smooth, smooth[:, None] * points[:, 5:],
        )  # fmt: skip

    def model(log_minimum: Array, critical: Array, waves: Array) -> Array:
        law = log_minimum[:, None] + np.log1p(critical[:, None] * inverse)
        return np.asarray(law + waves @ waves_at)

    def expected(points: Array, places: Sequence[int]) -> tuple[Array, Array, Array]:
        log_minimum, critical, sigma, tau, _, waves = parameters(points)
        return model(log_minimum, critical, waves)[:, places], sigma, tau

    of_batches, points = cells.fitted(of_batches, expected, 5 + _NUM_WAVES, num_draws, seed)
    log_minimum, critical, sigma, tau, smooth, waves = parameters(points)
    rng = np.random.default_rng([seed, 1])
    effects = cells.draw_effects(of_batches, model(log_minimum, critical, waves), sigma, tau, rng)
    minimum = np.exp(log_minimum)
    return StepsFit(batches, minimum, minimum * critical, sigma, tau, smooth, waves, effects, seed)


def _waves(batches: Sequence[float], run: Sequence[float]) -> Array:
    """Return the values at some batch sizes of the functions that make up a Gaussian process over
    log batch with variance 1, of shape (functions, batches).

    They are those that contribute most to the process from two doublings below the batches that
    were run to two above (Karhunen and Loeve; the values between are by Nystroem). Beyond the
    batches that were run, each doubling adds as much variance again.
    """
    places = np.linspace(np.log2(min(run)) - _REACH, np.log2(max(run)) + _REACH, 25)

    def correlation(logs: Array) -> Array:
        return np.asarray(np.exp(-0.5 * ((logs[:, None] - places) / _LENGTH) ** 2))

    sizes, vectors = np.linalg.eigh(correlation(places))
    sizes, vectors = sizes[-_NUM_WAVES:], vectors[:, -_NUM_WAVES:]
    # An eigenvector's sign is arbitrary: it is made the same on all machines.
    vectors = vectors * np.where(vectors[0] < 0, -1, 1)
    values = correlation(np.log2(np.asarray(batches, float))) @ vectors / np.sqrt(sizes)
    return np.asarray(values.T * np.sqrt(1 + _beyond(batches, run)))


def _beyond(batches: Sequence[float], run: Sequence[float]) -> Array:
    """Return by how many doublings batch sizes lie above all that were run, or below; 0 for those
    between them.
    """
    logs, known = np.log2(np.asarray(batches, float)), np.log2(np.asarray(run, float))
    return np.asarray(np.maximum(0.0, np.maximum(logs - known.max(), known.min() - logs)))
