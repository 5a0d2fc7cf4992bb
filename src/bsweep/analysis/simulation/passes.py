"""The forward and backward passes of a pipeline as a graph: in which order each worker computes
them, and when each ends.

Workers take the next pass that is ready, by the priorities of the schedule, and keep no more
activations than the strategy's card says. The order is found once, for passes that all take the
same time; the times of all steps and replicas follow from it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bsweep.analysis.simulation.network import Array

SHARES = {"F": 1 / 3, "B": 2 / 3, "b": 1 / 3, "W": 1 / 3}
"""The share of a stage's pass of each kind: forward, backward, and the backward pass in two parts,
for what was fed in and for the weights.
"""
_PART_SECONDS = {"F": 2, "B": 4, "b": 2, "W": 2}  # whole numbers, so that ties are ties


class Pass(NamedTuple):
    """One pass of one micro-batch through one stage, on one worker of a replica."""

    kind: str
    stage: int
    microbatch: int
    worker: int


@dataclass(frozen=True)
class Graph:
    """The passes of a step, in an order in which each comes after those that it needs.

    If steps do not wait for one another (`is_endless`), micro-batches are whole batches, one for
    each step, and all of them are in the graph.
    """

    passes: tuple[Pass, ...]
    num_stages: int
    num_microbatches: int
    num_workers: int
    is_endless: bool


def graph_of(card: Any, num_workers: int, num_steps: int) -> Graph:
    """Return the passes of a pipeline's step, or of all steps if it does not wait between them.

    Args:
        card: The card of a strategy with stages.
        num_workers: The number of all workers.
        num_steps: The number of steps.
    """
    is_endless = not card.can.lockstep
    number_of = num_steps if is_endless else card.num_microbatches
    parts, stages = card.num_parts(num_workers), card.num_stages(num_workers)
    workers = [card.part_of(stage, num_workers) for stage in range(stages)]
    schedule = getattr(card, "schedule", "1f1b")
    limits = [0] * stages
    for part in range(parts):
        own = [stage for stage in range(stages) if workers[stage] == part]
        most = card.in_flight(part, num_workers)
        for stage, limit in zip(own, np.resize(most, len(own)), strict=True):
            limits[stage] = max(1, int(limit))
    planner = _Planner(workers, number_of, schedule, limits)
    passes = tuple(planner.passes())
    assert len(passes) == stages * number_of * (3 if planner.is_divided else 2)
    return Graph(passes, stages, number_of, parts, is_endless)


class _Planner:
    """The choice of each worker's next pass."""

    def __init__(
        self, workers: list[int], number_of: int, schedule: str, limits: list[int]
    ) -> None:
        self.workers, self.number_of, self.schedule, self.limits = (
            workers, number_of, schedule, limits
        )  # fmt: skip
        self.is_divided = "zero_bubble" in schedule or schedule in ("zbv", "dualpipev")
        self.num_workers = max(workers) + 1
        # The place of each pass in its worker's order, where the schedule lays down all of it.
        self.places: dict[Pass, int] = {}
        if schedule == "interleaved_1f1b":
            for worker in range(self.num_workers):
                self._lay_down(worker)
        self.begun = [0] * self.num_workers
        self.ready: list[list[tuple[Any, Pass]]] = [[] for _ in range(self.num_workers)]
        self.held = [0] * len(limits)  # micro-batches whose activations a stage keeps

    def passes(self) -> Iterator[Pass]:
        """Yield all passes in the order in which they begin, if each takes its usual time."""
        stages = len(self.workers)
        for microbatch in range(self.number_of):
            self._add(Pass("F", 0, microbatch, self.workers[0]))
        busy: list[tuple[int, int, Pass]] = []
        free, now, order = set(range(self.num_workers)), 0, 0
        while True:
            for worker in sorted(free):
                if (found := self._next(worker)) is not None:
                    free.discard(worker)
                    order += 1
                    heapq.heappush(busy, (now + _PART_SECONDS[found.kind], order, found))
                    yield found
            if not busy:
                break
            now = busy[0][0]
            while busy and busy[0][0] == now:
                ended = heapq.heappop(busy)[2]
                free.add(ended.worker)
                self._end(ended, stages)

    def _add(self, one: Pass) -> None:
        heapq.heappush(self.ready[one.worker], (self._rank(one), one))

    def _lay_down(self, worker: int) -> None:
        """Write down the order of one worker's passes (Narayanan et al., arXiv 2104.04473): the
        forward passes of the warm-up, then forward and backward passes in turns.
        """
        parts, per_worker = self.num_workers, len(self.workers) // self.num_workers
        order = [
            (begin, stage, microbatch)
            for begin in range(0, self.number_of, parts)
            for stage in range(per_worker)
            for microbatch in range(begin, min(begin + parts, self.number_of))
        ]
        forward = [Pass("F", s * parts + worker, m, worker) for _, s, m in order]
        backward = [
            Pass("B", (per_worker - 1 - s) * parts + worker, m, worker) for _, s, m in order
        ]
        ahead = min(2 * (parts - 1 - worker) + (per_worker - 1) * parts, len(order))
        turns = [one for pair in zip(forward[ahead:], backward, strict=False) for one in pair]
        passes = [*forward[:ahead], *turns, *backward[len(order) - ahead :]]
        self.places |= {one: place for place, one in enumerate(passes)}

    def _rank(self, one: Pass) -> tuple[int, ...]:
        """Return the priority of a pass; the lowest goes first."""
        if self.places:
            return (self.places[one],)
        parts, last = self.num_workers, len(self.workers) - 1
        kinds = "FB" if self.schedule == "gpipe" else "BbFW"
        stage = one.stage if one.kind == "F" else last - one.stage
        return kinds.index(one.kind), one.microbatch // parts, stage, one.microbatch

    def _next(self, worker: int) -> Pass | None:
        """Return the next pass of a worker that is free, and take it off the list; None if none is
        ready.
        """
        ready, kept = self.ready[worker], []
        found = None
        while ready and found is None:
            rank, one = heapq.heappop(ready)
            is_full = one.kind == "F" and self.held[one.stage] >= self.limits[one.stage]
            is_early = bool(self.places) and rank[0] > self.begun[worker]
            if is_early or (is_full and not self.places):
                kept.append((rank, one))
            else:
                found = one
        for entry in kept:
            heapq.heappush(ready, entry)
        if found is not None and found.kind == "F":
            self.held[found.stage] += 1
        self.begun[worker] += found is not None
        return found

    def _end(self, ended: Pass, stages: int) -> None:
        """Add the passes for which an ended one was all that was missing."""
        kind, stage, microbatch, worker = ended
        back = "b" if self.is_divided else "B"
        if kind == "F":
            following = stage + 1
            after = ("F", following) if following < stages else (back, stage)
            self._add(Pass(after[0], after[1], microbatch, self.workers[after[1]]))
            return
        if kind in ("B", "b") and stage:
            self._add(Pass(back, stage - 1, microbatch, self.workers[stage - 1]))
        if kind == "b":
            self._add(Pass("W", stage, microbatch, worker))
        if kind in ("B", "W"):
            self.held[stage] -= 1


