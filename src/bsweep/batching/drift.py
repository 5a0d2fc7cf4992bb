"""The policy that keeps the batch, and adapts workers' local steps to their measured speeds.

It measures the speeds over `allocation.adapt_every` rounds, and then decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bsweep.batching.base import RoundStats
from bsweep.batching.fixed import Fixed
from bsweep.config.allocation import AdaptiveConfig, NetworkAwareConfig
from bsweep.config.run import RunConfig
from bsweep.core import uneven
from bsweep.runlog.records import Event, Round


def build(config: RunConfig) -> Fixed:
    """Return the policy of a run with a fixed batch size: `FollowDrift` if the allocation adapts
    local steps to measured speeds, otherwise `Fixed`.
    """
    return FollowDrift(config) if config.allocation.adapts else Fixed(config)


class FollowDrift(Fixed):
    """A policy that changes workers' numbers of local steps if their measured speeds have drifted.

    With `allocation=network_aware` it also changes the numbers if the least number H no longer
    suits the exchange's duration.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        assert isinstance(config.allocation, AdaptiveConfig), config.allocation
        self._allocation = config.allocation
        self._least_steps = min(config.local_steps)
        # One row for each round: the seconds of a step of each worker, then those of the exchange.
        self._seconds: list[Tensor] = []

    def observe(self, seen: RoundStats) -> Sequence[Event]:
        events = []
        for record in seen.rounds:
            if record.is_whole:  # an epoch's tail has few steps
                event = self._measure(record)
                events += [event] if event else []
        return events

    def state(self) -> dict[str, Any]:
        return {
            "num_steps": [share.num_steps for share in self._shares],
            "least_steps": self._least_steps,
            "seconds": self._seconds,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self._shares = self.of_batches(self._worker_batches, state["num_steps"])
        self._least_steps = state["least_steps"]
        self._seconds = list(state["seconds"])

    def _measure(self, record: Round) -> Event | None:
        exchange = torch.tensor(record.exchange_seconds, dtype=torch.float64)
        if record.codec_seconds:
            exchange += torch.tensor(record.codec_seconds, dtype=torch.float64)
        steps = torch.tensor(record.local_steps, dtype=torch.float64)
        computed = torch.tensor(record.compute_seconds, dtype=torch.float64) / steps
        self._seconds.append(torch.cat([computed, exchange.min().view(1)]))
        return (
            self._adapt(record.round)
            if len(self._seconds) == self._allocation.adapt_every
            else None
        )

    def _adapt(self, number: int) -> Event | None:
        """Set new numbers of local steps after round `number`, if the measured seconds of steps and
        exchanges require them.

        Return the event to record, or None if no number changed.
        """
        policy = self._allocation
        *measured, exchange = torch.stack(self._seconds).mean(dim=0).tolist()
        self._seconds = []
        before = [share.num_steps for share in self._shares]
        has_drifted = uneven.drifted([1 / steps for steps in before], measured, policy.max_drift)
        if isinstance(policy, NetworkAwareConfig):
            least = uneven.least_steps(exchange, max(measured), policy.max_exchange_share)
            if abs(least / self._least_steps - 1) > policy.max_drift:
                self._least_steps, has_drifted = least, True
        after = list(uneven.by_seconds(measured, self._least_steps))
        if not has_drifted or after == before:
            return None
        self._shares = self.of_batches(self._worker_batches, after)
        seconds = ", ".join(f"{value:.3g}" for value in measured)
        return Event(
            event="reallocated",
            message=(
                f"after round {number} steps take {seconds} s: local steps {before} become {after}"
            ),
        )
