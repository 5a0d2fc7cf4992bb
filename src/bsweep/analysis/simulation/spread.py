"""Differences between the seconds of single steps of one worker, and random steps that differ as
much.

Measured steps are drawn in stretches of steps that followed one another, so that slow steps come
together as they did. A run's records have means of several steps, and its epochs have the median
and the 95th percentile of all. So steps within a mean differ as these say, log-normally.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from bsweep.analysis.simulation.network import Array

P95 = 1.645  # standard deviations from the median to the 95th percentile
_STRETCH = 20  # steps of a stretch, if not measured
_FEWEST = 20  # measured steps from which others are drawn
_MOST_SPREAD = 1.0  # of logarithms: few disturbed steps must not make all steps wild


@dataclass(frozen=True)
class Spread:
    """The relative seconds of steps, whose mean is 1.

    `fast` and `slow` are standard deviations of logarithms, between steps and between stretches of
    `stretch` steps. Instead of the latter there may be `measured` values, each a mean of
    `steps_each` steps, of which stretches are drawn.
    """

    fast: float = 0.0
    slow: float = 0.0
    stretch: int = _STRETCH
    measured: Array = field(default_factory=lambda: np.empty(0))
    steps_each: int = 1

    def draw(self, num_steps: int, num_workers: int, rng: np.random.Generator) -> Array:
        """Return the relative seconds of steps, shape (steps, workers). Workers are independent."""
        count = -(-num_steps // self.stretch)  # stretches, rounded up
        steps = np.exp(self.fast * rng.standard_normal((num_steps, num_workers)) - self.fast**2 / 2)
        if len(self.measured):
            values = -(-self.stretch // self.steps_each)
            begin = rng.integers(0, len(self.measured), (count, 1, num_workers))
            places = (begin + np.arange(values)[:, None]) % len(self.measured)
            slow = np.repeat(self.measured[places], self.steps_each, axis=1)[:, : self.stretch]
            steps *= slow.reshape(-1, num_workers)[:num_steps]
        elif self.slow:
            logs = self.slow * rng.standard_normal((count, num_workers)) - self.slow**2 / 2
            steps *= np.repeat(np.exp(logs), self.stretch, axis=0)[:num_steps]
        return np.asarray(steps)


def of_series(
    series: Sequence[Sequence[float] | Array], steps_each: int, otherwise: Spread
) -> Spread:
    """Return the spread of measured steps in the order in which they were made.

    A stretch is twice as long as it takes until values are no longer alike, at least two values and
    at most a fifth of all.

    Args:
        series: The seconds of each run, one value for each `steps_each` steps.
        steps_each: The steps of a value.
        otherwise: The spread if there are fewer than 20 values; also that within a value.
    """
    relative = [np.asarray(seconds, float) / np.mean(seconds) for seconds in series if len(seconds)]
    joined = np.concatenate(relative) if relative else np.empty(0)
    if len(joined) < _FEWEST:
        return otherwise
    off = joined - 1
    variance = float(off @ off) or 1.0
    alike = [float(off[:-lag] @ off[lag:]) / variance for lag in range(1, len(off) // 5)]
    lag = next((place for place, value in enumerate(alike, start=1) if value < 0.2), len(alike))
    values = max(2, min(2 * lag, len(off) // 5))
    fast = otherwise.fast if steps_each > 1 else 0.0
    return Spread(fast, 0.0, values * steps_each, joined, steps_each)


def of_epochs(epochs: pd.DataFrame) -> Spread:
    """Return the spread of steps by the medians and 95th percentiles of runs' epochs.

    Args:
        epochs: Rows with `run_id`, `num_steps`, `step_seconds_p50` and `step_seconds_p95`.
    """
    timed = epochs[(epochs["step_seconds_p50"] > 0) & (epochs["num_steps"] > 2)]
    if timed.empty:
        return Spread()
    ratio = np.log((timed["step_seconds_p95"] / timed["step_seconds_p50"]).clip(lower=1))
    logs = np.log(timed["step_seconds_p50"])
    within = logs - logs.groupby(timed["run_id"]).transform("mean")
    freedom = len(within) - timed["run_id"].nunique()
    slow = float(np.sqrt((within**2).sum() / freedom)) if freedom > 0 else 0.0
    fast = float(np.median(ratio)) / P95
    stretch = max(1, int(timed["num_steps"].median()))
    return Spread(min(fast, _MOST_SPREAD), min(slow, _MOST_SPREAD), stretch)
