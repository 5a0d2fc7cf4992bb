"""The interface between the training loop and the policy that decides how many examples a step
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
from bsweep.config.run import RunConfig
from bsweep.data.plan import Share
from bsweep.numerics.noise_scale import GradientNoise
from bsweep.runlog.records import Event, Round


@dataclass(frozen=True)
class Seen:
    """The data that a policy may use at the end of a round."""

    epochs_done: float
    """The epochs trained so far, including the part of the current one."""

    rounds: tuple[Round, ...]
    """The rounds recorded since the last call, the same on all workers.

    It is empty if each step is a round.
    """

    sums: Tensor
    """The sums of losses, correct answers and labels of this worker's part of the round, float64
    (3,) on its device.
    """

    gather: Callable[[Tensor], Tensor]
    """The function that gathers values of all workers, for what they must all know; see
    `Strategy.gather`.

    It waits for all of them.
    """

    noise: GradientNoise | None = None
    """The running estimate of gradient noise, the same on all workers.

    It is None if nothing is measured, or before the first record.
    """

    num_train: int = sys.maxsize
    """The training examples of an epoch."""

    learning_rate: float = 0.0
    """The learning rate of the last step."""

    step_seconds: Callable[[], Sequence[float]] = tuple
    """The function that returns the seconds of this epoch's steps so far, on this worker's clock.

    It waits until a GPU has finished them.
    """

    @property
    def ends_epoch(self) -> bool:
        """True if the round ends an epoch.

        The last step of such a round may have fewer examples than the others.
        """
        return self.epochs_done == round(self.epochs_done)


class Policy(ABC):
    """A policy, which decides how many examples each worker takes in the coming round.

    Every worker has one, and all must decide alike. They may decide by the configuration, by the
    epochs that are done, and by values that are gathered or the same on all workers. The batch may
    grow or shrink at any round.
    """

    def __init__(self, config: RunConfig) -> None:
        """Keep the configuration, from which `of_batches` takes numbers of steps.

        Args:
            config: The configuration of the run.
        """
        self.config = config
        self.pass_batches: tuple[int, ...] = config.local_batches
        """The most examples of one pass, by worker; a larger batch takes several passes."""

    @abstractmethod
    def shares(self, epochs_done: float) -> tuple[Share, ...]:
        """Return each worker's share of the coming round, its batch and number of steps, by rank.

        The shares of lost workers are not used.

        Args:
            epochs_done: The epochs trained so far, including the part of the current one.

        Returns:
            One share for each worker, by rank.
        """

    def rate_factor(self, epochs_done: float) -> float:
        """Return the factor for the learning rate of a step, in addition to that of
        `optimizer.lr_rule`.

        Args:
            epochs_done: The epochs trained until the middle of the step, where the rate's schedule
                is evaluated.

        Returns:
            The factor; 1 leaves the learning rate as it is.
        """
        return 1.0

    def observe(self, seen: Seen) -> Sequence[Event]:
        """Update the policy after a round and return the events to record. All workers call this
        method together.

        Args:
            seen: The data of the round that has just ended.

        Returns:
            The events to record, the same on all workers; empty for none.
        """
        return ()

    def state(self) -> dict[str, Any]:
        """Return the policy's state for a checkpoint.

        Returns:
            Plain values by name; empty if the policy keeps none.
        """
        return {}

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027 (many policies know nothing of their own)
        """Restore what `state` returned.

        Args:
            state: The state from a checkpoint.
        """

    def of_batches(
        self, worker_batches: Sequence[int], num_steps: Sequence[int] | None = None
    ) -> tuple[Share, ...]:
        """Return each worker's share for these batches, by default with the configured numbers of
        steps.

        A batch beyond `pass_batches` takes several passes.

        Args:
            worker_batches: The examples of each worker's step, by rank.
            num_steps: The steps of each worker in the round, by rank; None: `local_steps` of the
                configuration.

        Returns:
            One share for each worker, by rank.
        """
        steps = num_steps or self.config.local_steps
        return tuple(
            Share(batch, number, num_passes=-(-batch // largest))
            for batch, number, largest in zip(worker_batches, steps, self.pass_batches, strict=True)
        )

    def of_global_batch(self, global_batch: int) -> tuple[Share, ...]:
        """Return each worker's share of steps that take `global_batch` examples on all workers
        together.

        They are in proportion to the workers' configured batches.

        Args:
            global_batch: The examples of one step of all workers.

        Returns:
            One share for each worker, by rank.
        """
        return self.of_batches(allocation.shares(global_batch, self.config.local_batches))
