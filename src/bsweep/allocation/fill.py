"""Functions that fill a point with the lists that its allocation chooses, one function for each
variant of `allocation`.

The lists are the workers' local batches, their numbers of local steps, or both. `uniform` chooses
none. Lists that the user gave stay as they are.

Methods B and C are those of "GPU Performance-Aware Batch Size and Local Step Adjustment for
Efficient Geo-Distributed Training" (Shin et al.), whose baseline is `uniform`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bsweep.allocation import devices, policies
from bsweep.allocation.probes import probe_path, read_probe
from bsweep.config.allocation import (
    BatchByFlopsConfig,
    BatchByMemoryConfig,
    BySpeedConfig,
    HybridConfig,
    NetworkAwareConfig,
    StepsByFlopsConfig,
    UniformConfig,
)
from bsweep.config.groups import AllocationConfig
from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError, show
from bsweep.core import uneven


def uniform(config: RunConfig, a: UniformConfig) -> RunConfig:
    return config


def batch_by_flops(config: RunConfig, a: BatchByFlopsConfig) -> RunConfig:
    if a.local_batches:
        return config
    flops = _flops(config, a)
    batches = _shared(config, flops) or uneven.batch_by_flops(flops, config.examples_per_pass)
    return replace(config, allocation=replace(a, local_batches=batches))


def batch_by_memory(config: RunConfig, a: BatchByMemoryConfig) -> RunConfig:
    if a.local_batches:
        return config
    # Method B: the largest batch for which a worker's memory sufficed.
    largest = tuple(worker.largest_batch for worker in read_probe(config).workers)
    batches = _shared(config, largest) or largest
    _refuse_unprobed(config, batches)
    return replace(config, allocation=replace(a, local_batches=batches))


def steps_by_flops(config: RunConfig, a: StepsByFlopsConfig) -> RunConfig:
    steps = a.local_steps or uneven.steps_by_flops(_flops(config, a), config.strategy.local_steps)
    return replace(config, allocation=replace(a, local_steps=steps))


def steps_by_speed(config: RunConfig, a: BySpeedConfig) -> RunConfig:
    steps = a.local_steps or _steps(config, config.local_batches, config.strategy.local_steps)
    return replace(config, allocation=replace(a, local_steps=steps))


def hybrid(config: RunConfig, a: HybridConfig) -> RunConfig:
    batches = a.local_batches
    if batches is None:
        workers = read_probe(config).workers
        _refuse_unprobed(config, (config.local_batch or 1,) * config.num_workers)
        knees = [policies.knee_batch(worker, config.local_batch or 1, a.knee) for worker in workers]
        batches = _shared(config, knees) or tuple(knees)
    steps = a.local_steps or _steps(config, batches, _every_at(config, batches))
    return replace(config, allocation=replace(a, local_batches=batches, local_steps=steps))


def network_aware(config: RunConfig, a: NetworkAwareConfig) -> RunConfig:
    if a.local_steps:
        return config
    every = _network_steps(config, a)
    steps = _steps(config, config.local_batches, every)
    return replace(
        config,
        strategy=config.strategy.with_local_steps(every),
        allocation=replace(a, local_steps=steps),
    )


def _every_at(config: RunConfig, batches: Sequence[int]) -> int:
    """Return the number of local steps, 1 or more, with which a round at the local batches
    `batches` lasts about as long as a round with equal local batches.

    A round lasts as long as its slowest worker computes. An equal batch beyond a worker's largest
    probed one counts as the largest one.
    """
    workers, even = read_probe(config).workers, config.examples_per_pass
    _refuse_unprobed(config, batches)
    before, after = (
        max(worker.step_seconds(batch) for worker, batch in zip(workers, every, strict=True))
        for every in ([min(even, worker.largest_batch) for worker in workers], batches)
    )
    return max(1, round(config.strategy.local_steps * before / after))


def _shared(config: RunConfig, weights: Sequence[float]) -> tuple[int, ...] | None:
    """Divide the examples of one pass among the workers in proportion to `weights`, and return each
    worker's local batch. Return None if the configuration gives a local batch instead of a global
    one.
    """
    if config.global_batch is None:
        return None
    return policies.shares(config.global_batch // config.accumulation_steps, weights)


def _steps(config: RunConfig, batches: Sequence[int], every: int) -> tuple[int, ...]:
    """Return each worker's number of local steps, so that all workers take about the same time for
    a round with their local batches. This is method C with measured instead of nominal speed.
    """
    workers = read_probe(config).workers
    _refuse_unprobed(config, batches)
    seconds = [worker.step_seconds(batch) for worker, batch in zip(workers, batches, strict=True)]
    return uneven.by_seconds(seconds, every)


def _network_steps(config: RunConfig, a: NetworkAwareConfig) -> int:
    probe = read_probe(config)
    _refuse_unprobed(config, config.local_batches)
    slowest = max(
        w.step_seconds(batch) for w, batch in zip(probe.workers, config.local_batches, strict=True)
    )
    return uneven.least_steps(probe.exchange_seconds, slowest, a.max_exchange_share)


def _refuse_unprobed(config: RunConfig, batches: Sequence[int]) -> None:
    """Raise ConfigError if a worker's local batch is larger than the largest local batch that the
    probe measured on this worker.
    """
    problems = []
    passes = " or more accumulation_steps" if config.global_batch else ""
    for rank, (worker, batch) in enumerate(zip(read_probe(config).workers, batches, strict=True)):
        if batch > worker.largest_batch:
            why = "has memory for" if worker.stopped_by == "out_of_memory" else "was probed with"
            problems.append(
                f"local batch {batch}: worker {rank} ({worker.host}, {worker.device}) {why} "
                f"{worker.largest_batch} at most, says {probe_path(config)}. Use a smaller "
                f"batch{passes}."
            )
    if problems:
        raise ConfigError(*problems)


def _flops(config: RunConfig, a: AllocationConfig) -> list[float]:
    """Return each worker's FLOP/s: nominal for all workers or measured for all, because nominal and
    measured FLOP/s differ widely.
    """
    if a.devices is not None:
        if len(a.devices) != config.num_workers:
            raise ConfigError(
                f"allocation.devices={show(a.devices)} names {len(a.devices)} devices for "
                f"num_workers={config.num_workers}: give one entry for each worker, such as '4 "
                "A30'."
            )
        return [devices.device(entry).flops for entry in a.devices]
    workers = read_probe(config).workers
    known = [devices.known().get(devices.plain(worker.device)) for worker in workers]
    if all(known):
        return [one.flops for one in known if one]
    return [worker.peak_flops for worker in workers]
