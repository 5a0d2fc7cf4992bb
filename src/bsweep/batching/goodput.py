"""The policy that seeks the batch with the greatest predicted goodput: examples per second times
training progress per example (Pollux, OSDI 2021).

It keeps the present batch if no other one raises the goodput by 5 % or more. The seconds of a step
follow Pollux's formula, fitted to the batches that the run has timed. Where these do not determine
a parameter, the median of its prior in `bsweep.config.pollux` applies, so that a first decision is
possible. The next batch is at most twice as large as the largest timed batch, and
at least half as large as the smallest timed one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import least_squares

from bsweep.batching.base import Decision, Measuring, RoundStats
from bsweep.config import pollux
from bsweep.config.run import RunConfig
from bsweep.data.plan import Share
from bsweep.numerics.noise_scale import GradientNoise

Array = NDArray[np.float64]

LEAST_GAIN = 1.05
"""The least factor by which another batch must raise the goodput before the policy changes to it.
"""

# The batches that are compared, in half doublings of the configured batch.
_HALF_DOUBLINGS = range(-8, 9)
# The most steps in a median. A median of all steps of an epoch, at each decision, would take longer
# and longer.
_MOST_TIMED = 1000


Steps = Sequence[Sequence[Share]]
"""Each worker's share of each of several steps."""


def _fit(steps: Steps, seconds: Array) -> Callable[[Steps], Array]:
    """Return a function that predicts the seconds of steps, by Pollux's formula fitted to steps
    that took `seconds`.
    """
    timed = _passes(steps)
    batches, numbers = timed
    largest = batches.argmax(axis=0, keepdims=True)
    prior = pollux.Prior.from_passes(
        seconds / np.take_along_axis(numbers, largest, axis=0), batches.max(axis=0)
    )

    def seconds_at(point: Array, passes: Array) -> Array:
        one_pass = prior.fixed_seconds(point[0]) + prior.example_seconds(point[1]) * passes[0]
        sync = prior.sync_seconds(point[2]) * (len(batches) > 1)
        step = pollux.step_seconds(one_pass, sync, prior.overlap(point[3]), passes[1])
        return np.asarray(step.max(axis=0))

    def residuals(point: Array) -> Array:
        misses = np.log(seconds_at(point, timed)) - np.log(seconds)
        return np.concatenate([misses / pollux.SPREAD, point])

    fitted = least_squares(residuals, np.zeros(4)).x
    return lambda others: seconds_at(fitted, _passes(others))


def _passes(steps: Steps) -> Array:
    """Return the mean number of examples in one pass of each worker, and the number of the passes
    of its step, (2, workers, steps).
    """
    return np.array(
        [
            [(share.worker_batch / share.num_passes, share.num_passes) for share in shares]
            for shares in steps
        ]
    ).T


class Goodput(Measuring):
    kept = (*Measuring.kept, "timings", "num_alike")

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        # The latest median seconds of a step, by global batch.
        self.timings: dict[int, float] = {}
        self.num_alike = 0  # steps with the present batch

    def decide(self, stats: RoundStats) -> Decision | None:
        self.num_alike += 1
        decision = super().decide(stats)
        if decision is not None:
            self.num_alike = 0
        return decision

    def look(self, stats: RoundStats, noise: GradientNoise) -> Decision | None:
        recent = self._recent(stats)
        if not recent:
            return None
        median = torch.tensor([statistics.median(recent)], dtype=torch.float64)
        present, scale = self.global_batch, noise.noise_scale
        self.timings[present] = float(stats.gather(median).mean())
        if scale is None:
            return None
        timed, candidates = sorted(self.timings), [*self._candidates(stats.num_train)]
        predict = _fit(
            [*map(self.of_global_batch, timed)], np.array([self.timings[batch] for batch in timed])
        )
        predicted = predict([*map(self.of_global_batch, candidates)])
        seconds = dict(zip(candidates, predicted.tolist(), strict=True))
        goodputs = {
            batch: batch / seconds[batch] * pollux.efficiency(scale, batch, self.configured)
            for batch in seconds
        }
        best = max(goodputs, key=goodputs.__getitem__)
        if goodputs[best] < LEAST_GAIN * goodputs[present]:
            best = present
        # Processors may round differently, so all workers use the first worker's answer.
        best = int(stats.gather(torch.tensor([best], dtype=torch.float64))[0, 0])
        if best == present:
            return None
        inputs = {
            "noise_scale": scale,
            "step_seconds": self.timings[present],
            "expected_step_seconds": seconds[best],
            "gain": goodputs[best] / goodputs[present],
        }
        took = f"a step takes {self.timings[present]:.3g} s"
        return Decision(best, inputs, f"{took} and the noise scale is {scale:.4g} examples")

    def _recent(self, stats: RoundStats) -> Sequence[float]:
        """Return the seconds of the latest steps in this epoch that took the present global batch,
        at most 1000 of them.

        The first step with that batch is left out, and so is the last step of the epoch, which may
        have fewer examples.
        """
        seconds = stats.step_seconds()
        first = max(0, len(seconds) - self.num_alike + 1, len(seconds) - _MOST_TIMED)
        return seconds[first : len(seconds) - stats.ends_epoch]

    def _candidates(self, num_train: int) -> set[int]:
        """Return the global batches to compare, among which is the present one."""
        least, most = self.card.bounds(self.config)
        least = max(least, min(self.timings) // 2)
        most = min(most, num_train, 2 * max(self.timings))
        batches = (
            round(self.in_whole_passes(self.configured * 2 ** (half / 2)))
            for half in _HALF_DOUBLINGS
        )
        return {self.global_batch, *(batch for batch in batches if least <= batch <= most)}
