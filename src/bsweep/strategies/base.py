"""The base classes of strategies, which define the methods that the training loop calls."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bsweep import compression
from bsweep.compression.base import Codec, Setting
from bsweep.config.groups import StrategyConfig
from bsweep.config.run import RunConfig
from bsweep.core.ranks import World
from bsweep.data.plan import Share
from bsweep.numerics.timing import Timeline
from bsweep.numerics.vector import Flat, Vector
from bsweep.runlog.checkpoint_files import Checkpoint
from bsweep.runlog.files import RunPaths
from bsweep.runlog.records import Round, Traffic


@dataclass
class ExchangeLog:
    """A log of the bytes, messages and seconds of one worker's exchanges, and of its codec.

    On a GPU only `read_clocks` waits for these times.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    exchange_steps: int = 0
    # One number for each exchange, which includes waiting for other workers; see `read_clocks`.
    seconds: list[float] = field(default_factory=list)
    # The lowest rank among the workers of each exchange.
    first_ranks: list[int] = field(default_factory=list)
    codec_seconds: float | None = None

    def __post_init__(self) -> None:
        self._timeline: Timeline | None = None

    def exchange(self, tensor: Tensor, ranks: Iterable[int] = (0,)) -> AbstractContextManager[None]:
        """Time the `with` block, in which this worker exchanges `tensor` with workers or servers.

        The time begins when this worker is ready to send, so it includes the wait for other
        workers.

        Args:
            tensor: The tensor that travels; the time is taken on its device.
            ranks: The ranks of the workers that exchange with one another, this worker's among
                them; by default all.
        """
        self.first_ranks.append(min(ranks))
        return self._phase("exchange", tensor)

    def codec(self, gradients: Tensor) -> AbstractContextManager[None]:
        """Time what a codec computes in the `with` block, without the exchanges in the block.

        So a codec's computing does not appear as waiting for other workers.

        Args:
            gradients: The tensor that is encoded; the time is taken on its device.
        """
        return self._phase("codec", gradients)

    def _phase(self, name: str, tensor: Tensor) -> AbstractContextManager[None]:
        self._timeline = self._timeline or Timeline(tensor.device)
        return self._timeline.phase(name)

    def read_clocks(self) -> None:
        """Add the times of new exchanges to `seconds`, and the codec's computing to
        `codec_seconds`.

        On a GPU, this waits until the GPU has finished the work that is timed.
        """
        for phase, seconds in self._timeline.spans() if self._timeline else ():
            if phase == "exchange":
                self.seconds.append(seconds)
            elif phase == "codec":
                self.codec_seconds = (self.codec_seconds or 0.0) + seconds


def ring_counts(num_bytes: int, num_workers: int) -> tuple[int, int, int]:
    """Return the bytes that each worker sends and receives in a ring that sums a vector of so many
    bytes, and the exchange steps, as `Strategy.count` takes them.

    Each worker sends (p - 1) / p of the vector in the reduce-scatter, and again in the all-gather.
    """
    exchange_steps = 2 * (num_workers - 1)
    sent_bytes = exchange_steps * num_bytes // num_workers
    return sent_bytes, sent_bytes, exchange_steps


