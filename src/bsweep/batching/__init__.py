"""Policies, which decide how many examples the next round takes; each policy has its own file.

A policy takes what a round has shown (`RoundStats`: losses, gradient noise, seconds of steps). It
returns each worker's share of the next round, and the events that record a change. All workers
decide alike.

A policy must not know the training loop, the model or the strategy. It is given a function to
gather what all workers have to agree on.
"""

from __future__ import annotations

from bsweep.batching.adascale import AdaScale
from bsweep.batching.base import Policy, RoundStats
from bsweep.config import user_code
from bsweep.config.batching import OwnBatchingConfig
from bsweep.config.card import load_object
from bsweep.config.run import RunConfig
from bsweep.numerics.noise_scale import GradientNoise

__all__ = ["GradientNoise", "Policy", "RoundStats", "build"]


def build(config: RunConfig) -> Policy:
    """Return the batching policy of a run. All workers of a run build equal policies."""
    policy: Policy = load_object(config.batching.builds)(config)
    return AdaScale(config, policy) if config.optimizer.measures_noise else policy


def from_target(config: RunConfig) -> Policy:
    """Return the batching policy that the user's own function `target(config, **options)` makes."""
    card = config.batching
    assert isinstance(card, OwnBatchingConfig), card
    policy: Policy = user_code.make("batching", card, Policy, config)
    return policy
