"""The steps of each strategy as a program of computing and exchanges, or as a graph of passes, and
the seconds that they take on a simulated cluster.

One function simulates all strategies with a card of the same class. What a strategy's own keys
mean is said on its card.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, singledispatch
from itertools import permutations
from typing import Any

import numpy as np

from bsweep.analysis.simulation import collectives, engine, passes, servers, uneven
from bsweep.analysis.simulation.collectives import ALGORITHMS, Round
from bsweep.analysis.simulation.constants import NUM_DRAWS, Constants
from bsweep.analysis.simulation.engine import Compute, Exchange, Program, Wait
from bsweep.analysis.simulation.network import Array, Messages, Network, Numbers
from bsweep.analysis.simulation.words import Way
from bsweep.config.allreduce import AllReduceConfig
from bsweep.config.groups import StrategyConfig
from bsweep.config.parameter_server import ParameterServerConfig
from bsweep.config.splitting import (
    DeepSpeedConfig,
    PipeDreamConfig,
    PipelineConfig,
    ShardedConfig,
    TensorConfig,
)
from bsweep.config.strategies import (
    DDPConfig,
    DiLoCoConfig,
    HorovodConfig,
    LocalSGDConfig,
    SingleConfig,
)
from bsweep.core import uneven as formulas

FORWARD_SHARE = 1 / 3
"""The forward pass's share of a pass: a backward pass computes about twice as much."""

_MEGABYTE = 2**20


