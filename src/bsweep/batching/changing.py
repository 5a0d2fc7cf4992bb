"""The base classes of the policies that change the global batch during a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from bsweep.batching.base import Policy, RoundStats
from bsweep.config.batching import ChangingConfig, MeasuringConfig
from bsweep.config.run import RunConfig
from bsweep.data.plan import Share
from bsweep.numerics.noise_scale import GradientNoise
from bsweep.runlog.records import BatchChanged, Event

Card = TypeVar("Card", bound=ChangingConfig)
MeasuringCard = TypeVar("MeasuringCard", bound=MeasuringConfig)


@dataclass(frozen=True)
class Decision:
    """A policy's decision: the next global batch, the numbers behind it, and the reason in words.

    Bounds may still limit this batch.
    """

    global_batch: float
    inputs: Mapping[str, float | None]
    reason: str


class Changing(Policy, ABC, Generic[Card]):
    """A policy that may set a new global batch at the end of each round.

    With `max_local_batch` null, a policy that changes nothing trains exactly as with the configured
    batch, bit for bit.
    """

    kept: ClassVar[tuple[str, ...]] = ("global_batch",)

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        card: Any = config.batching
        self.card: Card = card
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


class Measuring(Changing[MeasuringCard]):
    """A policy that may change the global batch every few rounds, according to the measured
    gradient noise.
    """

    kept: ClassVar[tuple[str, ...]] = (*Changing.kept, "rounds")
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
