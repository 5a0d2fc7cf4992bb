"""Functions that choose the local batch and the number of local steps of each worker, for workers
of unequal speed or memory.

The input is a checked point. The card's function in `fill` computes the lists with the pure
functions in `policies`. It uses what a probe measured (`probe_file`) or the nominal values of
`devices`. The output is the same point with `local_batches` and `local_steps` filled in.

This package measures nothing itself and imports no torch, because it runs in the parent process
before a launch. Changes during training belong to `batching`.
"""

from __future__ import annotations

from bsweep.allocation.devices import device
from bsweep.allocation.policies import (
    batch_by_flops,
    batch_by_memory,
    by_seconds,
    drifted,
    knee_batch,
    least_steps,
    shares,
    steps_by_flops,
    steps_by_speed,
)
from bsweep.allocation.probe_file import (
    PROBE_SCHEMA,
    Probe,
    ProbedBatch,
    ProbedWorker,
    probe_path,
    probed_of,
    read_probe,
    table,
)
from bsweep.config.card import resolve
from bsweep.config.contradictions import refuse_contradictions
from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError

__all__ = [
    "PROBE_SCHEMA",
    "Probe",
    "ProbedBatch",
    "ProbedWorker",
    "batch_by_flops",
    "batch_by_memory",
    "by_seconds",
    "device",
    "doubts",
    "drifted",
    "fill_in",
    "knee_batch",
    "least_steps",
    "probe_path",
    "probed_of",
    "read_probe",
    "shares",
    "steps_by_flops",
    "steps_by_speed",
    "table",
]


def fill_in(config: RunConfig) -> RunConfig:
    """Return a run's configuration with the local batch and the number of local steps that its
    allocation chooses for each worker. Lists that the user gave stay as they are.

    Raises:
        ConfigError: If a probe is missing or belongs to another configuration, a device is unknown,
            or a batch does not fit.
    """
    filled: RunConfig = resolve(config.allocation.builds)(config, config.allocation)
    if filled is not config:
        refuse_contradictions(filled)
    return filled


def doubts(config: RunConfig) -> list[str]:
    """Return a warning for each worker whose local batch may be smaller than its memory allows,
    because the probe ran out of time.
    """
    if not config.allocation.fills_memory:
        return []
    try:
        workers = read_probe(config).workers
    except ConfigError:  # no probe is needed if the user gave the batches
        return []
    return [
        f"local batch {batch} of worker {rank} is the largest that its probe had time for: more "
        "may fit"
        for rank, (worker, batch) in enumerate(zip(workers, config.local_batches, strict=True))
        if worker.stopped_by == "seconds" and batch == worker.largest_batch
    ]