@dataclass(frozen=True, eq=False)
class Case:
    """One way on one number of workers: what is simulated at once.

    `local_batch` is what a worker, or a group of workers that compute the same examples, takes in
    a pass, of which a step has `passes`. Steps are drawn by worker, so that classes of workers
    (`is_folded`) change no number. Uneven workers take `local_batch` in the mean: an allocation
    makes their batches of `asked_batch`, or divides a global batch if that is None.
    """

    constants: Constants
    network: Network
    way: Way
    num_workers: int
    local_batch: float
    num_steps: int = 100
    seed: int = 0
    is_folded: bool = True
    passes: int = 1
    asked_batch: float | None = None

    @cached_property
    def draw_of_step(self) -> Numbers:
        """The number of the draw of the constants in each step."""
        return np.asarray(np.arange(self.num_steps) * NUM_DRAWS // self.num_steps, np.int64)

    @property
    def doubt(self) -> float:
        """The standard deviation of the logarithm of a step's seconds that comes from what was not
        measured: this way to exchange, or any on so many workers.
        """
        if self.num_workers == 1:
            return 0.0
        measured = self.constants.measured
        timed = measured if measured.empty else measured[measured["step_seconds"].notna()]
        own = timed if timed.empty else self.way.of(timed)
        is_known = len(own) > 0 and bool((own["num_workers"] > 1).any())
        most = float((own if is_known else timed)["num_workers"].max()) if len(timed) else 1.0
        doublings = max(0.0, float(np.log2(self.num_workers / most)))
        other_way = 0.0 if is_known else self.constants.other_way
        return float(np.hypot(other_way, self.constants.beyond * doublings**0.5))

    @cached_property
    def speeds(self) -> Array:
        """The speed of each worker, relative to that of the constants."""
        return uneven.speeds(self.constants, self.num_workers)

    @cached_property
    def batches(self) -> Array:
        """The local batch of each worker."""
        of = uneven.batches(
            self.way, self.constants, self.num_workers, self.local_batch, self.asked_batch
        )
        return np.asarray(of * self.local_batch / of.mean())

    def busy(self, draws: Numbers, steps_each: int = 1) -> Array:
        """Return the seconds that each worker computes, shape (rounds, workers).

        Args:
            draws: The number of the draw of the constants, for each round.
            steps_each: The steps in a round.
        """
        rng = np.random.default_rng([self.seed, steps_each])
        number_of = self.num_workers
        fixed = self.passes * self.constants.pass_seconds
        each = self.passes * self.constants.example_seconds
        found = np.empty((len(draws), number_of))
        steps = self.local_steps(steps_each)
        for place, draw in enumerate(draws if steps.max() > 1 else ()):
            factors = self.constants.spread.draw(int(steps.max()), number_of, rng)
            sums = np.cumsum(factors, axis=0)[steps - 1, np.arange(number_of)]
            found[place] = sums * (fixed[draw] + each[draw] * self.batches)
        if steps.max() == 1:
            factors = self.constants.spread.draw(len(draws), number_of, rng)
            found = factors * (fixed[draws][:, None] + each[draws][:, None] * self.batches)
        return found / self.speeds

    def step_seconds(self, local_batches: Array) -> Array:
        """Return the seconds that each worker computes in a step with such a local batch."""
        return self.passes * uneven.step_seconds(self.constants, local_batches) / self.speeds

    def local_steps(self, steps_each: int) -> Numbers:
        """Return the steps of each worker in a round, as runs share them among uneven workers. The
        slowest makes `steps_each`.
        """
        if self.way.allocation == "steps_by_flops":
            return np.array(formulas.by_flops([*self.speeds], steps_each), np.int64)
        if self.way.allocation in ("steps_by_speed", "network_aware", "hybrid"):
            seconds = [*self.step_seconds(self.batches)]
            return np.array(formulas.by_seconds(seconds, steps_each), np.int64)
        return np.full(self.num_workers, steps_each)

    def exchange(self, rounds: Sequence[Round], draws: Numbers | None = None) -> Array:
        """Return the seconds of rounds of messages in each step."""
        draws = self.draw_of_step if draws is None else draws
        seconds = collectives.seconds(rounds, self.network)
        return np.asarray(seconds * self.constants.exchange_factors[draws])

    @property
    def everyone(self) -> Numbers:
        """All workers as one group."""
        return np.arange(self.num_workers)[None]

    def all_reduce(self, num_bytes: float, groups: Numbers | None = None) -> list[Round]:
        """Return the rounds of the way's all-reduce in groups of workers, one in each row."""
        groups = self.everyone if groups is None else groups
        if groups.shape[1] < 2:
            return []
        own = getattr(self.way.card, "algorithm", "native")
        name = self.way.algorithm or own
        if name in ("native", "horovod"):
            name = "native" if self.constants.is_gpu else "ring"
        return ALGORITHMS[name](groups, num_bytes, self.network)

    def gradient(self) -> tuple[list[Round], float]:
        """Return the rounds that sum the gradient of all workers by the way's codec, and the
        seconds of the codec.
        """
        codec, constants = self.way.codec, self.constants
        if not codec.builds:
            return self.all_reduce(constants.parameter_bytes), 0.0
        name = str(codec.name)
        seconds = constants.codec_seconds.get(name, 0.0)
        if (share := codec.payload_share(1_000)) is not None:
            payload = share * constants.parameter_bytes * self.num_workers
            return collectives.gather(self.everyone, payload), seconds
        share = codec.summed_share or constants.codec_shares.get(name)
        if share is None:
            raise ValueError(
                f"what compression={name} sends depends on the model. Simulate from a study that "
                "has runs with it, and others without."
            )
        return self.all_reduce(share * constants.parameter_bytes), seconds


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


def _ran(case: Case, program: Program, busy: Array, steps_each: int = 1) -> Outcome:
    # Workers that do not meet in each round have clocks of their own.
    meets = all(not isinstance(one, Wait) or one.steps_before == 0 for one in program)
    classes = engine.one_class if case.is_folded and meets else engine.unfolded
    seconds = engine.run(program, busy, classes(case.num_workers))
    return Outcome(seconds, busy.max(axis=1), busy.mean(axis=1), steps_each)


def _then_exchange(case: Case, rounds: Sequence[Round], more: float = 0.0) -> Outcome:
    """Return the outcome of steps that compute, and then exchange. This takes `more` seconds beside
    those of its messages.
    """
    exchange = Exchange("gradient", case.exchange(rounds) + more)
    program = (Compute(1.0), exchange, Wait(exchange.name))
    return _ran(case, program, case.busy(case.draw_of_step))


@outcome.register
def _(card: SingleConfig, case: Case) -> Outcome:
    return _ran(case, (Compute(1.0),), case.busy(case.draw_of_step))


@outcome.register
def _(card: AllReduceConfig, case: Case) -> Outcome:
    return _then_exchange(case, *case.gradient())


@outcome.register
def _(card: HorovodConfig, case: Case) -> Outcome:
    rounds, codec_seconds = case.gradient()
    cycle = card.cycle_time_ms / 1000 / 2 if case.num_workers > 1 else 0.0
    if card.buckets > 1:
        return _in_buckets(case, case.constants.parameter_bytes / card.buckets, cycle)
    return _then_exchange(case, rounds, codec_seconds + cycle)


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
    number_of = max(1, int(np.ceil(whole / bucket_bytes - 1e-9)))
    ends = np.linspace(0, 1, number_of + 1)
    shares, seconds = np.array(((0.0, 0.0), *case.constants.backward)).cumsum(axis=0).T
    ready = np.interp(ends, shares / shares[-1], seconds / seconds[-1])
    rounds = case.all_reduce(width * whole / number_of)
    exchange = case.exchange(rounds) + delay
    program: list[Any] = [Compute(FORWARD_SHARE)]
    for number, share in enumerate(np.diff(ready)):
        program += [Compute((1 - FORWARD_SHARE) * float(share))]
        program += [Exchange(f"bucket {number}", exchange)] if case.num_workers > 1 else []
    if case.num_workers > 1:
        program += [Wait(f"bucket {number}") for number in range(number_of)]
    return _ran(case, program, case.busy(case.draw_of_step))


@outcome.register
def _(card: LocalSGDConfig, case: Case) -> Outcome:
    return _in_rounds(case, card.sync_every, case.all_reduce(case.constants.parameter_bytes))


@outcome.register
def _(card: DiLoCoConfig, case: Case) -> Outcome:
    rounds, codec_seconds = case.gradient()
    return _in_rounds(case, card.sync_every, rounds, codec_seconds)


def _in_rounds(
    case: Case, sync_every: int, rounds: list[Round], codec_seconds: float = 0.0
) -> Outcome:
    """Return the outcome of rounds of local steps with an exchange after each."""
    sync_every = _steps_between(case, sync_every, rounds, codec_seconds)
    number_of = max(NUM_DRAWS, -(-case.num_steps // sync_every))
    draws = np.arange(number_of) * NUM_DRAWS // number_of
    seconds = case.exchange(rounds, draws) + codec_seconds
    busy = case.busy(draws, sync_every)
    exchange = Exchange("outer", seconds)
    program: Program = (Compute(1.0), exchange, Wait("outer"))
    examples = case.local_steps(sync_every) * case.batches
    more = float(examples.mean() / (sync_every * case.local_batch))
    return replace(_ran(case, program, busy, sync_every), examples_factor=more)


def _steps_between(case: Case, sync_every: int, rounds: list[Round], codec_seconds: float) -> int:
    """Return the local steps of the slowest worker between two exchanges: those of the strategy; by
    `network_aware`, so many that the exchange takes a small share of a round; by `hybrid`, so many
    that a round takes as long as with equal batches.
    """
    slowest = float(case.step_seconds(case.batches).max())
    if case.way.allocation == "hybrid":
        most = uneven.largest_batches(case.way, case.constants, case.num_workers, case.asked_batch)
        even = np.minimum(case.asked_batch or case.local_batch, most)
        return max(1, round(sync_every * float(case.step_seconds(even).max()) / slowest))
    if case.way.allocation != "network_aware":
        return sync_every
    exchange = float(np.median(case.exchange(rounds))) + codec_seconds
    return formulas.least_steps(exchange, slowest, case.way.allocation_card.max_exchange_share)


@outcome.register
def _(card: ParameterServerConfig, case: Case) -> Outcome:
    number_of = card.num_shards(case.num_workers)
    shares = servers.shares(card, number_of, case.constants)
    places = np.arange(number_of) + (0 if card.colocated else case.num_workers)
    asked = servers.pushes(case.num_workers, places, case.constants.parameter_bytes, shares)
    if card.can.lockstep:
        return _then_exchange(case, [Round(asked, 2)])
    busy = case.busy(case.draw_of_step)
    push = servers.push_seconds(asked, case.network)
    lead = case.num_steps if card.staleness is None else card.staleness
    ends = servers.asynchronous(busy, push, lead)
    # Each worker has its share of every step, so a step ends with the last worker.
    steps = np.diff(ends.max(axis=1), prepend=0.0)
    slowest = np.diff(busy.cumsum(axis=0).max(axis=1), prepend=0.0)
    return Outcome(steps, slowest, busy.mean(axis=1))


def _groups(case: Case, card: Any) -> tuple[Numbers, Numbers]:
    """Return the workers of each replica in a row, and those of the same place in all replicas."""
    whole = np.arange(case.num_workers).reshape(-1, card.num_parts(case.num_workers))
    return whole, whole.T


@outcome.register
def _(card: ShardedConfig, case: Case) -> Outcome:
    widths = card.gathered_width(case.constants.precision), 0.5 if card.reduce == "bf16" else 1.0
    blocks = case.constants.num_blocks if card.wrap == "blocks" else 1
    return _gathering(case, _groups(case, card), blocks, card.reshard == "forward", widths)


@outcome.register
def _(card: DeepSpeedConfig, case: Case) -> Outcome:
    if card.stage < 3:  # a reduce-scatter and a gathering have the rounds of a ring
        ring = collectives.ring(case.everyone, case.constants.parameter_bytes, case.network)
        return _then_exchange(case, ring)
    groups = case.everyone, case.everyone.T
    return _gathering(case, groups, case.constants.num_blocks, True, (1.0, 1.0))


def _gathering(
    case: Case,
    groups: tuple[Numbers, Numbers],
    blocks: int,
    again: bool,
    widths: tuple[float, float],
) -> Outcome:
    """Return the outcome of steps whose workers gather the parameters of one block after another,
    the next while they compute with one, and scatter the sum of its gradients.

    Args:
        case: The case.
        groups: The workers that share one model, in rows, and those with the same part.
        blocks: The number of blocks.
        again: True if the backward pass gathers, too.
        widths: The bytes of a gathered parameter and of a travelling gradient relative to fp32.
    """
    part = case.constants.parameter_bytes / blocks
    parts = groups[0].shape[1]
    gathered, width = widths
    gathering = collectives.gather(groups[0], part * gathered)
    scattering = collectives.gather(groups[0], part * width)
    scattering += case.all_reduce(width * part / parts, groups[1])
    gather, scatter = case.exchange(gathering), case.exchange(scattering)
    program: list[Any] = []
    for direction, share in (("forward", FORWARD_SHARE), ("backward", 1 - FORWARD_SHARE)):
        gathers = direction == "forward" or again
        names = [f"gather {direction} {block}" for block in range(blocks)] if gathers else []
        program += [Exchange(names[0], gather)] if gathers else []
        for block in range(blocks):
            program += [Wait(names[block])] if gathers else []
            program += [Exchange(one, gather) for one in names[block + 1 : block + 2]]
            program += [Compute(share / blocks)]
            if direction == "backward":
                program += [Exchange(f"scatter {block}", scatter)]
    program += [Wait(f"scatter {block}") for block in range(blocks)]
    return _ran(case, program, case.busy(case.draw_of_step))


@outcome.register
def _(card: TensorConfig, case: Case) -> Outcome:
    whole, same = _groups(case, card)
    parts, blocks = whole.shape[1], case.constants.num_blocks
    # `example_bytes` is all that the layers of an example sum, forward and backward.
    bytes_of_sum = case.constants.example_bytes * case.local_batch / (2 * blocks)
    summing = case.all_reduce(bytes_of_sum / 2, whole)
    reducing = case.all_reduce(case.constants.parameter_bytes / parts, same)
    sums, gradient = case.exchange(summing), case.exchange(reducing)
    program: list[Any] = []
    for number, share in enumerate(
        [FORWARD_SHARE / blocks] * blocks + [(1 - FORWARD_SHARE) / blocks] * blocks
    ):
        program += [Compute(share), Exchange(f"sum {number}", sums), Wait(f"sum {number}")]
    program += [Exchange("gradient", gradient), Wait("gradient")]
    # Each worker computes its part of every layer, so that a pass costs what a pass costs.
    divided = replace(case, local_batch=case.local_batch / parts)
    return _ran(case, program, divided.busy(case.draw_of_step))


@outcome.register
def _(card: PipelineConfig, case: Case) -> Outcome:
    return _in_stages(card, case, card.microbatches)


@outcome.register
def _(card: PipeDreamConfig, case: Case) -> Outcome:
    return _in_stages(card, case, 1)


def _in_stages(card: Any, case: Case, microbatches: int) -> Outcome:
    """Return the outcome of a pipeline's steps. Replicas are columns of arrays."""
    whole, same = _groups(case, card)
    # `example_bytes` pass a border between stages, half of them in each direction.
    message_bytes = case.constants.example_bytes * case.local_batch / microbatches / 2
    message = np.zeros((whole.shape[1], whole.shape[1]))
    for ends, messages in _between_parts(case, whole, message_bytes).items():
        message[ends] = case.network.seconds(messages)
    reducing = case.all_reduce(case.constants.parameter_bytes / whole.shape[1], same)
    exchange = case.exchange(reducing)
    # Each micro-batch is a pass of its own, which costs what a pass costs.
    divided = replace(
        case, passes=case.passes * microbatches, local_batch=case.local_batch / microbatches
    )
    busy = divided.busy(case.draw_of_step)[:, whole]  # (steps, replicas, parts)
    graph = passes.graph_of(card, case.num_workers, case.num_steps)
    computed = passes.step_ends(graph, busy, message)
    steps = np.diff(computed, prepend=0.0, axis=0).max(axis=1) + exchange
    useful = busy.mean(axis=(1, 2)) / whole.shape[1]
    return Outcome(steps, useful, useful)


def _between_parts(case: Case, whole: Numbers, num_bytes: float) -> dict[tuple[int, int], Messages]:
    """Return the message from each part of a model to each that may have its next stage, which all
    replicas send at once.
    """
    parts, sizes = whole.shape[1], np.full(len(whole), num_bytes)
    return {
        (begin, end): Messages(case.num_workers, whole[:, begin], whole[:, end], sizes)
        for begin, end in permutations(range(parts), 2)
        if abs(begin - end) in (1, parts - 1)
    }


def with_replicas(way: Way, num_workers: int, of: Constants) -> Way:
    """Return a way with as many replicas as it takes to divide a model among at most eight workers,
    if its card divides a model and has one replica; otherwise the way itself.
    """
    if not way.card.can.splits_model or way.has_replicas or not hasattr(way.card, "replicas"):
        return way
    for parts in (8, 4, 2):
        if num_workers % parts == 0:
            card = replace(way.card, replicas=num_workers // parts)  # type: ignore[call-arg]
            divided = replace(way, card=card)
            if not any(divided.problems_of_division(num_workers, of)):
                return divided
    return way
