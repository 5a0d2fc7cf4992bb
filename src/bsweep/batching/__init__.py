"""Who decides how much the coming round takes: one file for each policy."""

from __future__ import annotations

from bsweep.batching.base import Policy, Seen
from bsweep.batching.drift import FollowDrift
from bsweep.batching.fixed import Fixed
from bsweep.config import AdaptiveConfig, RunConfig

__all__ = ["Policy", "Seen", "build"]


def build(config: RunConfig) -> Policy:
    """The policy of a run, the same on all workers."""
    follows = isinstance(config.allocation, AdaptiveConfig) and config.allocation.adapt_every
    return FollowDrift(config) if follows else Fixed(config)
