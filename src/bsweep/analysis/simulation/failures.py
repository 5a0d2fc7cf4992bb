"""The cost of failures to a simulated cluster: lost steps, restarts and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bsweep.config.values import check_above_zero

_NUM_INTERVALS = 4000  # between checkpoints, that are simulated
_MOST_ATTEMPTS = 1000  # of an interval: beyond, nothing is ever saved


@dataclass(frozen=True)
class Failures:
    """Failures of single workers: how often they come, and what a checkpoint and a restart cost.

    A failure of one worker stops all. If `checkpoint_every_seconds` is None, checkpoints are as far
    apart as Young's formula says: the root of 2 times their seconds times those between failures.
    """

    hours_between: float
    checkpoint_seconds: float = 30.0
    restart_seconds: float = 120.0
    checkpoint_every_seconds: float | None = None

    def __post_init__(self) -> None:
        given = (
            ("hours-between-failures", self.hours_between, 5000),
            ("checkpoint-seconds", self.checkpoint_seconds, 30),
            ("restart-seconds", self.restart_seconds or None, 120),
            ("checkpoint-every-seconds", self.checkpoint_every_seconds, 600),
        )
        for name, value, example in given:
            check_above_zero(name, value, example)

    def factor(self, num_workers: int, seed: int = 0) -> float:
        """Return by what failures, restarts and checkpoints stretch the time of training.

        Args:
            num_workers: The number of workers, each of which fails on its own.
            seed: The seed of the random numbers.

        Raises:
            ValueError: If failures follow one another too quickly to save anything.
        """
        between = self.hours_between * 3600 / num_workers
        interval = self.checkpoint_every_seconds or np.sqrt(2 * self.checkpoint_seconds * between)
        whole = interval + self.checkpoint_seconds
        rng = np.random.default_rng(seed)
        seconds, left, begins = 0.0, _NUM_INTERVALS, np.full(_NUM_INTERVALS, 0.0)
        for _ in range(_MOST_ATTEMPTS):
            fails = rng.exponential(between, left)
            is_lost = fails < whole + begins
            seconds += float(np.minimum(fails, whole + begins).sum())
            left = int(is_lost.sum())
            if not left:
                return seconds / (_NUM_INTERVALS * interval)
            begins = np.full(left, self.restart_seconds)
        raise ValueError(
            f"with {num_workers} workers that fail every {self.hours_between:g} hours, one of them "
            f"fails every {between:.0f} s, but {whole:.0f} s pass until a checkpoint is saved. Use "
            "fewer workers or shorter checkpoints."
        )
