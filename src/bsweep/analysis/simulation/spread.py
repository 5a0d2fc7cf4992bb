"""How much the seconds of single steps differ on one worker, and random steps that differ as much.

Measured steps are drawn in stretches of steps that followed one another, so that slow steps come
together as they did. If only the median and the 95th percentile of each epoch were recorded, steps
are log-normal: one part differs from step to step, and one from stretch to stretch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from bsweep.analysis.simulation.network import Array

_P95 = 1.645  # standard deviations from the median to the 95th percentile
_STRETCH = 20  # steps of a stretch, if not measured
_FEWEST = 20  # measured steps from which others are drawn
_MOST_SPREAD = 1.0  # of logarithms: few disturbed steps must not make all steps wild


@dataclass(frozen=True)
class Spread:
    """The relative seconds of steps, whose mean is 1.

    `fast` and `slow` are standard deviations of logarithms, between steps and between stretches of
    `stretch` steps. If there are `measured` steps, they are drawn from instead.
    """

    fast: float = 0.0
    slow: float = 0.0
    stretch: int = _STRETCH
    measured: Array = field(default_factory=lambda: np.empty(0))

    def draw(self, num_steps: int, num_workers: int, rng: np.random.Generator) -> Array:
        """Return the relative seconds of steps, shape (steps, workers). Workers are independent."""
        number_of = -(-num_steps // self.stretch)  # stretches, rounded up
        if len(self.measured):
            begin = rng.integers(0, len(self.measured), (number_of, 1, num_workers))
            places = (begin + np.arange(self.stretch)[:, None]) % len(self.measured)
            return np.asarray(self.measured[places].reshape(-1, num_workers)[:num_steps])
        logs = self.fast * rng.standard_normal((num_steps, num_workers)) - self.fast**2 / 2
        if self.slow:
            of_stretches = self.slow * rng.standard_normal((number_of, num_workers))
            logs += np.repeat(of_stretches - self.slow**2 / 2, self.stretch, axis=0)[:num_steps]
        return np.exp(logs)


def of_steps(seconds: ArrayLike) -> Spread:
    """Return the spread of measured steps in the order in which they were made; none if there are
    fewer than 20.

    A stretch is twice as long as it takes until steps are no longer alike, at least 2 steps and at
    most a fifth of all.
    """
    steps = np.asarray(seconds, float)
    if len(steps) < _FEWEST:
        return Spread()
    relative = steps / steps.mean()
    off = relative - 1
    variance = float(off @ off) or 1.0
    alike = [float(off[:-lag] @ off[lag:]) / variance for lag in range(1, len(off) // 5)]
    lag = next((place for place, value in enumerate(alike, start=1) if value < 0.2), len(alike))
    return Spread(stretch=max(2, min(2 * lag, len(off) // 5)), measured=relative)


def of_epochs(epochs: pd.DataFrame) -> Spread:
    """Return the spread of steps by the medians and 95th percentiles of runs' epochs.

    Args:
        epochs: Rows with `run_id`, `num_steps`, `step_seconds_p50` and `step_seconds_p95`.
    """
    known = epochs[(epochs["step_seconds_p50"] > 0) & (epochs["num_steps"] > 2)]
    if known.empty:
        return Spread()
    ratio = np.log((known["step_seconds_p95"] / known["step_seconds_p50"]).clip(lower=1))
    logs = np.log(known["step_seconds_p50"])
    within = logs - logs.groupby(known["run_id"]).transform("mean")
    freedom = len(within) - known["run_id"].nunique()
    slow = float(np.sqrt((within**2).sum() / freedom)) if freedom > 0 else 0.0
    fast = float(np.median(ratio)) / _P95
    stretch = max(1, int(known["num_steps"].median()))
    return Spread(min(fast, _MOST_SPREAD), min(slow, _MOST_SPREAD), stretch)
