"""AdaScale (Johnson et al., arXiv 2007.05105): the learning rate is multiplied by a gain, which is
computed from the gradient noise.

AdaScale works with every batching policy that allows a learning rate which follows the batch size.

S0 is `reference_batch`. A step on s S0 examples goes as far as r steps on S0 examples, and so has r
times the rate:

    r = (sigma2 + mu2) / (sigma2 / s + mu2),   sigma2 = tr(Sigma) / S0,   mu2 = |G|^2

r lies between 1, for a gradient without noise, and s, for one that is all noise. The formula also
holds for s below 1. The paper's schedule goes by the sum of r, its count of steps of the reference
batch. Here schedules and ends go by epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bsweep.batching.base import Policy, RoundStats
from bsweep.config.run import RunConfig
from bsweep.data.plan import Share, global_batch
from bsweep.numerics.noise_scale import GradientNoise
from bsweep.runlog.records import Event


def gain(noise: GradientNoise, batch: float, reference_batch: float) -> float:
    """Return how many steps of `reference_batch` examples make as much progress as one step of
    `batch` examples.

    It is 1 if neither the variance nor the squared norm is estimated to be above 0.
    """
    variance, square = max(0.0, noise.trace) / reference_batch, max(0.0, noise.squared_norm)
    if not variance + square:
        return 1.0
    return (variance + square) / (variance * reference_batch / batch + square)


class AdaScale(Policy):
    """A policy that takes its batch sizes from another policy, and multiplies the learning rate by
    AdaScale's gain.

    Until the noise scale is identifiable, the learning rate is that of the other policy. Later the
    gain stays while it is not: a squared gradient that may be 0 would give the largest gain exactly
    where the gain is not known.
    """

    def __init__(self, config: RunConfig, policy: Policy) -> None:
        super().__init__(config)
        self._policy = policy
        self.pass_batches = policy.pass_batches
        self._noise: GradientNoise | None = None
        self._global_batch = config.examples_per_step

    def shares(self, epochs_done: float) -> tuple[Share, ...]:
        shares = self._policy.shares(epochs_done)
        self._global_batch = global_batch(shares)
        return shares

    def rate_factor(self, epochs_done: float) -> float:
        factor = self._policy.rate_factor(epochs_done)
        if self._noise is None:
            return factor
        return factor * gain(self._noise, self._global_batch, self.config.optimizer.reference_batch)

    def observe(self, stats: RoundStats) -> Sequence[Event]:
        if stats.noise is not None and stats.noise.noise_scale is not None:
            self._noise = stats.noise
        return self._policy.observe(stats)

    def state(self) -> dict[str, Any]:
        return {
            "policy": self._policy.state(),
            "noise": None if self._noise is None else vars(self._noise),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self._policy.load_state(state["policy"])
        self._noise = GradientNoise(**state["noise"]) if state["noise"] else None
