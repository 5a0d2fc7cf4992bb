"""The clocks of several hosts, compared."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

NUM_GATHERS = 8


def offsets(
    gather: Callable[[Tensor], Tensor], clock: Callable[[], float] = time.monotonic
) -> Tensor:
    """Seconds by which each worker's clock is ahead of the first one's, float64 (workers,): of
    those that are left.

    All call it together. Nobody leaves a gather before all have entered it. So worker i's offset is
    at most the time on its clock when it leaves less that on the first one's when it enters, and at
    least the time when it enters less the first one's when it leaves: the two messages of NTP (RFC
    5905). The tightest bounds of several gathers count; the error is less than half the time that
    the fastest gather took.
    """
    stamps = torch.zeros(2, NUM_GATHERS, dtype=torch.float64)
    for number in range(NUM_GATHERS):
        stamps[0, number] = clock()
        gather(torch.zeros(1, dtype=torch.float64))
        stamps[1, number] = clock()
    enter, leave = gather(stamps.flatten()).view(-1, 2, NUM_GATHERS).unbind(dim=1)
    highest = (leave - enter[0]).amin(dim=1)
    lowest = (enter - leave[0]).amax(dim=1)
    return (highest + lowest) / 2  # 0 of the first one
