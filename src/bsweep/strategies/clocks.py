"""A measurement of the differences between the workers' clocks."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

NUM_GATHERS = 8


def offsets(gather: Callable[[Tensor], Tensor]) -> Tensor:
    """Return an estimate of the seconds by which each worker's clock is ahead of the first worker's
    clock, float64 (workers,).

    All workers call it together.

    Nobody leaves a gather before all have entered it. That bounds worker i's offset on both sides.
    It is at most worker i's time of leaving less the first worker's time of entering. It is at
    least worker i's time of entering less the first worker's time of leaving. NTP (RFC 5905) has
    such bounds from two messages. The tightest bounds of several gathers count.

    The estimate is the middle of these bounds. Its error is at most the mean of the times that
    worker i and the first worker took for one gather, whichever gather this is.
    """
    stamps = torch.zeros(2, NUM_GATHERS, dtype=torch.float64)
    for number in range(NUM_GATHERS):
        stamps[0, number] = time.monotonic()
        gather(torch.zeros(1, dtype=torch.float64))
        stamps[1, number] = time.monotonic()
    enter, leave = gather(stamps.flatten()).view(-1, 2, NUM_GATHERS).unbind(dim=1)
    lowest, highest = (enter - leave[0]).amax(dim=1), (leave - enter[0]).amin(dim=1)
    return torch.stack([lowest, highest]).mean(dim=0)  # the first worker's offset is 0