class Strategy(ABC):
    """The base class of all strategies: the object by which one worker agrees with the others on
    one model.

    The loop divides each worker's sum of losses by `loss_divisor`, which decides how large its
    gradient is:

    - by default, as with allreduce, horovod and pipeline, the examples of all workers: the sum of
      the gradients of all workers (of replicas, if workers hold parts of a model) is that of the
      global mean, also for uneven shares;
    - if the strategy `averages`, as ddp, sharded, deepspeed, local_sgd, horovod with op=adasum and
      parameter servers that are not synchronous do, `num_workers` times less: the mean of the
      gradients is that of the global mean;
    - in rounds of several steps, as of `diloco`, the worker's own examples: such a strategy weights
      the workers' parameters, or their changes, instead.

    An ability that only some strategies have is a class of its own. These strategies inherit it,
    and the loop tests for it.
    """

    lockstep = True
    """True if all workers make each step at the same time, so that the loop may sum their losses in
    it; False if workers may make steps between two synchronisations. `can.lockstep` of the card
    says more: that they also make it from the same parameters.
    """

    averages = False
    """True if the strategy averages the workers' gradients or the models that they make, or takes
    the gradient of one worker at a time, instead of summing gradients. Each worker's gradient is
    then as large as that of the global mean. It is set at the latest in `connect`.
    """

    collective_forward = False
    """True if workers exchange in every forward pass, so that all must make equally many."""

    receives_model = False
    """True if only the first worker builds the model with its values, which the strategy then gives
    to the others. Their tensors are on the meta device before that.
    """

    reports_sums = True
    """True if this worker's sums of losses count. One worker of each replica has it."""

    saves_within_epochs = True
    """False if checkpoints are possible only at the ends of epochs."""

    division = ""
    """A text that says which worker holds which stages, or belongs to which replica; it is the same
    on all workers, and empty if neither matters. A checkpoint of workers with another one has no
    state of this worker alone.
    """

    def __init__(
        self, config: RunConfig, strategy: StrategyConfig, world: World, paths: RunPaths
    ) -> None:
        """Create this worker's log of exchanges, store what the strategy is built from, and call
        `connect`.

        Args:
            config: The configuration of the run.
            strategy: The strategy's card.
            world: This worker's rank, and the number of workers.
            paths: The files of the run's folder.
        """
        self.config, self.card, self.world, self.paths = config, strategy, world, paths
        self.meter = ExchangeLog()
        self.can = strategy.can
        self.rank, self.num_workers = world.rank, world.num_workers
        self.replica = self.rank * strategy.data_parallel_size(self.num_workers) // self.num_workers
        """The index of this worker's share of each batch. Workers that hold parts of one replica of
        a model have the same.
        """
        self.connect()

    def connect(self) -> None:  # noqa: B027 (some need nothing here)
        """Connect this worker to the others, so that `gather` can be called."""

    def vector(self, model: nn.Module) -> Vector:
        """Return the vector of the parameters that this worker holds, whose tensors are the
        model's from now on.

        By default these are all parameters. A strategy that splits the model divides it first. All
        workers call it together, before `prepare`.

        Args:
            model: The model, with the same initial values on all workers (see `receives_model`).

        Returns:
            The vector of the parameters and their gradients.
        """
        return Vector(model)

    @abstractmethod
    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        """Give all workers the same initial parameters, before the first step.

        Args:
            vector: The model's parameters and gradients, two 1-D tensors of equal length and type.
            optimizer: The optimizer, which updates the parameters from the gradients.
        """

    def begin_epoch(self, epoch: int) -> None:  # noqa: B027 (most strategies need nothing here)
        """Prepare the strategy for the epoch that is trained next.

        Args:
            epoch: The epoch, counted from 1.
        """

    @property
    def gradient_weight(self) -> float:
        """The factor by which this worker's gradient is larger than its part of the gradient of the
        global mean, unless a strategy overrides `loss_divisor`: 1, or the number of workers if the
        strategy `averages`.
        """
        return float(self.num_workers) if self.averages else 1.0

    def loss_divisor(self, num_own: int, num_all: int) -> float:
        """Return the number of examples by which this worker divides the sum of its losses before
        the backward pass.

        If an example has several labels, the loop multiplies the number by that of the labels.

        Args:
            num_own: The examples of the step on this worker.
            num_all: The examples of the round on all workers.

        Returns:
            The divisor, by default `num_all` over `gradient_weight`.
        """
        return num_all / self.gradient_weight

    def rate_batch(self, shares: Sequence[Share]) -> float:
        """Return the number of examples per optimizer step from which the learning-rate rule
        computes the rate.

        By default it is what the strategy's card says, whose `rate_batch` this calls.

        Args:
            shares: Each worker's share of the step or round, by rank.

        Returns:
            The number of examples.
        """
        return self.card.rate_batch([share.worker_batch for share in shares], self.replica)

    def during_pass(self, *, is_last: bool) -> AbstractContextManager[object]:
        """Return the context manager that surrounds each pass of a training step.

        A strategy that exchanges within passes may turn the error of an exchange into `WorkerLost`
        in it.

        Args:
            is_last: True for the last pass of a step. It completes the gradient, so that each part
                may travel as soon as it is ready.

        Returns:
            The context; by default it does nothing.
        """
        return nullcontext()

    @abstractmethod
    def step(self) -> None:
        """Update this worker's model from its gradient, in some strategies after an exchange."""

    def rehearse(self) -> None:
        """Try a step, with its exchange if it has one, before training.

        This opens the connections and loads the kernels before the first step is timed. The caller
        restores the parameters and the optimizer afterwards, and by `load_state` and
        `load_own_state` what the strategy remembers and counts. By default the trial is a step. All
        workers call it together.
        """
        self.step()

    @abstractmethod
    def gather(self, values: Tensor) -> Tensor:
        """Collect a few values from each worker, and return all of them as the rows of one tensor
        in the order of the ranks.

        All workers call it together, each with the same number of values.

        Args:
            values: This worker's values, a 1-D float64 tensor of n elements on the CPU.

        Returns:
            A float64 CPU tensor (workers, n).
        """

    def mean(self, values: Tensor) -> Tensor:
        """Return the element-wise mean, over all workers, of the few values that each worker
        passes. With stages, it is the mean over the workers that hold the same.

        All workers call it together.

        Args:
            values: This worker's values, a 1-D float64 tensor of n elements on the CPU.

        Returns:
            A float64 CPU tensor (n,), the same on all of these workers.
        """
        return self.gather(values).mean(dim=0)

    def gather_json(self, value: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the JSON objects that all workers pass, as a list in the order of the workers'
        ranks.

        All workers call it together, each with a small object.

        Args:
            value: This worker's object.

        Returns:
            One object for each worker, by rank.
        """
        text = json.dumps(value).encode()
        size = int(self.gather(torch.tensor([len(text)], dtype=torch.float64)).max())
        rows = self.gather(torch.tensor([*text.ljust(size)], dtype=torch.float64))
        return [json.loads(bytes(row)) for row in rows.int().tolist()]

    def traffic(self) -> Traffic:
        """Return the bytes and the seconds of the exchanges since this method was last called, as
        far as they were measured.

        All workers call it together. It assumes that the workers of an exchange leave it at the
        same time, and that the last to arrive waits for nobody. So the shortest time of an exchange
        is the exchange alone; what other workers took beyond that is waiting.

        Returns:
            Bytes and seconds, the same on all workers.
        """
        meter, self.meter = self.meter, ExchangeLog()
        meter.read_clocks()
        counts = meter.sent_bytes, meter.received_bytes, meter.exchange_steps
        times = meter.codec_seconds or 0.0, *meter.seconds
        every = self.gather(
            torch.tensor([*counts, *times, *meter.first_ranks], dtype=torch.float64)
        )
        sent, received, exchange_steps, codec_seconds = every[:, :4].T
        seconds, first_ranks = every[:, 4:].chunk(2, dim=1)
        groups = first_ranks.long()
        shortest = torch.full_like(seconds, torch.inf).scatter_reduce(0, groups, seconds, "amin")
        travel = shortest.gather(0, groups).sum(dim=1)  # of each worker
        exchange = float(travel.mean())  # 0 if there was no exchange
        # Then the log times only the part of an exchange that follows this worker's computing.
        hides_exchange = self.can.exchanges_in_passes and self.num_workers > 1
        return Traffic(
            sent_bytes=int(sent.mean()),
            received_bytes=int(received.mean()),
            exchange_steps=int(exchange_steps.max()),
            exchange_seconds=None if hides_exchange else exchange,
            exposed_exchange_seconds=exchange,
            codec_seconds=None if meter.codec_seconds is None else float(codec_seconds.mean()),
            worker_wait_seconds=tuple((seconds.sum(dim=1) - travel).tolist()),
        )

    def count(self, sent_bytes: int, received_bytes: int, exchange_steps: int = 0) -> None:
        """Count what this worker sends and receives in an exchange.

        Args:
            sent_bytes: The bytes that it sends.
            received_bytes: The bytes that it receives.
            exchange_steps: The messages that follow one another.
        """
        self.meter.sent_bytes += sent_bytes
        self.meter.received_bytes += received_bytes
        self.meter.exchange_steps += exchange_steps

    @property
    def synchronised_now(self) -> bool:
        """True if the workers synchronised at the end of the round that has just ended.

        It is the same on all workers, and is about rounds that do not end an epoch. If False, a
        gather would make workers wait for one another, so they seldom agree whether to save or to
        stop.
        """
        return self.lockstep

    def state(self) -> dict[str, Any]:
        """Return the part of the strategy's state that all workers share, for a checkpoint.

        It consists of tensors, numbers, texts, None, and lists, tuples and dictionaries of them.
        Parameters, optimizer and random numbers are saved in any case. The call is made between two
        rounds, on one worker.

        Returns:
            The values by name; empty if there are none.
        """
        return {}

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027 (many know nothing of their own)
        """Restore the part of the strategy's state that all workers share, from a checkpoint. All
        workers call it together, after `prepare`.

        Args:
            state: The values from a checkpoint, by name.
        """

    def own_state(self) -> dict[str, Any]:
        """Return the part of the strategy's state that only this worker knows, for a checkpoint.

        An example is the number of bytes that the worker has sent in the epoch so far. The types
        are those of `state`.

        Returns:
            The values by name.
        """
        self.meter.read_clocks()
        return {"meter": asdict(self.meter)}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Restore the part of the strategy's state that only this worker knows, from a checkpoint.

        It is called after `load_state`. It is not called if another number of workers saved the
        checkpoint.

        Args:
            state: The values of this worker from a checkpoint, by name.
        """
        self.meter = ExchangeLog(**state["meter"])

    def evaluating(self) -> AbstractContextManager[None]:
        """Return the context manager that surrounds the forward passes of evaluations.

        An exchange may fail within a pass. The context may turn its error into `WorkerLost`.

        Returns:
            The context; by default it does nothing.
        """
        return nullcontext()

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the whole model's parameters and buffers by name. All workers call it together,
        after training.

        Args:
            model: This worker's model, or the part of it that it holds.

        Returns:
            The tensors; those of rank 0 count.
        """
        return dict(model.state_dict())

    def save_elsewhere(self, checkpoint: Checkpoint) -> dict[str, str]:
        """Make helpers of the workers, such as parameter servers, save their state in a checkpoint.

        All workers call it together.

        Args:
            checkpoint: The checkpoint in which each helper writes a file of its own.

        Returns:
            The SHA-256 of each such file in hexadecimal digits, by file name; each file is in the
            answer of one worker.

        Raises:
            OSError: If a helper could not write its file. Other workers may not raise it.
        """
        return {}

    def load_elsewhere(self, checkpoint: Checkpoint) -> bool:
        """Tell processes that help the workers, such as parameter servers, to restore a
        checkpoint's state.

        All workers call it together.

        Args:
            checkpoint: The checkpoint that the run resumes from.

        Returns:
            False on at least one worker if a helper could not; the run then fails.
        """
        return True

    def close(self) -> None:  # noqa: B027
        """Release connections, threads and hooks of this strategy after training."""


class Summing(Strategy):
    """A strategy that sums one vector, such as the gradients, over workers at each step.

    DiLoCo uses such a strategy to sum its workers' parameter changes, and makes its own steps.
    """

    _codec: Codec | None
    _vector: Flat
    _optimizer: Optimizer

    def build_codec(self) -> None:
        """Build the run's codec, when vector, optimizer, rank and number of workers are known."""
        setting = Setting(
            vector=self._vector,
            optimizer=self._optimizer,
            seed=self.config.seed,
            rank=self.rank,
            num_workers=self.num_workers,
        )
        self._codec = compression.build(self.config.compression, setting)

    @property
    def has_codec(self) -> bool:
        return self._codec is not None

    def begin_epoch(self, epoch: int) -> None:
        if self._codec:
            self._codec.begin_epoch(epoch)

    def step(self) -> None:
        self.exchange()
        self._optimizer.step()

    def own_state(self) -> dict[str, Any]:
        return {**super().own_state(), "codec": self._codec.saved() if self._codec else None}

    def load_own_state(self, state: dict[str, Any]) -> None:
        super().load_own_state(state)
        if self._codec and state["codec"]:
            self._codec.load_saved(state["codec"])

    def exchange(self) -> None:
        """Replace this worker's gradients by the sum of all workers' gradients, as the codec
        decodes them if there is one.

        Horovod's Adasum takes the place of the sum if it is configured.

        Raises:
            WorkerLost: If another worker ended; the gradients are then undefined.
        """
        if self.num_workers == 1:
            return
        gradients = self._vector.gradients
        if self._codec:
            scale, codec = self._vector.scale, self._codec
            with (
                self.meter.codec(gradients),
                scale.removed(codec.state) if scale else nullcontext(),
            ):
                codec.exchange(gradients, _Metered(self))
        else:
            with self.meter.exchange(gradients):
                self.sum_gradients()

    def sum_gradients(self) -> None:
        """Replace this worker's gradients by the sum of all workers' gradients, without a codec; by
        default by `all_reduce`.
        """
        self.all_reduce(self._vector.gradients)

    @abstractmethod
    def all_reduce(self, tensor: Tensor) -> None:
        """Replace `tensor` by the element-wise sum of all workers' tensors, for a codec; see
        `bsweep.compression.base.Group`.
        """

    @abstractmethod
    def all_gather(self, payload: Tensor) -> list[Tensor]:
        """Return the `payload` tensors of all workers, in the order of their ranks, for a codec."""


class _Metered:
    """The connection by which a codec sums and gathers tensors over workers; it times each
    exchange.
    """

    def __init__(self, strategy: Summing) -> None:
        self.rank, self.num_workers = strategy.rank, strategy.num_workers
        self._strategy = strategy

    def all_reduce(self, tensor: Tensor) -> None:
        with self._strategy.meter.exchange(tensor):
            self._strategy.all_reduce(tensor)

    def all_gather(self, payload: Tensor) -> list[Tensor]:
        with self._strategy.meter.exchange(payload):
            return self._strategy.all_gather(payload)


class InBackward(Strategy):
    """A strategy that can exchange gradients while the backward pass still computes.

    `Capabilities.exchanges_in_passes` says whether it does so in this run; None if bsweep does not
    know.
    """

    see_part: Callable[[Tensor], None] | None = None
    """The function to call with each part of this worker's own gradient, or None.

    The strategy passes each part as a flat tensor, before it sums the part over workers. The
    function is set before `wrap`.
    """

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the module that the passes of training steps call: the model or a wrapper around
        it. This method is called after `prepare`.

        Args:
            model: The model, whose parameters are those of `vector`.

        Returns:
            The module, which computes the same outputs.
        """
        return model


Sample = Callable[[int], Tensor]
"""A function that returns the model's inputs for a number of examples."""

Context = Callable[[], AbstractContextManager[object]]


class Staged(Strategy):
    """A strategy whose workers hold consecutive pieces of one model (stages).

    The workers of a replica take the same examples, in as many micro-batches as the card says. Each
    passes the activations of its stages on to the worker with the next stage, and in the backward
    pass their gradients to the one before.
    """

    stages: tuple[tuple[str, ...], ...] = ()
    """The names of the pieces of each stage, the same on all workers."""

    @abstractmethod
    def cut(self, model: nn.Module, sample: Sample, autocast: Context) -> None:
        """Cut the model into stages, and leave it only the parameters and buffers of this worker's.

        All workers call it together, before `vector`.

        Args:
            model: The model, with its initial values on the first worker.
            sample: Returns the inputs of some examples, to measure with.
            autocast: The context of forward passes.

        Raises:
            ConfigError: If the pieces of the model do not compute what the model computes.
        """

    @abstractmethod
    def run_passes(
        self, inputs: Tensor, targets: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        """Compute the forward and backward passes of all micro-batches through all stages.

        All workers of a replica call it together, with equal arguments.

        Args:
            inputs: The inputs of the micro-batches, one after another.
            targets: Their targets.
            loss: Takes the outputs and the targets of a micro-batch, and returns the loss whose
                gradients are added up. The worker with the last stage calls it for each
                micro-batch, in their order.
        """

    @abstractmethod
    def outputs(self, inputs: Tensor) -> Tensor | None:
        """Compute a forward pass through all stages.

        All workers of a replica call it together.

        Args:
            inputs: The inputs of some examples.

        Returns:
            The model's outputs on the worker with the last stage, None on others.
        """


class Rounds(Strategy):
    """A strategy with methods that the training loop calls at the beginning and the end of each
    round.

    It synchronises at the end of some or all rounds.
    """

    lockstep = False

    is_finished = False
    """True if the run must end after this round, even if epochs are left to train."""

    @cached_property
    def records(self) -> list[Round]:
        """The records of rounds that the training loop has not yet written.

        They are the same on all workers. The loop writes them and empties the list.
        """
        return []

    @cached_property
    def shares(self) -> tuple[Share, ...]:
        """The numbers of examples and steps that each worker takes in the present round, by rank.

        Before the first round, as when `rehearse` is called, they are the configured ones.
        """
        return tuple(map(Share, self.config.worker_batches, self.config.local_steps))

    def begin_round(self, shares: tuple[Share, ...]) -> None:
        """Begin a round, in which this worker makes at most `shares[rank].num_steps` steps. It
        makes fewer only in a round that the end of an epoch cuts short.

        Args:
            shares: Each worker's share of the round, by rank.
        """
        self.shares = shares

    def loss_divisor(self, num_own: int, num_all: int) -> float:
        if self.shares[self.replica].num_steps > 1:
            return max(1, num_own)
        return super().loss_divisor(num_own, num_all)

    @abstractmethod
    def end_round(self, epoch: int, sums: Tensor, num_examples: int, ends_epoch: bool) -> None:
        """End a round and, if the strategy plans a synchronisation after it, synchronise with the
        other workers.

        If the round ends an epoch or the run, all workers have the same parameters afterwards.

        Args:
            epoch: The epoch, from 1.
            sums: The losses, correct answers and labels of this worker's part, float64 (3,).
            num_examples: The examples that this worker took in the round.
            ends_epoch: True if an epoch ends with the round.
        """
