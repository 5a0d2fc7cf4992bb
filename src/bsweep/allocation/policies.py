"""The policies as pure functions, named as in the study that they follow.

That is "GPU Performance-Aware Batch Size and Local Step Adjustment for Efficient Geo-Distributed
Training" (Shin et al.): baseline (`uniform`: every worker the same), A, B and C.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bsweep.allocation.probe_file import ProbedWorker


def batch_by_flops(flops: Sequence[float], local_batch: int) -> tuple[int, ...]:
    """A: batches in proportion to nominal FLOP/s; the slowest worker has `local_batch`."""
    return tuple(round(local_batch * worker / min(flops)) for worker in flops)


def batch_by_memory(workers: Sequence[ProbedWorker]) -> tuple[int, ...]:
    """B: the largest batch that fits each worker."""
    return tuple(worker.largest_batch for worker in workers)


def steps_by_flops(flops: Sequence[float], every: int) -> tuple[int, ...]:
    """C: local steps in proportion to nominal FLOP/s; the slowest worker does `every`."""
    return tuple(round(every * worker / min(flops)) for worker in flops)


def by_seconds(step_seconds: Sequence[float], every: int) -> tuple[int, ...]:
    """Local steps by measured seconds per step: the slowest worker does `every`, and nobody takes
    longer than it.

    With Liu et al. (arXiv 2401.09135) these are whole steps, rounded down: a worker idles for less
    than one of its own.
    """
    slowest = max(step_seconds)
    return tuple(math.floor(every * slowest / seconds * (1 + 1e-9)) for seconds in step_seconds)


def drifted(before: Sequence[float], after: Sequence[float], max_drift: float) -> bool:
    """Whether a worker's share of all workers' speed changed by more than the part `max_drift` of
    it.

    Args:
        before: Seconds per step by worker, to which the steps were fitted.
        after: Those measured since.
        max_drift: 0.1 allows a share of 0.5 to become 0.45 or 0.55.
    """
    return any(
        abs(new / old - 1) > max_drift
        for old, new in zip(_speeds(before), _speeds(after), strict=True)
    )


def _speeds(step_seconds: Sequence[float]) -> list[float]:
    """Each worker's part of all steps per second."""
    speeds = [1 / seconds for seconds in step_seconds]
    return [speed / sum(speeds) for speed in speeds]


def steps_by_speed(
    workers: Sequence[ProbedWorker], batches: Sequence[int], every: int
) -> tuple[int, ...]:
    """C with measured speed in place of nominal: local steps that take all workers the same time at
    their batches.
    """
    return by_seconds(
        [worker.step_seconds(batch) for worker, batch in zip(workers, batches, strict=True)], every
    )


def knee_batch(worker: ProbedWorker, local_batch: int, knee: float) -> int:
    """The smallest probed batch, `local_batch` at least, with the part `knee` of this worker's best
    throughput.

    Of `hybrid`, which the study leaves to future work: a batch large enough to keep each device
    busy, then local steps that take the same time, that of a round without it: larger batches do
    not make exchanges rarer.
    """
    rates = {batch.local_batch: batch.local_batch / batch.step_seconds for batch in worker.batches}
    enough = [
        b for b, rate in rates.items() if b >= local_batch and rate >= knee * max(rates.values())
    ]
    # Where larger batches are slower, none from local_batch on may reach the knee: the best of
    # them, then.
    return min(
        enough,
        default=max(
            (b for b in rates if b >= local_batch), key=lambda b: rates[b], default=local_batch
        ),
    )


def least_steps(exchange_seconds: float, step_seconds: float, max_exchange_share: float) -> int:
    """Local steps of a round of which the exchange is `max_exchange_share` at most
    (`network_aware`).

    x / (x + H * t) <= s where H >= x * (1 - s) / (s * t).
    """
    wanted = exchange_seconds * (1 - max_exchange_share) / (max_exchange_share * step_seconds)
    return max(1, math.ceil(wanted * (1 - 1e-9)))


def shares(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """`total` in whole parts in proportion to `weights`, 1 at least, by the method of largest
    remainders.
    """
    assert total >= len(weights), (total, weights)
    exact = [total * weight / sum(weights) for weight in weights]
    parts = [max(1, math.floor(part)) for part in exact]
    order = sorted(range(len(parts)), key=lambda i: exact[i] - parts[i])
    while sum(parts) < total:
        parts[order.pop()] += 1
    while sum(parts) > total:  # 1 was more than some should have: those that have most give it
        parts[parts.index(max(parts))] -= 1
    return tuple(parts)
