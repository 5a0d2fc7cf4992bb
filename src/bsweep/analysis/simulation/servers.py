"""Simulated parameter servers: what share of a model each one holds, and workers that do not wait
for one another.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bsweep.analysis.simulation.constants import Constants
from bsweep.analysis.simulation.network import Array, Network, Numbers, ToAll
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


class PushSeconds(NamedTuple):
    """The seconds that one push takes, and its answer as well: on the link of the fullest server,
    which serves one worker after another, on the worker's own link, and on the way.
    """

    server: float
    worker: float
    latency: float


def pushes(workers: int, servers: Numbers, num_bytes: float, shares: Array) -> ToAll:
    """Return the messages of workers that each send a vector to parameter servers at one time.

    Args:
        workers: The number of workers.
        servers: The place of each server. A server beside a worker has that worker's number.
        num_bytes: The bytes of the vector.
        shares: The share of the vector on each server.
    """
    number_of = max(workers, int(servers.max()) + 1)
    sizes = np.full(workers, num_bytes)
    return ToAll(number_of, workers, np.arange(workers), servers, sizes, shares)


def push_seconds(messages: ToAll, network: Network) -> PushSeconds:
    """Return what one worker's push takes on a network, from the pushes of all workers at once."""
    number_of = len(messages.sources)
    latency, alone = (
        max(
            network.seconds(replace(messages, sources=messages.sources[[one]], sizes=sizes))
            for one in (0, number_of - 1)
        )
        for sizes in (np.array([1e-6]), messages.sizes[:1])
    )
    # A server takes all pushes one after another.
    latency_of_all = network.seconds(replace(messages, sizes=np.full(number_of, 1e-6)))
    together = (network.seconds(messages) - latency_of_all) / number_of
    return PushSeconds(together, alone - latency, latency)


def asynchronous(busy: Array, push: PushSeconds, most_lead: int) -> Array:
    """Simulate workers that push to parameter servers and go on with the answer, and return the
    time at which each worker ended each step, shape (steps, workers).

    Every push queues at the fullest server's link, and every answer at its other direction. The
    other servers end earlier, because the same pushes come to them and each takes less time. So
    answers come in the order of pushes, and one event for each worker and step is enough. A heap of
    them takes a fifth of the time that SimPy takes for thousands of workers.

    Args:
        busy: The seconds that each worker computes, shape (steps, workers).
        push: The seconds of a push.
        most_lead: By how many steps a worker may be ahead of the slowest one.
    """
    num_steps, num_workers = busy.shape
    seconds = busy.T.tolist()
    pushes = [(of_worker[0], worker) for worker, of_worker in enumerate(seconds)]
    heapq.heapify(pushes)
    steps = [0] * num_workers
    working = [num_workers] * num_steps  # workers that have not ended each step
    waiting: dict[int, list[int]] = {}  # by the steps that all must have ended
    ends = np.empty(busy.shape)
    slowest, in_free_at, out_free_at = 0, 0.0, 0.0
    while pushes:
        now, worker = heapq.heappop(pushes)
        in_free_at = max(now, in_free_at) + push.server
        pushed = max(in_free_at, now + push.worker) + push.latency
        out_free_at = max(pushed, out_free_at) + push.server
        answered = max(out_free_at, pushed + push.worker) + push.latency
        step = steps[worker]
        ends[step, worker] = answered
        steps[worker] = step + 1
        going_on = [worker]
        working[step] -= 1
        if not working[step]:
            slowest = step + 1
            going_on += waiting.pop(slowest, [])
        for one in going_on:
            if steps[one] - most_lead > slowest:
                waiting.setdefault(steps[one] - most_lead, []).append(one)
            elif steps[one] < num_steps:
                heapq.heappush(pushes, (answered + seconds[one][steps[one]], one))
    return ends
