"""The seam between the training loop and who decides, during a run, how many examples a step
takes.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bsweep import allocation
from bsweep.config import RunConfig
from bsweep.data.plan import Share
from bsweep.numerics.noise_scale import GradientNoise
from bsweep.runlog import Event, Round


@dataclass(frozen=True)
class Seen:
    """What a policy may look at when a round is over."""

    epochs_done: float
    """Trained so far, the part of this epoch included."""

    rounds: tuple[Round, ...]
    """Those that came on record since the last look, the same on all workers; none where each step
    is a round.
    """

    sums: Tensor
    """Of losses, correct answers and labels of this worker's part of the round, float64 (3,) on its
    device.
    """

    gather: Callable[[Tensor], Tensor]
    """See `Strategy.gather`: for what all workers must know alike. It waits for all of them."""

    noise: GradientNoise | None = None
    """The running estimate, the same on all workers; None where nothing is measured, or before the
    first record.
    """

    num_train: int = sys.maxsize
    """Examples of an epoch."""

    learning_rate: float = 0.0
    """Of the last step."""

    step_seconds: Callable[[], Sequence[float]] = tuple
    """Seconds of this epoch's steps so far, on this worker's clock. It waits for a GPU to have
    finished them.
    """

    @property
    def ends_epoch(self) -> bool:
        """Whether the round's last step took what was left of an epoch, and may have been shorter
        than others.
        """
        return self.epochs_done == round(self.epochs_done)


class Policy(ABC):
    """Decides how much each worker takes of the coming round.

    Every worker has one, and all must decide alike: by what they were built with, by the epochs
    that are done, and by what is the same on all workers, or gathered. The batch may change at any
    round, up and down.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.pass_batches: tuple[int, ...] = config.local_batches
        """The most examples of a pass, by worker: what is more takes several."""

    @abstractmethod
    def shares(self, epochs_done: float) -> tuple[Share, ...]:
        """What each worker takes of the coming round, by rank; nothing of it is given to workers
        that were lost.
        """

    def rate_factor(self, epochs_done: float) -> float:
        """What to multiply the learning rate of a step by, beside what `optimizer.lr_rule` makes of
        its batch.

        `epochs_done` is what the rate's schedule goes by there: the middle of the step.
        """
        return 1.0

    def observe(self, seen: Seen) -> Sequence[Event]:
        """A round is over: what to put on record of what follows from it. All workers call it
        together.
        """
        return ()

    def state(self) -> dict[str, Any]:
        """What to go on from, when the run is taken up again."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027 (many policies know nothing of their own)
        """Take up what `state` gave."""

    def of_batches(
        self, worker_batches: Sequence[int], num_steps: Sequence[int] | None = None
    ) -> tuple[Share, ...]:
        """Shares of such steps, by default as many as configured: those beyond `pass_batches` take
        several passes.
        """
        steps = num_steps or self.config.local_steps
        return tuple(
            Share(batch, number, num_passes=-(-batch // largest))
            for batch, number, largest in zip(worker_batches, steps, self.pass_batches, strict=True)
        )

    def of_global_batch(self, global_batch: int) -> tuple[Share, ...]:
        """Shares of steps on so many examples of all workers, in proportion to their configured
        batches.
        """
        return self.of_batches(allocation.shares(global_batch, self.config.local_batches))
