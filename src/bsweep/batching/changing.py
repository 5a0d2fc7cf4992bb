"""What all policies share that give the workers one global batch, and change it while a run goes on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from bsweep.batching.base import Policy, Seen
from bsweep.config import ChangingConfig, RunConfig
from bsweep.data.plan import Share
from bsweep.runlog import BatchChanged, Event

Card = TypeVar("Card", bound=ChangingConfig)


@dataclass(frozen=True)
class Decision:
    """A global batch to go on with, which bounds may still cut, what it was decided by, and why in words."""

    global_batch: float
    inputs: Mapping[str, float | None]
    reason: str


class Changing(Policy, Generic[Card]):
    """Decides on a batch where a round ends; who changes nothing trains as with the configured batch, bit for bit."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        card: Any = config.batching
        self.card: Card = card
        self.configured = config.examples_per_step
        self.global_batch = self.configured

    @property
    def global_batch(self) -> int:
        """Examples of one coming step of all workers."""
        return self._global_batch

    @global_batch.setter
    def global_batch(self, global_batch: int) -> None:
        self._global_batch, self._shares = global_batch, self.of_global_batch(global_batch)

    def shares(self, epochs_done: float) -> tuple[Share, ...]:
        return self._shares

    def observe(self, seen: Seen) -> Sequence[Event]:
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
    def decide(self, seen: Seen) -> Decision | None:
        """What to go on with after a round, the same on all workers; None: as before."""

    def state(self) -> dict[str, Any]:
        return {"global_batch": self.global_batch}

    def load_state(self, state: dict[str, Any]) -> None:
        self.global_batch = state["global_batch"]
