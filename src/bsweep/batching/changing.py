"""The base classes of the policies that change the global batch during a run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

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


class Changing(Policy, Generic[Card]):
    """A policy that may set a new global batch at the end of each round.

    With `max_local_batch` null, a policy that changes nothing trains exactly as with the configured
    batch, bit for bit.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        card: Any = config.batching
        self.card: Card = card
        if card.max_local_batch is not None:
            self.pass_batches = (card.max_local_batch,) * config.data_parallel_size
        self.configured = config.examples_per_step
        self.global_batch = self.configured

    @property
    def global_batch(self) -> int:
        """The number of examples that all workers together take in each step of the next round."""
        return self._global_batch

    @global_batch.setter
    def global_batch(self, global_batch: int) -> None:
        self._global_batch, self._shares = global_batch, self.of_global_batch(global_batch)

    def shares(self, epochs_done: float) -> tuple[Share, ...]:
        return self._shares

    def observe(self, seen: RoundStats) -> Sequence[Event]:
        decision = self.decide(seen)
        if decision is None:
            return ()
        least, most = self.card.bounds(self.config)
        wanted = round(min(max(least, decision.global_batch), most, seen.num_train))
        if wanted == self.global_batch:
            return ()
        before, self.global_batch = self.global_batch, wanted
        after = f"after {seen.epochs_done:.4g} epochs {decision.reason}"
        change = BatchChanged(
            message=f"{after}: the global batch of {before} becomes {wanted}",
            epochs_done=seen.epochs_done,
            before=before,
            global_batch=wanted,
            inputs=decision.inputs,
        )
        return (change,)

    @abstractmethod
    def decide(self, seen: RoundStats) -> Decision | None:
        """Decide on the next global batch after a round; return None to keep the present batch.

        All workers must decide alike.
        """

    def in_whole_passes(self, global_batch: float, whole: Callable[[float], int] = round) -> float:
        """Return `global_batch` rounded to a multiple of the largest batch that fits into one pass
        of all workers; a batch that fits into one pass stays unchanged.

        `whole` rounds the number of passes to a whole one.
        """
        one_pass = sum(self.pass_batches)
        return (
            whole(global_batch / one_pass) * one_pass if global_batch > one_pass else global_batch
        )

    def state(self) -> dict[str, Any]:
        return {"global_batch": self.global_batch}

    def load_state(self, state: dict[str, Any]) -> None:
        self.global_batch = state["global_batch"]


class Measuring(Changing[MeasuringCard]):
    """A policy that may change the global batch every few rounds, according to the measured
    gradient noise.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._rounds = 0  # since it last decided

    def decide(self, seen: RoundStats) -> Decision | None:
        self._rounds += 1
        if self._rounds < self.card.every_steps or seen.noise is None:
            return None
        self._rounds = 0
        return self.look(seen, seen.noise)

    @abstractmethod
    def look(self, seen: RoundStats, noise: GradientNoise) -> Decision | None:
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

    def state(self) -> dict[str, Any]:
        return {**super().state(), "rounds": self._rounds}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._rounds = state["rounds"]
