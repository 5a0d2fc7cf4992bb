"""The forward and backward passes of a pipeline: in which order its workers compute them, and how
long a step takes.

Workers take the next pass that is ready, by the priorities of the schedule, and keep no more
activations than the strategy's card says. The order is found once, for passes that all take the
same time. The times of all steps and replicas follow from it: a pass begins when its worker is
free and what it needs has arrived.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from bsweep.analysis.simulation.network import Array


class Pass(NamedTuple):
    """One pass of one micro-batch through one stage: `F` is forward and `B` backward. Where the
    backward pass is divided, `B` is for what was fed in, and `W` for the weights.
    """

    kind: str
    stage: int
    microbatch: int


class Stages(NamedTuple):
    """The worker of a replica that holds each stage, how many micro-batches' activations it keeps
    for the stage, and the name of the schedule.
    """

    workers: tuple[int, ...]
    limits: tuple[int, ...]
    schedule: str

    @property
    def pass_seconds(self) -> Mapping[str, int]:
        """The seconds of each kind of pass, if all of a micro-batch take a stage six seconds."""
        is_divided = "zero_bubble" in self.schedule or self.schedule in ("zbv", "dualpipev")
        return {"F": 2, "B": 2, "W": 2} if is_divided else {"F": 2, "B": 4}


def stages_of(card: Any, num_workers: int) -> Stages:
    """Return the stages of a replica, by the card of a strategy and the number of all workers."""
    workers = [card.part_of(stage, num_workers) for stage in range(card.num_stages(num_workers))]
    limits = []
    for stage, worker in enumerate(workers):
        in_flight = card.in_flight(worker, num_workers)
        place = workers[:stage].count(worker)  # among the stages of the worker
        limits.append(max(1, in_flight[place % len(in_flight)]))
    return Stages(tuple(workers), tuple(limits), getattr(card, "schedule", "1f1b"))


@functools.cache
def order_of(stages: Stages, num_microbatches: int) -> Mapping[Pass, list[Pass]]:
    """Return all passes of a replica in the order in which they begin, if each takes its usual
    time, each with those that must have ended before.
    """
    workers, seconds = stages.workers, stages.pass_seconds
    last, parts = len(workers) - 1, max(workers) + 1
    kinds = "FB" if stages.schedule == "gpipe" else "BFW"  # the first goes first
    needed = _needed(stages, num_microbatches)
    # A stage takes micro-batches in their order.
    following = {(kind, stage): 0 for kind in seconds for stage in range(len(workers))}
    free, ends = [0] * parts, dict[Pass, int]()
    while len(ends) < len(needed):
        ready = []
        for (kind, stage), microbatch in following.items():
            wanted = Pass(kind, stage, microbatch)
            if microbatch < num_microbatches and all(other in ends for other in needed[wanted]):
                begin = max([free[workers[stage]], *(ends[other] for other in needed[wanted])])
                depth = stage if kind == "F" else last - stage
                ready.append((begin, kinds.index(kind), microbatch // parts, depth, wanted))
        begin, *_, chosen = min(ready)
        free[workers[chosen.stage]] = ends[chosen] = begin + seconds[chosen.kind]
        following[chosen[:2]] += 1
    return {chosen: needed[chosen] for chosen in ends}


def _needed(stages: Stages, num_microbatches: int) -> dict[Pass, list[Pass]]:
    """Return for each pass of a replica those that must have ended before it begins."""
    last, needed = len(stages.workers) - 1, dict[Pass, list[Pass]]()
    final = [*stages.pass_seconds][-1]
    for stage in range(last + 1):
        for microbatch in range(num_microbatches):
            forward, backward = (Pass(kind, stage, microbatch) for kind in "FB")
            needed[forward] = [Pass("F", stage - 1, microbatch)] if stage else []
            needed[backward] = [Pass("B", stage + 1, microbatch) if stage < last else forward]
            if final == "W":
                needed[Pass("W", stage, microbatch)] = [backward]
            full = microbatch - stages.limits[stage]  # whose activations must be gone
            if full >= 0 and stages.schedule != "interleaved_1f1b":
                needed[forward].append(Pass(final, stage, full))
    if stages.schedule == "interleaved_1f1b":
        for worker in range(max(stages.workers) + 1):
            for earlier, later in pairwise(_interleaved(stages, num_microbatches, worker)):
                needed[later].append(earlier)
    return needed


def _interleaved(stages: Stages, num_microbatches: int, worker: int) -> Iterator[Pass]:
    """Yield one worker's passes in their order (Narayanan et al., arXiv 2104.04473): the forward
    passes of the warm-up, then forward and backward passes in turns.
    """
    parts = max(stages.workers) + 1
    own_stages = range(worker, len(stages.workers), parts)
    forward, backward = (
        [
            Pass(kind, stage, microbatch)
            for begin in range(0, num_microbatches, parts)
            for stage in kind_stages
            for microbatch in range(begin, min(begin + parts, num_microbatches))
        ]
        for kind, kind_stages in (("F", own_stages), ("B", own_stages[::-1]))
    )
    ahead = min(2 * (parts - 1 - worker) + (len(own_stages) - 1) * parts, len(forward))
    yield from forward[:ahead]
    for place, wanted in enumerate(backward):
        yield from forward[ahead + place : ahead + place + 1]
        yield wanted


def step_seconds(
    stages: Stages, busy: Array, message_seconds: Array, num_microbatches: int | None
) -> Array:
    """Return how long each step takes each replica.

    Args:
        stages: The stages of a replica.
        busy: The seconds that each worker would take for the whole model and batch, shape (steps,
            replicas, workers of a replica).
        message_seconds: The seconds of a message from each worker to each other.
        num_microbatches: The micro-batches of a step. None if steps do not wait for one another:
            then a step is one micro-batch, and all steps are in the pipeline together.

    Returns:
        The seconds, shape (steps, replicas).
    """
    workers, is_endless = stages.workers, num_microbatches is None
    number = num_microbatches or len(busy)
    free: list[Any] = [0.0] * busy.shape[2]
    ends: dict[Pass, Array] = {}
    for wanted, needed in order_of(stages, number).items():
        worker = workers[wanted.stage]
        begin = free[worker]
        for other in needed:
            arrives = ends[other] + message_seconds[workers[other.stage], worker]
            begin = np.maximum(begin, arrives)
        whole = busy[wanted.microbatch, :, worker] if is_endless else busy[..., worker] / number
        share = stages.pass_seconds[wanted.kind] / 6 / len(workers)
        free[worker] = ends[wanted] = begin + whole * share
    if is_endless:
        finished = [ends[Pass("B", 0, step)] for step in range(number)]
        return np.diff(finished, axis=0, prepend=0.0)
    return np.asarray(np.max(free, axis=0))
