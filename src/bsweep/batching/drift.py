"""The policy that keeps the batch, and adapts workers' local steps to their measured speeds.

It measures the speeds over `allocation.adapt_every` rounds, and then decides.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from bsweep.batching.base import Policy, RoundStats
from bsweep.config import uneven
from bsweep.config.allocation import AdaptiveConfig, NetworkAwareConfig
from bsweep.config.run import RunConfig
from bsweep.data.plan import Share
from bsweep.runlog.records import Event, Round


def build(config: RunConfig) -> Policy:
    """Return the policy of a run with a fixed batch size: `FollowDrift` if the allocation adapts
    local steps to measured speeds, otherwise `Policy`.
    """
    return FollowDrift(config) if config.allocation.adapts else Policy(config)


class FollowDrift(Policy):
    """A policy that changes workers' numbers of local steps if their measured speeds have drifted.

    With `allocation=network_aware` it also changes the numbers if the least number H no longer
    suits the exchange's duration.
    """

    kept = ("num_steps", "least_steps", "seconds")

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        assert isinstance(config.allocation, AdaptiveConfig), config.allocation
        self._allocation = config.allocation
        self.num_steps = list(config.local_steps)
        self.least_steps = min(self.num_steps)
        self.seconds: list[Tensor] = []
        """One row for each measured round: the seconds of a step of each worker, then those of the
        exchange.
        """

    def shares(self, epochs_done: float) -> tuple[Share, ...]:
        return self.of_batches(self.config.worker_batches, self.num_steps)

    def observe(self, stats: RoundStats) -> Sequence[Event]:
        events: list[Event] = []
        for record in stats.rounds:
            if record.is_whole:  # an epoch's tail has few steps
                self.seconds.append(_step_and_exchange_seconds(record))
            if len(self.seconds) == self._allocation.adapt_every:
                events += self._adapt(record.round)
        return events

    def _adapt(self, number: int) -> Sequence[Event]:
        """Set new numbers of local steps after round `number`, if the measured seconds of steps and
        exchanges require them.

        Return the event to record; empty if no number changed.
        """
        policy = self._allocation
        *measured, exchange = torch.stack(self.seconds).mean(dim=0).tolist()
        self.seconds = []
        before = self.num_steps
        has_drifted = uneven.drifted([1 / steps for steps in before], measured, policy.max_drift)
        if isinstance(policy, NetworkAwareConfig):
            least = uneven.least_steps(exchange, max(measured), policy.max_exchange_share)
            if abs(least / self.least_steps - 1) > policy.max_drift:
                self.least_steps, has_drifted = least, True
        after = list(uneven.by_seconds(measured, self.least_steps))
        if not has_drifted or after == before:
            return ()
        self.num_steps = after
        seconds = ", ".join(f"{value:.3g}" for value in measured)
        change = f"after round {number} steps take {seconds} s: local steps {before} become {after}"
        return (Event(event="reallocated", message=change),)


def _step_and_exchange_seconds(record: Round) -> Tensor:
    """Return the seconds of a step of each worker, and those of the exchange with its codec,
    float64 (workers + 1,).
    """
    steps = map(operator.truediv, record.compute_seconds, record.local_steps)
    codecs = record.codec_seconds or (0.0,) * len(record.workers)
    exchanges = map(operator.add, record.exchange_seconds, codecs)
    return torch.tensor([*steps, min(exchanges)], dtype=torch.float64)
