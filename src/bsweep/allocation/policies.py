"""Functions of the allocations that compute local batches and local steps from what a probe
measured of the workers. Formulas that simulations share are in `bsweep.core.uneven`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bsweep.core import uneven
from bsweep.runlog.probe_file import ProbedWorker


def drifted(before: Sequence[float], after: Sequence[float], max_drift: float) -> bool:
    """Return True if any worker's share of all workers' summed speed has changed by more than the
    fraction `max_drift` of that share.

    Args:
        before: Seconds per step by worker that suit the present local steps, in any unit.
        after: Seconds per step by worker, as measured with these local steps.
        max_drift: The largest relative change. With 0.1 a share of 0.5 may become 0.45 or 0.55.
    """
    return any(
        abs(new / old - 1) > max_drift
        for old, new in zip(_speeds(before), _speeds(after), strict=True)
    )


def _speeds(step_seconds: Sequence[float]) -> list[float]:
    """Return each worker's speed in steps per second, divided by the sum of all workers' speeds."""
    speeds = [1 / seconds for seconds in step_seconds]
    return [speed / sum(speeds) for speed in speeds]


def knee_batch(worker: ProbedWorker, local_batch: int, knee: float) -> int:
    """Return the smallest probed local batch at which a worker is nearly as fast as at its best;
    see `bsweep.core.uneven.knee_batch`.
    """
    rates = {batch.local_batch: batch.local_batch / batch.step_seconds for batch in worker.batches}
    return uneven.knee_batch(rates, local_batch, knee)


def shares(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Divide `total` into whole numbers in proportion to `weights`, each at least 1, by the method
    of largest remainders.
    """
    assert total >= len(weights), (total, weights)
    exact = [total * weight / sum(weights) for weight in weights]
    parts = [max(1, math.floor(part)) for part in exact]
    order = sorted(range(len(parts)), key=lambda i: exact[i] - parts[i])
    while sum(parts) < total:
        parts[order.pop()] += 1
    while sum(parts) > total:  # some parts were raised to 1, so the largest parts shrink
        parts[parts.index(max(parts))] -= 1
    return tuple(parts)
