"""Simulated parameter servers: what share of a model each one holds, and workers that do not wait
for one another.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from bsweep.analysis.simulation.constants import Constants
from bsweep.analysis.simulation.network import Array
from bsweep.config.parameter_server import ParameterServerConfig


def shares(card: ParameterServerConfig, num_servers: int, constants: Constants) -> Array:
    """Return the share of the parameters on each server, by the card's sharding.

    Whole layers go, the largest first, to the server that has the least so far. Without the sizes
    of layers, the parameters are taken as divided evenly.
    """
    layers = np.array(constants.layer_shares)
    loads = np.zeros(num_servers)
    if card.sharding == "hashed_chunks":
        chunks = max(1, round(constants.parameter_bytes / card.chunk_bytes))
        places = np.random.default_rng(0).integers(0, num_servers, chunks)
        return np.bincount(places, minlength=num_servers) / chunks
    if card.sharding == "memory" or not len(layers):
        return np.full(num_servers, 1 / num_servers)
    if card.sharding == "layer_round_robin":
        np.add.at(loads, np.arange(len(layers)) % num_servers, layers)
    else:
        for size in sorted(layers, reverse=True):
            loads[loads.argmin()] += size
    return np.asarray(loads / loads.sum())


@dataclass(frozen=True)
class PushSeconds:
    """The seconds that one push takes, and its answer as well: on the link of the fullest server,
    which serves one worker after another, on the worker's own link, and on the way.
    """

    server: float
    worker: float
    latency: float


def asynchronous(busy: Array, push: PushSeconds, most_lead: int) -> Array:
    """Simulate workers that push to parameter servers and go on with the answer, and return the
    mean time at which workers ended each step.

    Every push queues at the fullest server's link, and every answer at its other direction. The
    other servers end earlier, because the same pushes come to them and each takes less time.

    Args:
        busy: The seconds that each worker computes, shape (steps, workers).
        push: The seconds of a push.
        most_lead: By how many steps a worker may be ahead of the slowest one.
    """
    state = _State(simpy.Environment(), busy, push, most_lead)
    work = _free_worker if most_lead >= len(busy) else _bound_worker
    for worker in range(busy.shape[1]):
        state.environment.process(work(state, busy[:, worker].tolist()))
    state.environment.run()
    return np.asarray(np.array(state.ends) / busy.shape[1])


@dataclass(eq=False)
class _State:
    environment: simpy.Environment
    busy: Array
    push: PushSeconds
    most_lead: int

    def __post_init__(self) -> None:
        num_steps = len(self.busy)
        self.ends = [0.0] * num_steps
        self.in_free_at = self.out_free_at = 0.0
        self.ended = [0] * (num_steps + 1)  # workers that have ended each step
        self.slowest = 0  # steps that all workers have ended
        self.waiting: dict[int, simpy.Event] = {}  # by the steps that all must have ended

    def end_step(self, step: int) -> None:
        """Count a worker that has ended a step, and wake those that waited for the last one."""
        self.ends[step] += self.environment.now
        self.ended[step] += 1
        if self.ended[step] == self.busy.shape[1]:
            self.slowest = step + 1
            if self.slowest in self.waiting:
                self.waiting.pop(self.slowest).succeed()

    def answered_at(self, begin: float) -> float:
        """Return when the answer to a push that begins now has arrived."""
        push = self.push
        self.in_free_at = max(begin, self.in_free_at) + push.server
        pushed = max(self.in_free_at, begin + push.worker) + push.latency
        self.out_free_at = max(pushed, self.out_free_at) + push.server
        return max(self.out_free_at, pushed + push.worker) + push.latency


def _free_worker(state: _State, busy: list[float]) -> Generator[simpy.Event, Any, None]:
    """Make the steps of a worker that waits for none of the others."""
    environment, answered = state.environment, 0.0
    for step, seconds in enumerate(busy):
        yield environment.timeout(answered + seconds - environment.now)
        answered = state.answered_at(environment.now)
        state.ends[step] += answered


def _bound_worker(state: _State, busy: list[float]) -> Generator[simpy.Event, Any, None]:
    """Make the steps of a worker that may lead the slowest one by some steps only."""
    environment = state.environment
    for step, seconds in enumerate(busy):
        if step - state.slowest > state.most_lead:
            yield state.waiting.setdefault(step - state.most_lead, environment.event())
        yield environment.timeout(seconds)
        yield environment.timeout(state.answered_at(environment.now) - environment.now)
        state.end_step(step)
