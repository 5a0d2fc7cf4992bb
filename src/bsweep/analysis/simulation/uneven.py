"""The local batches of simulated workers that differ in speed or memory, as the allocations of runs
share them.
"""

from __future__ import annotations

import numpy as np

from bsweep.analysis.simulation.constants import Constants
from bsweep.analysis.simulation.network import Array
from bsweep.analysis.simulation.words import Way
from bsweep.core import uneven as formulas
from bsweep.core.words import counted


def speeds(of: Constants, num_workers: int) -> Array:
    """Return the speed of each worker, relative to that of the constants."""
    return np.resize(np.array(of.speeds), num_workers)


def batches(way: Way, of: Constants, num_workers: int, mean: float, asked: float | None) -> Array:
    """Return the local batch of each worker.

    Args:
        way: The way, whose allocation shares the examples.
        of: The constants.
        num_workers: The number of workers.
        mean: The mean of the local batches, if workers divide a global batch.
        asked: The local batch that runs are asked for, of which the allocation makes those of the
            workers; None if workers divide a global batch.

    Raises:
        ValueError: If the memory of the workers is not known, or too small.
    """
    if way.allocation == "batch_by_flops":
        weights = speeds(of, num_workers)
        if asked is not None:
            weights = np.array(formulas.by_flops([*weights], round(asked)), np.float64)
    elif way.allocation == "batch_by_memory":
        weights = largest_batches(way, of, num_workers, asked)
    elif way.allocation == "hybrid":
        weights = _knees(way, of, largest_batches(way, of, num_workers, asked), asked or 1)
    else:
        return np.full(num_workers, asked or mean)
    if asked is not None:
        return np.asarray(weights)
    found = np.asarray(mean * weights / weights.mean())
    if of.largest_batches:
        _refuse(found, largest_batches(way, of, num_workers, asked))
    return found


def largest_batches(way: Way, of: Constants, num_workers: int, asked: float | None) -> Array:
    """Return the largest local batch that the memory of each worker holds: as probed, or so that
    the worker with the least memory holds the local batch, and others more in proportion to what
    the model leaves of theirs.
    """
    if of.largest_batches:
        return np.resize(np.array(of.largest_batches, float), num_workers)
    if not of.memories:
        raise ValueError(
            f"allocation={way.allocation} chooses batches by the memory of each worker, which is "
            "not known: give it in GB, as in --memories 80,40,24, or use --machine or --probe."
        )
    memory = np.resize(np.array(of.memories), num_workers)
    held = held_bytes(way, num_workers, of) / 1e9
    left = memory - held
    if left.min() <= 0:
        raise ValueError(
            f"the parameters, the gradients and the state of optimizer={way.optimizer.name} take "
            f"{held:.3g} GB of a worker's {memory.min():g} GB on "
            f"{counted(num_workers, 'worker')}: give more, as in --memories 80,40,24."
        )
    return np.asarray(np.floor((asked or of.local_batch) * left / left.min() * (1 + 1e-9)))


def _knees(way: Way, of: Constants, largest: Array, least: float) -> Array:
    """Return for each worker the smallest local batch from `least` on at which it is nearly as fast
    as at its largest one, of those that a probe measures.
    """
    _refuse(np.full(len(largest), least), largest)
    doublings = 2.0 ** np.arange(np.log2(largest.max()) + 1)
    found = {}
    for most in set(largest):
        tried = np.unique([*doublings[doublings <= most], least, most])
        rates = dict(zip(map(int, tried), tried / step_seconds(of, tried), strict=True))
        found[most] = formulas.knee_batch(rates, round(least), way.allocation_card.knee)
    return np.array([found[most] for most in largest])


def step_seconds(of: Constants, local_batches: Array) -> Array:
    """Return the seconds of a pass with each of several local batches, at the speed of the
    constants.
    """
    draws = of.pass_seconds[:, None] + of.example_seconds[:, None] * local_batches
    return np.asarray(np.median(draws, axis=0))


def held_bytes(way: Way, num_workers: int, of: Constants) -> float:
    """Return the bytes of the parameters, the gradients, the optimizer's state and the strategy's
    copies of a worker.
    """
    parameters, gradients, state = way.card.parts_held(num_workers)
    # What DeepSpeed holds beside is of a worker's own part, as the optimizer's state is.
    beside = way.card.vectors_held + (way.optimizer.vectors_of_state or 0)
    return (1 / parameters + 1 / gradients + beside / state) * of.parameter_bytes


def _refuse(wanted: Array, largest: Array) -> None:
    for number, (batch, most) in enumerate(zip(wanted, largest, strict=True)):
        if batch > most:
            raise ValueError(
                f"local batch {batch:g} of worker {number} is larger than the largest that its "
                f"memory was found to hold, {most:g}. Use a smaller batch, or more workers."
            )
