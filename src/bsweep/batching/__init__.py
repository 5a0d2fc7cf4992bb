"""Who decides how much the coming round takes: one file for each policy."""

from __future__ import annotations

from bsweep.batching.base import Policy, Seen
from bsweep.config import ConfigError, OwnBatchingConfig, RunConfig, own, resolve

__all__ = ["Policy", "Seen", "build"]


def build(config: RunConfig) -> Policy:
    """The policy of a run, the same on all workers."""
    policy: Policy = resolve(config.batching.builds)(config)
    return policy


def from_target(config: RunConfig) -> Policy:
    """The user's own: `target(config, **options)`."""
    card = config.batching
    assert isinstance(card, OwnBatchingConfig), card
    with own.blamed("batching", card, "it raised an error"):
        policy = own.call(card, config)
    if not isinstance(policy, Policy):
        returned = type(policy).__name__
        raise ConfigError(f"batching.target={card.target}: it returned {returned}, not a bsweep.batching.Policy.")
    return policy
