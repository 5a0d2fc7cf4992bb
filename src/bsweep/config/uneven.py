"""Formulas by which workers of unequal speed share the work of a round: their local batches and
local steps, in runs and in simulations.

Methods A and C are those of "GPU Performance-Aware Batch Size and Local Step Adjustment for
Efficient Geo-Distributed Training" (Shin et al.).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def shares(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Divide `total` into whole numbers in proportion to `weights`, each at least 1, by the method
    of largest remainders.
    """
    assert total >= len(weights), (total, weights)
    exact = [total * weight / sum(weights) for weight in weights]
    rounded = [max(1, math.floor(share)) for share in exact]
    order = sorted(range(len(rounded)), key=lambda i: exact[i] - rounded[i])
    while sum(rounded) < total:
        rounded[order.pop()] += 1
    while sum(rounded) > total:  # some shares were raised to 1, so the largest shares shrink
        rounded[rounded.index(max(rounded))] -= 1
    return tuple(rounded)


def by_flops(flops: Sequence[float], least: int) -> tuple[int, ...]:
    """Return each worker's local batch or number of local steps (methods A and C of Shin et al.),
    in proportion to the worker's FLOP/s and rounded. The slowest worker gets `least`.
    """
    slowest = min(flops)
    return tuple(round(least * worker / slowest) for worker in flops)


def by_seconds(step_seconds: Sequence[float], every: int) -> tuple[int, ...]:
    """Return each worker's number of local steps, in inverse proportion to the measured seconds of
    the worker's steps and rounded down. The slowest worker makes `every` steps.

    Rounding down is that of Liu et al. (arXiv 2401.09135). At the measured seconds, no worker needs
    longer for its steps than the slowest one, and each idles for less than one of its own steps.
    """
    slowest = max(step_seconds)
    return tuple(math.floor(every * slowest / seconds * (1 + 1e-9)) for seconds in step_seconds)


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


def knee_batch(rates: Mapping[int, float], local_batch: int, knee: float) -> int:
    """Return the smallest local batch, `local_batch` or larger, at which a worker's throughput is
    at least `knee` times its best throughput; the fastest of these batches if none reaches that
    throughput. `rates` has the throughput in examples per second by local batch.

    The `hybrid` allocation uses this batch; Shin et al. leave such an allocation to future work.
    Each device gets a batch that keeps it busy. Local steps are then chosen so that a round takes
    about as long as it would without larger batches. Otherwise larger batches would make exchanges
    rarer.
    """
    enough = [
        b for b, rate in rates.items() if b >= local_batch and rate >= knee * max(rates.values())
    ]
    # Where larger batches are slower, no batch from local_batch on may reach the knee. Then the
    # fastest of them is taken.
    return min(
        enough,
        default=max(
            (b for b in rates if b >= local_batch), key=lambda b: rates[b], default=local_batch
        ),
    )


def least_steps(exchange_seconds: float, step_seconds: float, max_exchange_share: float) -> int:
    """Return the smallest number of local steps, 1 or more, for which the exchange takes at most
    the fraction `max_exchange_share` of a round's time.

    With x seconds per exchange, t per step, H steps and share s: x / (x + H * t) <= s if H >= x *
    (1 - s) / (s * t).
    """
    wanted = exchange_seconds * (1 - max_exchange_share) / (max_exchange_share * step_seconds)
    return max(1, math.ceil(wanted * (1 - 1e-9)))
