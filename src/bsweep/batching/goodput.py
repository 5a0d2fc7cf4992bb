"""The policy that seeks the batch with the greatest predicted goodput: examples per second times
training progress per example (Pollux, OSDI 2021).

It keeps the present batch if no other one raises the goodput by 5 % or more. The seconds of a step
follow Pollux's formula, fitted to the batches that the run has timed. Where these do not determine
a parameter, the medians of the priors of `bsweep.analysis.prediction.step_time` apply, so that a
first decision is possible. The next batch is at most twice as large as the largest timed batch, and
at least half as large as the smallest timed one.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy.optimize import least_squares
from scipy.special import ndtr

from bsweep.batching.base import RoundStats
from bsweep.batching.changing import Decision, Measuring
from bsweep.config.batching import GoodputConfig
from bsweep.config.run import RunConfig
from bsweep.core import pollux
from bsweep.data.plan import Share
from bsweep.numerics.noise_scale import GradientNoise

LEAST_GAIN = 1.05
"""The least factor by which another batch must raise the goodput before the policy changes to it.
"""

_FACTOR, _SPREAD = 10.0, 0.05  # scale of a prior; relative deviation of a timing from the formula
# The batches that are compared, in half doublings of the configured batch.
_HALF_DOUBLINGS = range(-8, 9)
# The most steps in a median. A median of all steps of an epoch, at each decision, would take longer
# and longer.
_MOST_TIMED = 1000


class StepTime:
    """A prediction of the seconds of a step at any batch, by Pollux's formula fitted to timed
    steps.
    """

    def __init__(self, timings: Sequence[tuple[Sequence[Share], float]]) -> None:
        self._exchanges = len(timings[0][0]) > 1
        shares = [max(of, key=_pass_batch) for of, _ in timings]
        self._typical = statistics.median(
            seconds / of.num_passes for of, (_, seconds) in zip(shares, timings, strict=True)
        )
        self._middle = statistics.geometric_mean(map(_pass_batch, shares))
        self._point = np.zeros(4)
        logs = np.log([seconds for _, seconds in timings])

        def residuals(point: Any) -> Any:
            modelled = np.log([self._seconds_at(point, of) for of, _ in timings])
            return np.concatenate([(modelled - logs) / _SPREAD, point])

        self._point = least_squares(residuals, self._point).x

    def seconds(self, shares: Sequence[Share]) -> float:
        """Return the predicted seconds of a step, given each worker's share: its examples and its
        number of passes.
        """
        return self._seconds_at(self._point, shares)

    def _seconds_at(self, point: Any, shares: Sequence[Share]) -> float:
        fixed = self._typical / 2 * _FACTOR ** point[0]
        each = self._typical / 2 / self._middle * _FACTOR ** point[1]
        sync = self._typical / 10 * _FACTOR ** point[2] * self._exchanges
        overlap = 10 ** ndtr(point[3])
        passes = ((fixed + each * _pass_batch(one), one.num_passes) for one in shares)
        return max(
            float(pollux.step_seconds(seconds, sync, overlap, number)) for seconds, number in passes
        )


def _pass_batch(share: Share) -> float:
    """Return the mean number of examples in one pass of a worker: the examples of the worker's step
    divided by the number of its passes.
    """
    return share.worker_batch / share.num_passes


class Goodput(Measuring[GoodputConfig]):
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
        mine = torch.tensor([statistics.median(recent)], dtype=torch.float64)
        self.timings[self.global_batch] = float(stats.gather(mine).mean())
        scale = noise.noise_scale
        if scale is None:
            return None
        time = StepTime(
            [
                (self.of_global_batch(batch), seconds)
                for batch, seconds in sorted(self.timings.items())
            ]
        )
        goodputs = {
            batch: self._goodput(batch, scale, time) for batch in self._candidates(stats.num_train)
        }
        here = goodputs[self.global_batch]
        best = max(goodputs, key=lambda batch: goodputs[batch])
        if goodputs[best] < LEAST_GAIN * here:
            best = self.global_batch
        # Processors may round differently, so all workers use the first worker's answer.
        best = int(stats.gather(torch.tensor([best], dtype=torch.float64))[0, 0])
        if best == self.global_batch:
            return None
        return self._decision(best, scale, time, goodputs[best] / here)

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
        least, most = self.card.bounds(self.config)
        least, most = (
            max(least, min(self.timings) // 2),
            min(most, num_train, 2 * max(self.timings)),
        )
        found = (
            self.in_whole_passes(self.configured * 2 ** (half / 2)) for half in _HALF_DOUBLINGS
        )
        return {
            self.global_batch,
            *(round(batch) for batch in found if least <= round(batch) <= most),
        }

    def _goodput(self, batch: int, noise_scale: float, time: StepTime) -> float:
        """Return a batch's predicted goodput: examples per second times training progress per
        example.

        The progress per example is relative to that at the configured batch.
        """
        useful = pollux.efficiency(noise_scale, batch, self.configured)
        return batch / time.seconds(self.of_global_batch(batch)) * useful

    def _decision(self, best: int, noise_scale: float, time: StepTime, gain: float) -> Decision:
        inputs: Mapping[str, float] = {
            "noise_scale": noise_scale,
            "step_seconds": self.timings[self.global_batch],
            "expected_step_seconds": time.seconds(self.of_global_batch(best)),
            "gain": gain,
        }
        reason = (
            f"a step takes {inputs['step_seconds']:.3g} s and the noise scale is {noise_scale:.4g} "
            "examples"
        )
        return Decision(best, inputs, reason)
