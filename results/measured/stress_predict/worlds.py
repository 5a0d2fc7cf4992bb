"""Nine worlds in which a prediction is tried. In eight of them, one thing differs from what the
formulas of the prediction assume; two are those of the tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tests.support import worlds as tested
from tests.support.synthetic_targets import Truth
from tests.support.worlds import Placed, world_of


class Power(Truth):
    """Steps fall with the power 0.7 of the batch."""

    def steps(self, batch: float) -> float:
        critical = self.minimum_examples / self.minimum_steps
        return self.minimum_steps * (1 + math.pow(critical / batch, 0.7))


class Wall(Truth):
    """Steps fall in proportion to the batch up to the critical batch, and then no more."""

    def steps(self, batch: float) -> float:
        return math.sqrt(math.hypot(self.minimum_steps**2, (self.minimum_examples / batch) ** 2))


class HeavyTail(Truth):
    """Seeds scatter by Student's t with 1.5 degrees of freedom. One run in ten is 1.6 times as
    long.
    """

    def of_seed(self, rng: np.random.Generator) -> float:
        longer = 1.6 if rng.random() < 0.1 else 1.0
        return longer * math.exp(min(self.scatter * rng.standard_t(1.5), 3.0))


class Rate(Placed):
    """The learning rate suits larger batches the less, the larger they are."""

    def steps(self, batch: float) -> float:
        away = max(0.0, math.log2(batch / self.place))
        return super().steps(batch) * (1 + 0.25 * away**2)


class Cliff(Truth):
    """Examples above a local batch of 64 cost 2.5 times as much. Below 32 a step costs more."""

    def step_seconds(self, local_batch: float, workers: int, passes: int = 1) -> float:
        more = 1.5 * self.example_seconds * max(0.0, local_batch - 64)
        more += 0.3 * self.pass_seconds * (local_batch < 32)
        slower = replace(self, pass_seconds=self.pass_seconds + more)
        return Truth.step_seconds(slower, local_batch, workers, passes)


class Straggler(Truth):
    """Each worker makes a run 1.5 times as slow with a probability of 0.1."""

    def of_run(self, rng: np.random.Generator, workers: int) -> float:
        slower = 1.5 if rng.random() < 1 - 0.9**workers else 1.0
        return slower * super().of_run(rng, workers)

    def typical(self, workers: int) -> float:
        return float(1.5 ** (1 - 0.9**workers))


class NonMonotone(Straggler):
    """On four workers an exchange takes 4 times as long and a pass 1.35 times; and stragglers."""

    def step_seconds(self, local_batch: float, workers: int, passes: int = 1) -> float:
        passing, syncing = (1.35, 4.0) if workers == 4 else (1.0, 1.0)
        slower = replace(
            self, pass_seconds=passing * self.pass_seconds,
            example_seconds=passing * self.example_seconds,
            sync_seconds=syncing * self.sync_seconds,
            sync_worker_seconds=syncing * self.sync_worker_seconds,
        )  # fmt: skip
        return Truth.step_seconds(slower, local_batch, workers, passes)


WORLDS: dict[str, Callable[[int], Truth]] = {
    "law": tested.drawn, "B^0.7": world_of(Power), "wall": world_of(Wall),
    "heavy tail": world_of(HeavyTail), "threshold": tested.WORLDS["threshold"],
    "cliff": world_of(Cliff), "straggler": world_of(Straggler),
    "non-monotone": world_of(NonMonotone), "badly tuned rate": world_of(Rate),
}  # fmt: skip
