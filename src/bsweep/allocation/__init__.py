"""Functions that choose the workers' local batches, their numbers of local steps, or both, for
workers of unequal speed or memory.

The input is a checked point. The card's function in `fill` computes the lists with the pure
functions in `policies` and `bsweep.core.uneven`. It uses what a probe measured (`probes`) or the
nominal values of `devices`. The output is the point with `local_batches`, `local_steps` or both
filled in.

This package measures nothing itself and imports no torch, because it runs in the parent process
before a launch. Changes during training belong to `batching`.
"""

from __future__ import annotations

from bsweep.allocation.policies import drifted, shares
from bsweep.allocation.probes import (
    kept_probe,
    probe_path,
    probed_of,
    probed_of_split,
    read_probe,
    split_table,
    table,
    write_probe,
    write_split_probe,
)
from bsweep.config.card import resolve
from bsweep.config.contradictions import refuse_contradictions
from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError

__all__ = [
    "doubts",
    "drifted",
    "fill_in",
    "kept_probe",
    "probe_path",
    "probed_of",
    "probed_of_split",
    "read_probe",
    "shares",
    "split_table",
    "table",
    "write_probe",
    "write_split_probe",
]


def fill_in(config: RunConfig) -> RunConfig:
    """Return a run's configuration with the lists that its allocation chooses: the workers' local
    batches, their numbers of local steps, both, or none. Lists that the user gave stay as they are.

    Raises:
        ConfigError: If the lists cannot be computed, such as without a probe, or if they contradict
            the rest of the configuration.
    """
    filled: RunConfig = resolve(config.allocation.builds)(config, config.allocation)
    if filled is not config:
        refuse_contradictions(filled)
    return filled


def doubts(config: RunConfig) -> list[str]:
    """Return a warning for each worker that gets the largest batch for which its probe had time;
    empty if the allocation does not choose batches by memory.
    """
    if not config.allocation.fills_memory:
        return []
    try:
        workers = read_probe(config).workers
    except ConfigError:  # no probe is needed if the user gave the batches
        return []
    return [
        (
            f"local batch {batch} of worker {rank} is the largest that its probe had time for: "
            "more may fit"
        )
        for rank, (worker, batch) in enumerate(zip(workers, config.local_batches, strict=True))
        if worker.stopped_by == "seconds" and batch == worker.largest_batch
    ]
