"""The passes of all workers of a pipeline in one step, by one clock."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from bsweep.runlog.records import StageTimeline
from bsweep.strategies import clocks
from bsweep.strategies.base import Strategy
from bsweep.strategies.stages import Sampled

_DIGITS = 6  # of seconds


def of_all(
    strategy: Strategy, sample: Sampled | None, num_parts: int
) -> tuple[StageTimeline, ...] | None:
    """Return the passes of each worker in one step, by the clock of the first worker.

    All workers call it together. Hosts have clocks of their own, whose difference
    `bsweep.strategies.clocks` bounds. Clocks whose difference may be 0 count as one: on one host
    they are, and those of two hosts, which count from their starts, never agree.

    Args:
        strategy: The strategy, by which the workers reach one another.
        sample: The passes of this worker; None if it has none.
        num_parts: The number of workers that hold one model. Their ranks follow one another.

    Returns:
        One timeline for each worker, by rank; None if a worker has no passes.
    """
    lowest, highest = clocks.bounds(strategy.gather, time.perf_counter).tolist()
    own = {} if sample is None else sample._asdict()
    every = strategy.gather_json(own)
    if not all(every):
        return None
    known = zip(every, lowest, highest, strict=True)
    shifted = [(one, *_offset(low, high)) for one, low, high in known]
    found: list[StageTimeline] = []
    for first in range(0, len(shifted), num_parts):
        replica = shifted[first : first + num_parts]
        zero = min(one["began"] - ahead for one, ahead, _ in replica)
        found += [_timeline(one, one["began"] - ahead - zero, off) for one, ahead, off in replica]
    return tuple(found)


def _offset(lowest: float, highest: float) -> tuple[float, float]:
    """Return the estimated offset of a clock and the most by which the estimate may be off."""
    if lowest <= 0 <= highest:
        return 0.0, 0.0
    return (lowest + highest) / 2, (highest - lowest) / 2


def _timeline(sample: Mapping[str, Any], began: float, clock_error: float) -> StageTimeline:
    kinds, stages, microbatches, begins, ends, travelled = zip(*sample["passes"], strict=True)
    return StageTimeline(
        began_seconds=round(began, _DIGITS),
        ended_seconds=round(began + sample["seconds"], _DIGITS),
        kinds="".join(kinds),
        stages=stages,
        microbatches=microbatches,
        begin_seconds=tuple(round(began + seconds, _DIGITS) for seconds in begins),
        end_seconds=tuple(round(began + seconds, _DIGITS) for seconds in ends),
        travelled_seconds=tuple(round(seconds, _DIGITS) for seconds in travelled),
        clock_error_seconds=round(clock_error, _DIGITS),
    )
