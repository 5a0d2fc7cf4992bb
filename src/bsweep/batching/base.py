"""The interface between the training loop and the policy that decides how many examples a step
takes, and the base classes of the policies that change the global batch during a run.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from bsweep.config import uneven
from bsweep.config.batching import ChangingConfig, MeasuringConfig
from bsweep.config.run import RunConfig
from bsweep.data.plan import Share
from bsweep.numerics.noise_scale import GradientNoise
from bsweep.runlog.records import BatchChanged, Event, Round


@dataclass(frozen=True)
class RoundStats:
    """The data about training that a batching policy may use at the end of a round."""

    epochs_done: float
    """The number of epochs trained so far, including the trained part of the current epoch."""

    rounds: tuple[Round, ...]
    """The records of the rounds that have ended since `Policy.observe` was last called, the same on
    all workers.

    The tuple is empty if the strategy writes no records of rounds.
    """

    sums: Tensor
    """This worker's sum of losses, number of correct answers and number of labels in the round.

    They are a float64 tensor (3,) on the worker's device.
    """

    gather: Callable[[Tensor], Tensor]
    """The function that gathers a tensor from every worker, so that all workers can decide alike.

    It waits for all of them; see `Strategy.gather`.
    """

    noise: GradientNoise | None = None
    """The running estimate of the gradient noise, the same on all workers, or None.

    It is None if the noise is not measured, or before the first record.
    """

    num_train: int = sys.maxsize
    """The number of training examples in an epoch."""

    learning_rate: float = 0.0
    """The learning rate of the last step of the round."""

    step_seconds: Callable[[], Sequence[float]] = tuple
    """The function that returns the seconds of each step of this epoch so far, by this worker's
    clock.

    It waits until a GPU has finished these steps.
    """

    @property
    def ends_epoch(self) -> bool:
        """True if the round that has just ended was the last one of its epoch.

        The last step of such a round may have fewer examples than the others.
        """
        return self.epochs_done == round(self.epochs_done)


class Policy:
    """The base of batching policies, which decide how many examples each worker takes in the next
    round; by itself, the policy that keeps the configured batch.

    Every worker has a policy object, and all must decide alike. They may decide by the
    configuration, by the epochs that are done, and by values that are gathered or the same on all
    workers. The batch may grow or shrink at any round.
    """

    kept: ClassVar[tuple[str, ...]] = ()
    """The names of the attributes that a checkpoint keeps, whose values are plain."""

    def __init__(self, config: RunConfig) -> None:
        """Store the run's configuration and the largest batch that one pass of each worker may
        take.

        Args:
            config: The configuration of the run.
        """
        self.config = config
        self.pass_batches: tuple[int, ...] = config.local_batches
        """The largest number of examples in one pass, for each worker.

        A larger batch takes several passes.
        """

    def shares(self, epochs_done: float) -> tuple[Share, ...]:
        """Return each worker's share of the next round: the examples and the passes of a step, and
        the number of steps. By default they are the configured ones.

        Args:
            epochs_done: The epochs trained so far, including the part of the current one.

        Returns:
            One share for each worker, by rank.
        """
        return self.of_batches(self.config.worker_batches)

    def rate_factor(self, epochs_done: float) -> float:
        """Return the factor by which this policy multiplies the learning rate of a step, in
        addition to `optimizer.lr_rule`.

        Args:
            epochs_done: The epochs trained until the middle of the step, where the rate's schedule
                is evaluated.

        Returns:
            The factor; 1 leaves the learning rate as it is.
        """
        return 1.0

    def observe(self, stats: RoundStats) -> Sequence[Event]:
        """Let the policy decide on the next batch at the end of a round, and return the events to
        record, such as a change of the batch.

        All workers call this method together.

        Args:
            stats: The data of the round that has just ended.

        Returns:
            The events to record, the same on all workers; empty for none.
        """
        return ()

    def state(self) -> dict[str, Any]:
        """Return the policy's state for a checkpoint.

        Returns:
            Plain values by name: by default those of the attributes `kept`.
        """
        return {name: getattr(self, name) for name in self.kept}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the policy's state from a checkpoint.

        Args:
            state: The state from a checkpoint.
        """
        for name in self.kept:
            setattr(self, name, state[name])

    def of_batches(
        self, worker_batches: Sequence[int], num_steps: Sequence[int] | None = None
    ) -> tuple[Share, ...]:
        """Return each worker's share of a round, given every worker's batch and number of steps.

        By default the numbers of steps are the configured ones.

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
        """Divide a global batch among the workers, and return each worker's share of a round: its
        examples and passes in a step, and its number of steps.

        The workers' batches are in proportion to their configured batches.

        Args:
            global_batch: The examples of one step of all workers.

        Returns:
            One share for each worker, by rank.
        """
        return self.of_batches(uneven.shares(global_batch, self.config.local_batches))


@dataclass(frozen=True)
class Decision:
    """A policy's decision: the next global batch, the numbers behind it, and the reason in words.

    Bounds may still limit this batch.
    """

    global_batch: float
    inputs: Mapping[str, float | None]
    reason: str


class Changing(Policy, ABC):
    """A policy that may set a new global batch at the end of each round.

    With `max_local_batch` null, a policy that changes nothing trains exactly as with the configured
    batch, bit for bit.
    """

    kept: ClassVar[tuple[str, ...]] = ("global_batch",)
    card: ChangingConfig

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        card: Any = config.batching
        self.card = card
        if card.max_local_batch is not None:
            self.pass_batches = (card.max_local_batch,) * config.data_parallel_size
        self.configured = config.examples_per_step
        self.global_batch = self.configured  # examples of a step of all workers in the next round

    def shares(self, epochs_done: float) -> tuple[Share, ...]:
        return self.of_global_batch(self.global_batch)

    def observe(self, stats: RoundStats) -> Sequence[Event]:
        decision = self.decide(stats)
        if decision is None:
            return ()
        least, most = self.card.bounds(self.config)
        wanted = round(min(max(least, decision.global_batch), most, stats.num_train))
        if wanted == self.global_batch:
            return ()
        before, self.global_batch = self.global_batch, wanted
        after = f"after {stats.epochs_done:.4g} epochs {decision.reason}"
        change = BatchChanged(
            message=f"{after}: the global batch of {before} becomes {wanted}",
            epochs_done=stats.epochs_done,
            before=before,
            global_batch=wanted,
            inputs=decision.inputs,
        )
        return (change,)

    @abstractmethod
    def decide(self, stats: RoundStats) -> Decision | None:
        """Decide on the next global batch after a round; return None to keep the present batch.

        All workers must decide alike.
        """

    def in_whole_passes(self, global_batch: float, whole: Callable[[float], int] = round) -> float:
        """Return `global_batch` rounded to a multiple of the largest batch that fits into one pass
        of all workers; a batch that fits into one pass stays unchanged.

        `whole` rounds the number of passes to a whole one.
        """
        largest = sum(self.pass_batches)
        return whole(global_batch / largest) * largest if global_batch > largest else global_batch


class Measuring(Changing):
    """A policy that may change the global batch every few rounds, according to the measured
    gradient noise.
    """

    kept: ClassVar[tuple[str, ...]] = (*Changing.kept, "rounds")
    card: MeasuringConfig
    rounds = 0  # since it last decided

    def decide(self, stats: RoundStats) -> Decision | None:
        self.rounds += 1
        if self.rounds < self.card.every_steps or stats.noise is None:
            return None
        self.rounds = 0
        return self.look(stats, stats.noise)

    @abstractmethod
    def look(self, stats: RoundStats, noise: GradientNoise) -> Decision | None:
        """Decide on the next global batch by the measured gradient noise; return None to keep the
        present batch.

        All workers must decide alike.
        """

    def followed(
        self, wanted: float, hysteresis: float, inputs: Mapping[str, float | None], reason: str
    ) -> Decision | None:
        """Return a decision for the batch `wanted` in whole passes, or None if `wanted` differs
        from the present batch by at most the factor `hysteresis`, up or down.
        """
        if 1 / hysteresis <= wanted / self.global_batch <= hysteresis:
            return None
        return Decision(self.in_whole_passes(wanted), inputs, reason)
