"""Functions that fill a point with the lists that its allocation chooses, one function for each
variant of `allocation`.

The lists are the workers' local batches, their numbers of local steps, or both. A function is
called only if one of its lists is missing.

Methods B and C are those of "GPU Performance-Aware Batch Size and Local Step Adjustment for
Efficient Geo-Distributed Training" (Shin et al.), whose baseline is `uniform`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bsweep.allocation import devices, probes
from bsweep.config import uneven
from bsweep.config.allocation import (
    BatchByFlopsConfig,
    BatchByMemoryConfig,
    BySpeedConfig,
    HybridConfig,
    NetworkAwareConfig,
    StepsByFlopsConfig,
)
from bsweep.config.groups import AllocationConfig
from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError, show


def batch_by_flops(config: RunConfig, card: BatchByFlopsConfig) -> RunConfig:
    flops = _flops(config, card)
    batches = _shared(config, flops) or uneven.by_flops(flops, config.examples_per_pass)
    return replace(config, allocation=replace(card, local_batches=batches))


def batch_by_memory(config: RunConfig, card: BatchByMemoryConfig) -> RunConfig:
    # Method B: the largest batch for which a worker's memory sufficed.
    largest = tuple(worker.largest_batch for worker in probes.read(config).workers)
    batches = _shared(config, largest) or largest
    _refuse_unprobed(config, batches)
    return replace(config, allocation=replace(card, local_batches=batches))


def steps_by_flops(config: RunConfig, card: StepsByFlopsConfig) -> RunConfig:
    steps = uneven.by_flops(_flops(config, card), config.strategy.local_steps)
    return replace(config, allocation=replace(card, local_steps=steps))


def steps_by_speed(config: RunConfig, card: BySpeedConfig) -> RunConfig:
    # Method C with measured instead of nominal speed.
    seconds = _step_seconds(config, config.local_batches)
    steps = uneven.by_seconds(seconds, config.strategy.local_steps)
    return replace(config, allocation=replace(card, local_steps=steps))


def hybrid(config: RunConfig, card: HybridConfig) -> RunConfig:
    workers, least = probes.read(config).workers, config.local_batch or 1
    batches, steps = card.local_batches, card.local_steps
    if batches is None:
        _refuse_unprobed(config, (least,) * len(workers))
        knees = tuple(uneven.knee_batch(worker.rates, least, card.knee) for worker in workers)
        batches = _shared(config, knees) or knees
    if steps is None:
        # A round then lasts about as long as with equal local batches. One that is beyond a
        # worker's largest probed batch counts as the largest.
        seconds, even = _step_seconds(config, batches), config.examples_per_pass
        before = max(worker.step_seconds(min(even, worker.largest_batch)) for worker in workers)
        every = max(1, round(config.strategy.local_steps * before / max(seconds)))
        steps = uneven.by_seconds(seconds, every)
    return replace(config, allocation=replace(card, local_batches=batches, local_steps=steps))


def network_aware(config: RunConfig, card: NetworkAwareConfig) -> RunConfig:
    seconds = _step_seconds(config, config.local_batches)
    exchange_seconds = probes.read(config).exchange_seconds
    every = uneven.least_steps(exchange_seconds, max(seconds), card.max_exchange_share)
    return replace(
        config,
        strategy=config.strategy.with_local_steps(every),
        allocation=replace(card, local_steps=uneven.by_seconds(seconds, every)),
    )


def _shared(config: RunConfig, weights: Sequence[float]) -> tuple[int, ...] | None:
    """Divide the examples of one pass among the workers in proportion to `weights`, and return each
    worker's local batch. Return None if the configuration gives a local batch instead of a global
    one.
    """
    if config.global_batch is None:
        return None
    return uneven.shares(config.global_batch // config.accumulation_steps, weights)


def _step_seconds(config: RunConfig, batches: Sequence[int]) -> list[float]:
    """Return each worker's seconds per step at its local batch, as probed.

    Raises:
        ConfigError: If a batch is larger than the largest that the probe measured.
    """
    _refuse_unprobed(config, batches)
    workers = probes.read(config).workers
    return [worker.step_seconds(batch) for worker, batch in zip(workers, batches, strict=True)]


def _refuse_unprobed(config: RunConfig, batches: Sequence[int]) -> None:
    """Raise ConfigError if a worker's local batch is larger than the largest local batch that the
    probe measured on this worker.
    """
    problems = []
    passes = " or more accumulation_steps" if config.global_batch else ""
    for rank, (worker, batch) in enumerate(zip(probes.read(config).workers, batches, strict=True)):
        if batch > worker.largest_batch:
            why = "has memory for" if worker.stopped_by == "out_of_memory" else "was probed with"
            problems.append(
                f"local batch {batch}: worker {rank} ({worker.host}, {worker.device}) {why} "
                f"{worker.largest_batch} at most, says {probes.path_of(config)}. Use a smaller "
                f"batch{passes}."
            )
    if problems:
        raise ConfigError(*problems)


def _flops(config: RunConfig, card: AllocationConfig) -> list[float]:
    """Return each worker's FLOP/s: nominal for all workers or measured for all, because nominal and
    measured FLOP/s differ widely.
    """
    if card.devices is not None:
        if len(card.devices) != config.num_workers:
            raise ConfigError(
                f"allocation.devices={show(card.devices)} names {len(card.devices)} devices for "
                f"num_workers={config.num_workers}: give one entry for each worker, such as '4 "
                "A30'."
            )
        return [devices.flops(entry) for entry in card.devices]
    workers = probes.read(config).workers
    nominal = [devices.known().get(devices.plain(worker.device)) for worker in workers]
    known = [flops for flops in nominal if flops]
    return known if len(known) == len(workers) else [worker.peak_flops for worker in workers]
