"""Policies that decide how much the coming round takes: one file for each.

What a round has shown comes in (`Seen`: losses, gradient noise, seconds of steps). What each worker
takes of the next round goes out, with the events that say so; all workers decide alike.

A policy must not know the loop, the model or the strategy: what all workers have to agree on it
gathers by the function that it is given. So the same policy can be replayed over records.
"""

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
