"""Functions that choose the workers' local batches, their numbers of local steps, or both, for
workers of unequal speed or memory.

The input is a checked point. The card's function in `fill` computes the lists with the formulas in
`bsweep.config.uneven`. It uses what a probe measured (`probes`) or the nominal values of `devices`.
The output is the point with `local_batches`, `local_steps` or both filled in.

This package measures nothing itself and imports no torch, because it runs in the parent process
before a launch. Changes during training belong to `batching`.
"""

from __future__ import annotations

from bsweep.allocation import probes
from bsweep.config.card import load_object
from bsweep.config.rules import refuse_contradictions
from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError


def fill_in(config: RunConfig) -> RunConfig:
    """Return a run's configuration with the lists that its allocation chooses: the workers' local
    batches, their numbers of local steps, both, or none. Lists that the user gave stay as they are.

    Raises:
        ConfigError: If the lists cannot be computed, such as without a probe, or if they contradict
            the rest of the configuration.
    """
    card = config.allocation
    lacks_batches = card.shares_batches and not card.local_batches
    lacks_steps = card.shares_steps and not card.local_steps
    if not (lacks_batches or lacks_steps):
        return config
    filled: RunConfig = load_object(card.builds)(config, card)
    refuse_contradictions(filled)
    return filled


def warnings(config: RunConfig) -> list[str]:
    """Return a warning for each worker that gets the largest batch for which its probe had time;
    empty if the allocation does not choose batches by memory.
    """
    if not config.allocation.fills_memory:
        return []
    try:
        workers = probes.read(config).workers
    except ConfigError:  # no probe is needed if the user gave the batches
        return []
    return [
        f"local batch {batch} of worker {rank} is the largest that its probe had time for: "
        "more may fit"
        for rank, (worker, batch) in enumerate(zip(workers, config.local_batches, strict=True))
        if worker.stopped_by == "seconds" and batch == worker.largest_batch
    ]
