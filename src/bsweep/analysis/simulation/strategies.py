"""The seconds that the steps of each strategy take on a simulated cluster.

One function simulates all strategies with a card of the same class. What a strategy's own keys
mean is said on its card.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from functools import singledispatch
from itertools import pairwise
from typing import Any

import numpy as np

from bsweep.analysis.simulation.cases import Case
from bsweep.analysis.simulation.constants import NUM_DRAWS, Constants
from bsweep.analysis.simulation.network import Array, Network, Numbers, Round, gather, ring
from bsweep.config import uneven
from bsweep.config.allreduce import AllReduceConfig
from bsweep.config.groups import StrategyConfig
from bsweep.config.parameter_server import ParameterServerConfig
from bsweep.config.split_strategies import (
    DeepSpeedConfig,
    ShardedConfig,
    StagedConfig,
    TensorConfig,
)
from bsweep.config.strategies import (
    DDPConfig,
    DiLoCoConfig,
    HorovodConfig,
    LocalSGDConfig,
    SingleConfig,
)

FORWARD_SHARE = 1 / 3
"""The forward pass's share of a pass: a backward pass computes about twice as much."""

_MEGABYTE = 2**20


class Clocks:
    """The time in a step, of the workers and of the links, which carry one exchange after another.

    All workers carry out the same program and meet at its end. An exchange begins when the last of
    them has come to it, so only the slowest one counts, which computes for `slowest` seconds, one
    value for each step.
    """

    def __init__(self, slowest: Array) -> None:
        self.slowest = slowest
        self.workers = self.links = np.zeros_like(slowest)

    def compute(self, share: float) -> None:
        """Let workers compute this share of their step."""
        self.workers = self.workers + share * self.slowest

    def exchange(self, seconds: Array) -> Array:
        """Begin an exchange of so many seconds, and return when it ends."""
        self.links = np.maximum(self.workers, self.links) + seconds
        return self.links

    def wait(self, end: Array) -> None:
        """Let workers wait for the end of an exchange."""
        self.workers = np.maximum(self.workers, end)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The simulated steps of a case: their seconds, and those in which the slowest worker computed
    and in which a worker computed in the mean.
    """

    step_seconds: Array
    slowest_seconds: Array
    mean_seconds: Array
    steps_each: int = 1  # optimizer steps of a worker in what counts as a step above
    examples_factor: float = 1.0  # by what workers train more examples, with more local steps


@singledispatch
def outcome(card: StrategyConfig, case: Case) -> Outcome:
    """Simulate the steps of a case, whose strategy has this card.

    Raises:
        ValueError: If it cannot be simulated. The message names no option of a command.
    """
    raise ValueError(f"bsweep cannot simulate strategy={card.name}.")


def _then_exchange(
    case: Case, seconds: Array, parts: int = 1, steps_each: int = 1, examples_factor: float = 1.0
) -> Outcome:
    """Return the outcome of steps, or of rounds of `steps_each` steps, that compute, and exchange
    for so long while no worker computes. The examples of a pass are divided among `parts` workers;
    see `Outcome` for `examples_factor`.
    """
    busy = case.busy(steps_each, parts=parts)
    slowest = busy.max(axis=1)
    return Outcome(slowest + seconds, slowest, busy.mean(axis=1), steps_each, examples_factor)


@outcome.register(SingleConfig)
@outcome.register(AllReduceConfig)
def _(card: SingleConfig | AllReduceConfig, case: Case) -> Outcome:
    return _then_exchange(case, case.gradient_seconds())


@outcome.register
def _(card: HorovodConfig, case: Case) -> Outcome:
    cycle = card.cycle_time_ms / 1000 / 2 if case.num_workers > 1 else 0.0
    if card.buckets > 1:
        return _in_buckets(case, case.constants.parameter_bytes / card.buckets, cycle)
    return _then_exchange(case, case.gradient_seconds() + cycle)


@outcome.register
def _(card: DDPConfig, case: Case) -> Outcome:
    if card.summed_share is None:
        raise ValueError(
            f"what strategy.hook={card.hook} sends depends on the model, and no run records it. "
            "Simulate allreduce with compression=powersgd, from a study that has runs with it."
        )
    return _in_buckets(case, card.bucket_mb * _MEGABYTE, 0.0, card.summed_share)


def _in_buckets(case: Case, bucket_bytes: float, delay: float, width: float = 1.0) -> Outcome:
    """Return the outcome of steps whose gradient is exchanged in parts while the rest of the
    backward pass computes.
    """
    whole = case.constants.parameter_bytes
    count = max(1, int(np.ceil(whole / bucket_bytes - 1e-9)))
    shares, seconds = np.array(((0.0, 0.0), *case.constants.backward)).cumsum(axis=0).T
    ready = np.interp(np.linspace(0, 1, count + 1), shares / shares[-1], seconds / seconds[-1])
    exchange = case.exchange(case.all_reduce(width * whole / count)) + delay
    busy = case.busy()
    clocks = Clocks(busy.max(axis=1))
    clocks.compute(FORWARD_SHARE)
    for share in np.diff(ready):
        clocks.compute((1 - FORWARD_SHARE) * share)
        end = clocks.exchange(exchange)
    clocks.wait(end)
    return Outcome(clocks.workers, clocks.slowest, busy.mean(axis=1))


@outcome.register(LocalSGDConfig)
@outcome.register(DiLoCoConfig)
def _(card: LocalSGDConfig | DiLoCoConfig, case: Case) -> Outcome:
    """Return the outcome of rounds of local steps with an exchange after each."""
    steps_each = _steps_between(case, card.sync_every)
    examples = case.local_steps(steps_each) * case.batches
    factor = float(examples.mean() / (steps_each * case.batches.mean()))
    case = replace(case, num_steps=max(NUM_DRAWS, -(-case.num_steps // steps_each)))
    return _then_exchange(
        case, case.gradient_seconds(), steps_each=steps_each, examples_factor=factor
    )


def _steps_between(case: Case, sync_every: int) -> int:
    """Return the local steps of the slowest worker between two exchanges: those of the strategy; by
    `network_aware`, so many that the exchange takes a small share of a round; by `hybrid`, so many
    that a round takes as long as with equal batches.
    """
    allocation = case.choice.allocation
    slowest = float(case.step_seconds(case.batches).max())
    if allocation.name == "hybrid":
        even = np.minimum(case.local_batch, case.largest_batches)
        return max(1, round(sync_every * float(case.step_seconds(even).max()) / slowest))
    if allocation.name != "network_aware":
        return sync_every
    exchange = float(np.median(case.gradient_seconds()))
    return uneven.least_steps(exchange, slowest, allocation.max_exchange_share)


@outcome.register
def _(card: ParameterServerConfig, case: Case) -> Outcome:
    count, workers = card.num_shards(case.num_workers), np.arange(case.num_workers)
    # A server beside a worker has that worker's number.
    places = np.arange(count) + (0 if card.colocated else case.num_workers)
    number = max(case.num_workers, int(places[-1]) + 1)
    sizes = np.full(case.num_workers, case.constants.parameter_bytes)
    shares = _shares(card, count, case.constants)
    pushes = Round(number, workers, places, sizes, shares, number - case.num_workers)
    if card.can.lockstep:
        answers = pushes  # which have as many bytes
        return _then_exchange(case, case.exchange([pushes, answers]))
    busy = case.busy()
    most_lead = case.num_steps if card.staleness is None else card.staleness
    ends = _asynchronous(busy, _push_seconds(pushes, case.network), most_lead)
    # Each worker has its share of every step, so a step ends with the last worker.
    steps = np.diff(ends.max(axis=1), prepend=0.0)
    slowest = np.diff(busy.cumsum(axis=0).max(axis=1), prepend=0.0)
    return Outcome(steps, slowest, busy.mean(axis=1))


def _shares(card: ParameterServerConfig, num_servers: int, constants: Constants) -> Array:
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


def _push_seconds(pushes: Round, network: Network) -> tuple[float, float, float]:
    """Return the seconds that one push takes, and its answer as well, from the pushes of all
    workers at once: on the link of the fullest server, which serves one worker after another, on
    the worker's own link, and on the way.
    """
    count, nothing = len(pushes.sources), 1e-6  # bytes
    latency, alone = (
        max(
            network.seconds([replace(pushes, sources=np.array([worker]), sizes=np.array([size]))])
            for worker in (0, count - 1)
        )
        for size in (nothing, pushes.sizes[0])
    )
    # A server takes all pushes one after another.
    latency_of_all = network.seconds([replace(pushes, sizes=np.full(count, nothing))])
    together = (network.seconds([pushes]) - latency_of_all) / count
    return together, alone - latency, latency


def _asynchronous(busy: Array, push: tuple[float, float, float], most_lead: int) -> Array:
    """Simulate workers that push to parameter servers and go on with the answer, and return the
    time at which each worker ended each step, shape (steps, workers).

    Every push queues at the fullest server's link, and every answer at its other direction. The
    other servers end earlier, because the same pushes come to them and each takes less time. So
    answers come in the order of pushes.

    Args:
        busy: The seconds that each worker computes, shape (steps, workers).
        push: The seconds of a push; see `_push_seconds`.
        most_lead: By how many steps a worker may be ahead of the slowest one.
    """
    (on_server, on_worker, latency), (num_steps, num_workers) = push, busy.shape
    seconds, ends, steps = busy.T.tolist(), np.empty(busy.shape), [0] * num_workers
    pushes = [(own_seconds[0], worker) for worker, own_seconds in enumerate(seconds)]
    heapq.heapify(pushes)  # the next push of each worker that does not wait
    unfinished = [num_workers] * num_steps  # workers that have not ended each step
    waiting: list[int] = []  # workers that are too far ahead
    slowest, pushes_until, answers_until = 0, 0.0, 0.0
    while pushes:
        now, worker = heapq.heappop(pushes)
        pushes_until = max(now, pushes_until) + on_server
        pushed = max(pushes_until, now + on_worker) + latency
        answers_until = max(pushed, answers_until) + on_server
        answered = max(answers_until, pushed + on_worker) + latency
        step, going_on = steps[worker], [worker]
        ends[step, worker] = answered
        steps[worker], unfinished[step] = step + 1, unfinished[step] - 1
        if not unfinished[step]:
            slowest, going_on, waiting = step + 1, [worker, *waiting], []
        for other in going_on:
            if steps[other] - most_lead > slowest:
                waiting.append(other)
            elif steps[other] < num_steps:
                heapq.heappush(pushes, (answered + seconds[other][steps[other]], other))
    return ends


def _groups(case: Case, card: Any) -> tuple[Numbers, Numbers]:
    """Return the workers of each replica in a row, and those of the same place in all replicas."""
    replicas = np.arange(case.num_workers).reshape(-1, card.num_parts(case.num_workers))
    return replicas, replicas.T


@outcome.register
def _(card: ShardedConfig, case: Case) -> Outcome:
    widths = card.gathered_width(case.constants.precision), 0.5 if card.reduce == "bf16" else 1.0
    blocks = case.constants.num_blocks if card.wrap == "blocks" else 1
    return _gathering(card, case, blocks, card.reshard == "forward", widths)


@outcome.register
def _(card: DeepSpeedConfig, case: Case) -> Outcome:
    if card.stage < 3:  # a reduce-scatter and a gathering have the rounds of a ring
        rounds = ring(case.everyone, case.constants.parameter_bytes)
        return _then_exchange(case, case.exchange(rounds))
    return _gathering(card, case, case.constants.num_blocks, True, (1.0, 1.0))


def _gathering(
    card: Any, case: Case, blocks: int, again: bool, widths: tuple[float, float]
) -> Outcome:
    """Return the outcome of steps whose workers gather the parameters of one block after another,
    the next while they compute with one, and scatter the sum of its gradients.

    Args:
        card: The card of the strategy.
        case: The case.
        blocks: The number of blocks.
        again: True if the backward pass gathers, too.
        widths: The bytes of a gathered parameter and of a travelling gradient relative to fp32.
    """
    replicas, same_parts = _groups(case, card)
    block_bytes = case.constants.parameter_bytes / blocks
    parameter_width, width = widths
    gathering = case.exchange(gather(replicas, block_bytes * parameter_width))
    scattering = gather(replicas, block_bytes * width)
    scattering += case.all_reduce(width * block_bytes / replicas.shape[1], same_parts)
    scatter = case.exchange(scattering)
    busy = case.busy()
    clocks = Clocks(busy.max(axis=1))
    for is_forward in (True, False):
        gathers = blocks * (is_forward or again)
        gathered = clocks.exchange(gathering) if gathers else clocks.workers
        for block in range(blocks):
            clocks.wait(gathered)
            if block + 1 < gathers:
                gathered = clocks.exchange(gathering)
            clocks.compute((FORWARD_SHARE if is_forward else 1 - FORWARD_SHARE) / blocks)
            if not is_forward:
                scattered = clocks.exchange(scatter)
    clocks.wait(scattered)
    return Outcome(clocks.workers, clocks.slowest, busy.mean(axis=1))


@outcome.register
def _(card: TensorConfig, case: Case) -> Outcome:
    replicas, same_parts = _groups(case, card)
    parts, blocks = replicas.shape[1], case.constants.num_blocks
    # `example_bytes` is all that the layers of an example sum, forward and backward. They are
    # summed after each block, in both directions.
    bytes_of_sum = case.constants.example_bytes * case.local_batch / (2 * blocks)
    sums = case.exchange(case.all_reduce(bytes_of_sum / 2, replicas))
    gradient = case.all_reduce(case.constants.parameter_bytes / parts, same_parts)
    # Each worker computes its part of every layer, so that a pass costs what a pass costs.
    return _then_exchange(case, 2 * blocks * sums + case.exchange(gradient), parts)


@outcome.register
def _(card: StagedConfig, case: Case) -> Outcome:
    """Return the outcome of a pipeline's steps by the textbook's formula: the slowest worker
    computes all micro-batches, and the first one passes the other workers and back before or
    after that. Replicas are columns of arrays.
    """
    replicas, same_parts = _groups(case, card)
    parts, microbatches = replicas.shape[1], card.num_microbatches
    stages_each = card.num_stages(case.num_workers) // parts
    # Each micro-batch is a pass of its own, which costs what a pass costs.
    busy = case.busy(microbatches=microbatches)[:, replicas] / parts
    slowest, whole = busy.max(axis=2), busy.sum(axis=2)
    messages = stages_each * _seconds_between_stages(case, replicas, microbatches)
    # With all but GPipe, no more micro-batches are on their way than there are workers.
    in_flight = np.inf if getattr(card, "schedule", "") == "gpipe" else parts
    seconds = (whole + microbatches * messages) / in_flight
    if card.can.lockstep:
        is_divided = card.textbook_bubble(case.num_workers) is None  # the backward pass
        ramp = (whole - slowest) / microbatches / stages_each * (FORWARD_SHARE if is_divided else 1)
        seconds = np.maximum(slowest + messages, seconds) + ramp
    else:  # which is filled once in an epoch
        seconds = np.maximum(slowest, seconds)
    exchange = case.exchange(case.all_reduce(case.constants.parameter_bytes / parts, same_parts))
    useful = busy.mean(axis=(1, 2))
    return Outcome(seconds.max(axis=1) + exchange, useful, useful)


def _seconds_between_stages(case: Case, replicas: Numbers, microbatches: int) -> float:
    """Return how long the messages of a micro-batch take from the first worker of a replica to the
    last, and back.
    """
    # `example_bytes` pass a border between stages, half of them in each direction.
    size = case.constants.example_bytes * case.local_batch / microbatches / 2
    sizes = np.full(len(replicas), size)
    borders = [ends for border in pairwise(replicas.T) for ends in (border, border[::-1])]
    return case.network.seconds([Round(case.num_workers, *ends, sizes) for ends in borders])
