"""One strategy on one number of workers: the batches of its workers, how long each computes, and
how long an exchange takes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain

import numpy as np

from bsweep.analysis.simulation.choices import Choice
from bsweep.analysis.simulation.constants import NUM_DRAWS, Constants
from bsweep.analysis.simulation.network import Array, Network, Numbers, Round, all_reduce, gather
from bsweep.config import uneven
from bsweep.config.rules import problems_of_cards
from bsweep.core.words import counted


@dataclass(frozen=True, eq=False)
class Case:
    """A strategy on a number of workers, whose steps are simulated at once.

    `local_batch` is what a worker, or a group of workers that compute the same examples, takes in
    a pass, of which a step has `passes`. An allocation makes the batches of uneven workers of it
    or, if workers divide a global batch (`divides`), shares so many examples in the mean.
    """

    constants: Constants
    network: Network
    choice: Choice
    num_workers: int
    local_batch: float
    num_steps: int = 100
    passes: int = 1
    divides: bool = True

    @cached_property
    def draw_of_step(self) -> Numbers:
        """The number of the draw of the constants in each step."""
        return np.asarray(np.arange(self.num_steps) * NUM_DRAWS // self.num_steps, np.int64)

    @property
    def num_groups(self) -> int:
        """The number of workers, or of groups of them, that each take a part of every batch."""
        return int(self.choice.strategy.data_parallel_size(self.num_workers))

    @cached_property
    def problem(self) -> str:
        """The first message with which bsweep would refuse such a run, or an empty text. Settings
        that no simulation has, such as the precision, fit the strategy.
        """
        batch = max(1, round(self.local_batch))
        config = replace(
            self.choice.config, num_workers=self.num_workers, local_batch=batch, global_batch=None
        )
        card_problems = problems_of_cards(config, ("strategy", "compression", "allocation"))
        return next(chain(self._problems_of_division(), card_problems), "")

    def _problems_of_division(self) -> Iterator[str]:
        """Yield the messages with which bsweep would refuse to divide the model among so many
        workers, as far as the model's pieces, layers and heads are known.
        """
        strategy, constants, count = self.choice.strategy, self.constants, self.num_workers
        if problems := list(strategy.problems_of_workers(count)):
            yield from problems
            return  # there is no number of parts
        if constants.pieces:
            yield from strategy.problems_of_pieces(constants.pieces, count)
        if layers := len(constants.layer_shares):
            yield from strategy.problems_of_layers(layers, strategy.num_shards(count))
        if (model := self.choice.config.model) is not None:
            yield from model.problems_of_parts(strategy, count)

    def with_replicas(self) -> Case:
        """Return this case with as many replicas as it takes to divide a model among at most eight
        workers, if its strategy divides a model and the user did not choose replicas.
        """
        choice = self.choice
        if getattr(choice.strategy, "replicas", 0) == 1 and not choice.has_replicas:
            for parts in (parts for parts in (8, 4, 2) if self.num_workers % parts == 0):
                strategy = replace(choice.strategy, replicas=self.num_workers // parts)
                config = replace(choice.config, strategy=strategy)
                divided = replace(self, choice=replace(choice, config=config))
                if not any(divided._problems_of_division()):
                    return divided
        return self

    @property
    def held_bytes(self) -> float:
        """The bytes of the parameters, the gradients, the optimizer's state and the strategy's
        copies of a worker.
        """
        strategy, optimizer = self.choice.strategy, self.choice.config.optimizer
        parameters, gradients, state = strategy.parts_held(self.num_workers)
        # What DeepSpeed holds beside is of a worker's own part, as the optimizer's state is.
        beside = strategy.vectors_held + (optimizer.vectors_of_state or 0)
        copies = 1 / parameters + 1 / gradients + beside / state
        return float(copies * self.constants.parameter_bytes)

    @property
    def log_error(self) -> float:
        """The standard deviation of the logarithm of a step's seconds that comes from what was not
        measured: this way to exchange, or any on so many workers.
        """
        if self.num_workers == 1:
            return 0.0
        is_known, most_workers = _measured(self.choice, self.constants)
        doublings = max(0.0, float(np.log2(self.num_workers / most_workers)))
        other_way = 0.0 if is_known else self.constants.other_way
        return float(np.hypot(other_way, self.constants.beyond * doublings**0.5))

    @cached_property
    def speeds(self) -> Array:
        """The speed of each worker, relative to that of the constants."""
        return np.resize(np.array(self.constants.speeds), self.num_workers)

    @cached_property
    def batches(self) -> Array:
        """The local batch of each worker.

        Raises:
            ValueError: If the memory of the workers is not known, or too small.
        """
        allocation, weights = self.choice.allocation.name, self.speeds
        if allocation == "batch_by_flops" and not self.divides:
            batches = uneven.by_flops([*self.speeds], round(self.local_batch))
            return np.array(batches, float)
        elif allocation == "batch_by_memory":
            weights = self.largest_batches
        elif allocation == "hybrid":
            weights = self._knees()
        elif allocation != "batch_by_flops":
            return np.full(self.num_workers, self.local_batch)
        if not self.divides:
            return weights.astype(float)
        shared = np.asarray(self.local_batch * weights / weights.mean())
        if self.constants.largest_batches:
            self._refuse_larger(shared)
        return shared

    @cached_property
    def largest_batches(self) -> Array:
        """The largest local batch that the memory of each worker holds: as probed, or so that the
        worker with the least memory holds the local batch, and others more in proportion to what
        the model leaves of theirs.
        """
        constants, config = self.constants, self.choice.config
        if constants.largest_batches:
            return np.resize(np.array(constants.largest_batches, float), self.num_workers)
        if not constants.memories:
            raise ValueError(
                f"allocation={config.allocation.name} chooses batches by the memory of each "
                "worker, which is not known: give it in GB, as in --memories 80,40,24, or use "
                "--machine or --probe."
            )
        memory = np.resize(np.array(constants.memories), self.num_workers)
        held = self.held_bytes / 1e9
        left = memory - held
        if left.min() <= 0:
            raise ValueError(
                f"the parameters, the gradients and the state of optimizer={config.optimizer.name} "
                f"take {held:.3g} GB of a worker's {memory.min():g} GB on "
                f"{counted(self.num_workers, 'worker')}: give more, as in --memories 80,40,24."
            )
        batch = constants.local_batch if self.divides else self.local_batch
        return np.asarray(np.floor(batch * left / left.min() * (1 + 1e-9)))

    def _knees(self) -> Array:
        """Return for each worker the smallest local batch, from that which runs are asked for on,
        at which it is nearly as fast as at its largest one, of those that a probe measures.
        """
        least, largest = 1.0 if self.divides else self.local_batch, self.largest_batches
        self._refuse_larger(np.full(self.num_workers, least))
        doublings = 2.0 ** np.arange(np.log2(largest.max()) + 1)
        knees = {}
        for most in set(largest):
            tried = np.unique([*doublings[doublings <= most], least, most])
            rates = dict(zip(map(int, tried), tried / self._pass_seconds(tried), strict=True))
            knees[most] = uneven.knee_batch(rates, round(least), self.choice.allocation.knee)
        return np.array([knees[most] for most in largest])

    def _refuse_larger(self, batches: Array) -> None:
        for worker, (batch, most) in enumerate(zip(batches, self.largest_batches, strict=True)):
            if batch > most:
                raise ValueError(
                    f"local batch {batch:g} of worker {worker} is larger than the largest that its "
                    f"memory was found to hold, {most:g}. Use a smaller batch, or more workers."
                )

    def _pass_seconds(self, local_batches: Array) -> Array:
        """Return the seconds of a pass with each of several local batches, at the speed of the
        constants.
        """
        computing = self.constants.example_seconds[:, None] * local_batches
        return np.asarray(np.median(self.constants.pass_seconds[:, None] + computing, axis=0))

    def step_seconds(self, local_batches: Array) -> Array:
        """Return the seconds that each worker computes in a step with such a local batch."""
        return self.passes * self._pass_seconds(local_batches) / self.speeds

    def local_steps(self, steps_each: int) -> Numbers:
        """Return the steps of each worker in a round, as runs share them among uneven workers. The
        slowest makes `steps_each`.
        """
        if self.choice.allocation.name == "steps_by_flops":
            return np.array(uneven.by_flops([*self.speeds], steps_each), np.int64)
        if self.choice.allocation.name in ("steps_by_speed", "network_aware", "hybrid"):
            seconds = [*self.step_seconds(self.batches)]
            return np.array(uneven.by_seconds(seconds, steps_each), np.int64)
        return np.full(self.num_workers, steps_each)

    def busy(self, steps_each: int = 1, microbatches: int = 1, parts: int = 1) -> Array:
        """Return the seconds that each worker computes, shape (steps, workers).

        Args:
            steps_each: The optimizer steps in what counts as a step here, a round.
            microbatches: The micro-batches of a pass. Each costs what a pass costs.
            parts: The workers that divide the examples of a pass, but not what a pass costs.
        """
        rng, draws = np.random.default_rng([0, steps_each]), self.draw_of_step
        steps, spread = self.local_steps(steps_each), self.constants.spread
        if steps.max() > 1:
            workers, sums = np.arange(self.num_workers), []
            for _ in draws:
                factors = spread.draw(int(steps.max()), self.num_workers, rng)
                sums.append(np.cumsum(factors, axis=0)[steps - 1, workers])
            relative = np.array(sums)
        else:
            relative = spread.draw(len(draws), self.num_workers, rng)
        fixed = self.passes * microbatches * self.constants.pass_seconds[draws]
        each = self.passes / parts * self.constants.example_seconds[draws]
        return np.asarray(relative * (fixed[:, None] + np.outer(each, self.batches)) / self.speeds)

    def exchange(self, rounds: Sequence[Round]) -> Array:
        """Return the seconds of rounds of messages in each step."""
        factors = self.constants.exchange_factors[self.draw_of_step]
        return np.asarray(self.network.seconds(rounds) * factors)

    @property
    def everyone(self) -> Numbers:
        """All workers as one group."""
        return np.arange(self.num_workers)[None]

    def all_reduce(self, num_bytes: float, groups: Numbers | None = None) -> list[Round]:
        """Return the rounds of the strategy's all-reduce in groups of workers, one in each row."""
        groups = self.everyone if groups is None else groups
        algorithm = getattr(self.choice.strategy, "algorithm", "native")
        return all_reduce(groups, num_bytes, self.network, algorithm, self.constants.is_gpu)

    def gradient_seconds(self) -> Array:
        """Return the seconds in each step of the codec, and of the exchange that sums the gradient
        of all workers by it.
        """
        codec, constants = self.choice.config.compression, self.constants
        payload_share = codec.payload_share(1_000)
        share = codec.summed_share or constants.codec_shares.get(codec.name)
        if payload_share is not None:
            payload = payload_share * constants.parameter_bytes * self.num_workers
            rounds = gather(self.everyone, payload)
        elif share is not None:
            rounds = self.all_reduce(share * constants.parameter_bytes)
        else:
            raise ValueError(
                f"what compression={codec.name} sends depends on the model. Simulate from a study "
                "that has runs with it, and others without."
            )
        return self.exchange(rounds) + constants.codec_seconds.get(codec.name, 0.0)


@lru_cache(maxsize=16)  # which serves all cells with one strategy
def _measured(choice: Choice, constants: Constants) -> tuple[bool, float]:
    """Return True if several workers were measured that exchange in this way, and the most workers
    of such runs, or else of any.
    """
    timed = constants.measured.dropna(subset="step_seconds")
    alike = choice.runs_of(timed)
    is_known = bool((alike["num_workers"] > 1).any())
    workers = (alike if is_known else timed)["num_workers"]
    return is_known, float(workers.max()) if len(workers) else 1.0
