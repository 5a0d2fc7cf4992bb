"""How much each of several uneven workers computes: local batches and local steps by worker.

A checked point comes in. A card's function in `fill` gives the run with its lists, by the pure
functions in `policies`, from what a probe found (`probe_file`) or what `devices` are said to do.
The same point goes out, with `local_batches` and `local_steps` filled in.

It measures nothing itself and loads no torch: it runs in the parent process, before a launch. What
changes while a run trains belongs to `batching`.
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
from bsweep.config import ConfigError, RunConfig, refuse_contradictions, resolve

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
    """The run with the batches and steps by worker that its policy chooses; lists that are given
    stay as they are.

    Raises:
        ConfigError: a probe is missing or of something else, a device is unknown, or a batch does
            not fit.
    """
    filled: RunConfig = resolve(config.allocation.builds)(config, config.allocation)
    if filled is not config:
        refuse_contradictions(filled)
    return filled


def doubts(config: RunConfig) -> list[str]:
    """What the run's allocation goes by though its probe could not tell."""
    if not config.allocation.fills_memory:
        return []
    try:
        workers = read_probe(config).workers
    except ConfigError:  # the batches were given
        return []
    return [
        f"local batch {batch} of worker {rank} is the largest that its probe had time for: more "
        "may fit"
        for rank, (worker, batch) in enumerate(zip(workers, config.local_batches, strict=True))
        if worker.stopped_by == "seconds" and batch == worker.largest_batch
    ]
