"""Who decides how much the coming round takes: one file for each policy."""

from __future__ import annotations

from bsweep.batching.adascale import AdaScale
from bsweep.batching.base import Policy, Seen
from bsweep.config import OwnBatchingConfig, RunConfig, own, resolve
from bsweep.numerics.noise_scale import GradientNoise

__all__ = ["GradientNoise", "Policy", "Seen", "build"]


def build(config: RunConfig) -> Policy:
    """The policy of a run, the same on all workers."""
    policy: Policy = resolve(config.batching.builds)(config)
    return AdaScale(config, policy) if config.optimizer.measures_noise else policy


def from_target(config: RunConfig) -> Policy:
    """The user's own: `target(config, **options)`."""
    card = config.batching
    assert isinstance(card, OwnBatchingConfig), card
    policy: Policy = own.made("batching", card, Policy, config)
    return policy
