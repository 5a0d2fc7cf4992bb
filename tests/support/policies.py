"""Batching policies of the tests: batches that change up and down within epochs."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import replace

from bsweep import batching
from bsweep.batching import GradientNoise, Policy, RoundStats
from bsweep.config.run import RunConfig
from bsweep.data.plan import Share, global_batch
from bsweep.runlog.records import Event


class Doubling(Policy):
    """Twice the batch from the middle of the first epoch to that of the second."""

    def shares(self, epochs_done: float) -> tuple[Share, ...]:
        return self.of_global_batch(
            self.config.examples_per_step * (2 if 0.5 <= epochs_done < 1.5 else 1)
        )


class ByRound(Policy):
    """Twice the batch in each third round, by the rounds that it has seen."""

    kept = ("rounds_seen",)
    rounds_seen = 0

    def shares(self, epochs_done: float) -> tuple[Share, ...]:
        factor = 2 if self.rounds_seen % 3 == 2 else 1
        return self.of_batches([batch * factor for batch in self.config.local_batches])

    def observe(self, stats: RoundStats) -> Sequence[Event]:
        self.rounds_seen += len(stats.rounds)
        return ()


class Recorded(Policy):
    """The changes of another run: after so many epochs, to such a global batch."""

    def __init__(self, config: RunConfig, after: list[float], to: list[int]) -> None:
        super().__init__(config)
        self._changes = [(0.0, config.examples_per_step), *zip(after, to, strict=True)]

    def shares(self, epochs_done: float) -> tuple[Share, ...]:
        return self.of_global_batch(
            [batch for since, batch in self._changes if since <= epochs_done][-1]
        )


class RecordedRates(Policy):
    """The configured batch at the rates of another run: until so many epochs are done, a multiple
    of the base rate.
    """

    def __init__(self, config: RunConfig, until: list[float], factors: list[float]) -> None:
        super().__init__(config)
        self._until, self._factors = until, factors

    def rate_factor(self, epochs_done: float) -> float:
        return self._factors[bisect.bisect_right(self._until, epochs_done)]


def identified(config: RunConfig) -> Policy:
    """The configured policy, to which the noise scale of a few steps seems certain."""
    policy = _build(config)
    observe = policy.observe

    def observed(stats: RoundStats) -> Sequence[Event]:
        noise = stats.noise
        sure = noise and GradientNoise(abs(noise.squared_norm), abs(noise.trace), noise.num_samples)
        return observe(replace(stats, noise=sure))

    policy.observe = observed  # type: ignore[method-assign]
    return policy


def timed(config: RunConfig) -> Policy:
    """As `identified`, on a clock by which a step takes 20 ms and one more for each example of its
    batch.
    """
    policy = identified(config)
    observe = policy.observe

    def observed(stats: RoundStats) -> Sequence[Event]:
        seconds = [0.02 + 0.001 * global_batch(policy.shares(stats.epochs_done))] * len(
            stats.step_seconds()
        )
        return observe(replace(stats, step_seconds=lambda: seconds))

    policy.observe = observed  # type: ignore[method-assign]
    return policy


_build = batching.build  # which tests replace