def step_ends(graph: Graph, busy: Array, message_seconds: Array | float) -> Array:
    """Return when each step of each replica ends, in seconds since the first began.

    Args:
        graph: The passes.
        busy: The seconds that each worker would take for the whole model and batch, shape (steps,
            replicas, workers of a replica).
        message_seconds: The seconds of each message, or of a message from each worker to each
            other.

    Returns:
        Shape (steps, replicas).
    """
    num_steps, replicas, _ = busy.shape
    done = np.zeros((num_steps, replicas))
    messages = np.broadcast_to(message_seconds, (graph.num_workers, graph.num_workers))
    free = [np.zeros((1 if graph.is_endless else num_steps, replicas))] * graph.num_workers
    ends: dict[tuple[str, int, int], tuple[Array, int]] = {}
    for one in graph.passes:
        begin = free[one.worker]
        for before in _needed(one, graph.num_stages):
            if before in ends:
                end, worker = ends[before]
                travels = float(messages[worker, one.worker]) if worker != one.worker else 0.0
                begin = np.maximum(begin, end + travels)
        place = slice(one.microbatch, one.microbatch + 1) if graph.is_endless else slice(None)
        of_step = 1 if graph.is_endless else graph.num_microbatches
        seconds = busy[place, :, one.worker] * SHARES[one.kind] / graph.num_stages / of_step
        end = begin + seconds
        free[one.worker] = end
        ends[one[:3]] = end, one.worker
        done[place] = np.maximum(done[place], end)
    if graph.is_endless:
        return np.maximum.accumulate(done, axis=0)
    # All replicas wait for the slowest one between two steps.
    return np.asarray(done.max(axis=1).cumsum()[:, None] + np.zeros((1, replicas)))


def _needed(one: Pass, num_stages: int) -> list[tuple[str, int, int]]:
    """Return the passes, of either kind of backward pass, that must have ended before one."""
    kind, stage, microbatch, _ = one
    if kind == "F":
        return [("F", stage - 1, microbatch)] if stage else []
    if kind == "W":
        return [("b", stage, microbatch)]
    if stage == num_stages - 1:
        return [("F", stage, microbatch)]
    return [(back, stage + 1, microbatch) for back in ("B", "b")]
