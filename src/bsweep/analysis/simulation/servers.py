"""Simulated parameter servers: what share of a model each one holds, and workers that do not wait
for one another.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bsweep.analysis.simulation.constants import Constants
from bsweep.analysis.simulation.network import Array, Network, Numbers, Round
from bsweep.config.parameter_server import ParameterServerConfig


def shares(card: ParameterServerConfig, num_servers: int, constants: Constants) -> Array:
    """Return the share of the parameters on each server, by the card's sharding. Without the sizes
    of layers, the parameters are taken as divided evenly.
    """
    layers = constants.layer_shares
    if card.sharding == "hashed_chunks":
        chunks = max(1, round(constants.parameter_bytes / card.chunk_bytes))
        places = np.random.default_rng(0).integers(0, num_servers, chunks)
        return np.bincount(places, minlength=num_servers) / chunks
    if not card.holds_layers or not layers:
        return np.full(num_servers, 1 / num_servers)
    loads = np.bincount(card.servers_of_layers(layers, num_servers), layers, num_servers)
    return np.asarray(loads / loads.sum())


class PushSeconds(NamedTuple):
    """The seconds that one push takes, and its answer as well: on the link of the fullest server,
    which serves one worker after another, on the worker's own link, and on the way.
    """

    server: float
    worker: float
    latency: float


def pushes(num_workers: int, places: Numbers, num_bytes: float, shares: Array) -> Round:
    """Return the messages of workers that each send a vector to parameter servers at one time.

    Args:
        num_workers: The number of workers.
        places: The place of each server. A server beside a worker has that worker's number.
        num_bytes: The bytes of the vector.
        shares: The share of the vector on each server.
    """
    number, workers = max(num_workers, int(places.max()) + 1), np.arange(num_workers)
    sizes = np.full(num_workers, num_bytes)
    return Round(number, workers, places, sizes, shares, number - num_workers)


def push_seconds(messages: Round, network: Network) -> PushSeconds:
    """Return what one worker's push takes on a network, from the pushes of all workers at once."""
    count, nothing = len(messages.sources), 1e-6  # bytes
    latency, alone = (
        max(
            network.seconds([replace(messages, sources=np.array([worker]), sizes=np.array([size]))])
            for worker in (0, count - 1)
        )
        for size in (nothing, messages.sizes[0])
    )
    # A server takes all pushes one after another.
    latency_of_all = network.seconds([replace(messages, sizes=np.full(count, nothing))])
    together = (network.seconds([messages]) - latency_of_all) / count
    return PushSeconds(together, alone - latency, latency)


def asynchronous(busy: Array, push: PushSeconds, most_lead: int) -> Array:
    """Simulate workers that push to parameter servers and go on with the answer, and return the
    time at which each worker ended each step, shape (steps, workers).

    Every push queues at the fullest server's link, and every answer at its other direction. The
    other servers end earlier, because the same pushes come to them and each takes less time. So
    answers come in the order of pushes.

    Args:
        busy: The seconds that each worker computes, shape (steps, workers).
        push: The seconds of a push.
        most_lead: By how many steps a worker may be ahead of the slowest one.
    """
    num_steps, num_workers = busy.shape
    seconds = busy.T.tolist()
    queue = [(own_seconds[0], worker) for worker, own_seconds in enumerate(seconds)]
    heapq.heapify(queue)
    steps = [0] * num_workers
    unfinished = [num_workers] * num_steps  # workers that have not ended each step
    waiting: list[int] = []  # workers that are too far ahead
    ends = np.empty(busy.shape)
    slowest, pushes_until, answers_until = 0, 0.0, 0.0
    while queue:
        now, worker = heapq.heappop(queue)
        pushes_until = max(now, pushes_until) + push.server
        pushed = max(pushes_until, now + push.worker) + push.latency
        answers_until = max(pushed, answers_until) + push.server
        answered = max(answers_until, pushed + push.worker) + push.latency
        step = steps[worker]
        ends[step, worker] = answered
        steps[worker], unfinished[step] = step + 1, unfinished[step] - 1
        going_on = [worker]
        if not unfinished[step]:
            slowest = step + 1
            going_on, waiting = [worker, *waiting], []
        for other in going_on:
            if steps[other] - most_lead > slowest:
                waiting.append(other)
            elif steps[other] < num_steps:
                heapq.heappush(queue, (answered + seconds[other][steps[other]], other))
    return ends
