"""Differences between the seconds of single steps of one worker, and random steps that differ as
much.

A run's epochs have the median and the 95th percentile of their steps. So steps of an epoch differ
log-normally, as these say, and so do epochs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from bsweep.analysis.prediction.critical_batch import P95
from bsweep.analysis.simulation.network import Array

_STRETCH = 20  # steps of a stretch, if not measured
_MOST_SPREAD = 1.0  # of logarithms: few disturbed steps must not make all steps wild


@dataclass(frozen=True)
class Spread:
    """The relative seconds of steps, whose mean is 1.

    `fast` and `slow` are standard deviations of logarithms, between steps and between stretches of
    `stretch` steps, such as epochs.
    """

    fast: float = 0.0
    slow: float = 0.0
    stretch: int = _STRETCH

    def draw(self, num_steps: int, num_workers: int, rng: np.random.Generator) -> Array:
        """Return the relative seconds of steps, shape (steps, workers). Workers are independent."""
        count = -(-num_steps // self.stretch)  # stretches, rounded up
        steps = np.exp(self.fast * rng.standard_normal((num_steps, num_workers)) - self.fast**2 / 2)
        if self.slow:
            logs = self.slow * rng.standard_normal((count, num_workers)) - self.slow**2 / 2
            steps *= np.repeat(np.exp(logs), self.stretch, axis=0)[:num_steps]
        return np.asarray(steps)


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
