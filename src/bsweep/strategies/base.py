"""The interface between the training loop and the ways in which workers agree on one model."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bsweep.config.groups import StrategyConfig
from bsweep.config.run import RunConfig
from bsweep.config.strategies import Transport
from bsweep.core.ranks import Place
from bsweep.data.plan import Share, global_batch
from bsweep.numerics.clock import Mark, mark, seconds_between
from bsweep.numerics.vector import Flat
from bsweep.runlog.checkpoint_files import Checkpoint
from bsweep.runlog.files import RunPaths
from bsweep.runlog.records import Event, Round, Traffic


@dataclass
class Meter:
    """Counts and timings of one worker's exchanges since the last report.

    No step waits for a GPU to finish an exchange in order to time it.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    exchange_steps: int = 0
    # One number for each exchange, which includes waiting for other workers; see `read_clocks`.
    seconds: list[float] = field(default_factory=list)
    codec_seconds: float | None = None

    def __post_init__(self) -> None:
        self._exchanges: list[tuple[Mark, Mark]] = []
        # begin, end, and which exchanges lie between
        self._codecs: list[tuple[Mark, Mark, slice]] = []

    @contextmanager
    def exchange(self, tensor: Tensor) -> Iterator[None]:
        """Time the transfer of `tensor`, from when this worker is ready to send it.

        Args:
            tensor: The tensor that travels; its device is timed.
        """
        begin = mark(tensor.device)
        yield
        self._exchanges.append((begin, mark(tensor.device)))

    @contextmanager
    def codec(self, gradients: Tensor) -> Iterator[None]:
        """Time what a codec computes, without the exchanges inside.

        So a codec's computing does not appear as waiting for other workers.

        Args:
            gradients: The tensor that is encoded; its device is timed.
        """
        begin, num_before = mark(gradients.device), len(self._exchanges)
        yield
        self._codecs.append(
            (begin, mark(gradients.device), slice(num_before, len(self._exchanges)))
        )

    def read_clocks(self) -> None:
        """Update `seconds` and `codec_seconds`; wait until the GPU has finished what they time."""
        seconds = [seconds_between(begin, end) for begin, end in self._exchanges]
        for begin, end, within in self._codecs:
            computed = seconds_between(begin, end) - sum(seconds[within])
            self.codec_seconds = (self.codec_seconds or 0.0) + computed
        self.seconds += seconds
        self._exchanges, self._codecs = [], []


class Strategy(ABC):
    """One worker's part in how all workers agree on one model.

    The loop scales each worker's loss by its share of the global batch. So the plain sum of the
    workers' gradients is the gradient of the global mean, also for uneven shares.

    An ability that only some strategies have is a class of its own. These strategies inherit it,
    and the loop tests for it.
    """

    in_step = True
    """True if all workers synchronise at each step; False if only at the end of a round or epoch.
    """

    loss_scale = 1.0
    """The factor on each loss by which an exchange that averages gives the sum.

    It is not the loss scale of fp16, which is `Vector.scale`.
    """

    transport: Transport | None = None
    """The way gradients travel, if there was a choice."""

    warnings: tuple[Event, ...] = ()
    """Events that a reader of the results should know about the setup, the same on all workers."""

    stop_reason: str | None = None
    """The reason to stop after this round, the same on all workers.

    The run is saved, and may be resumed.
    """

    hides_exchange = False
    """True if data travel while workers compute; then only the time after computing is measured."""

    def __init__(
        self, config: RunConfig, strategy: StrategyConfig, place: Place, paths: RunPaths
    ) -> None:
        """Keep what all strategies need.

        A subclass connects the workers in its own `__init__`, because `gather` is called before
        `prepare`.

        Args:
            config: The configuration of the run.
            strategy: The strategy's card.
            place: This worker's rank, and the number of workers.
            paths: The files of the run's folder.
        """
        self.meter = Meter()
        self.replicates = strategy.can.replicates
        self.rank, self.num_workers = place.rank, place.num_workers
        self.members = tuple(range(place.num_workers))
        """The ranks of the workers that still take part."""

    def new_gradients(self, parameters: Tensor) -> Tensor:
        """Return zeros like `parameters`, which become this worker's gradient vector.

        All workers call it together, before `prepare`. Only `gather` may have been called before.

        Args:
            parameters: All parameters of the model, a 1-D floating-point tensor on the worker's
                device.

        Returns:
            A tensor of the same shape, type and device.
        """
        return torch.zeros_like(parameters)

    @abstractmethod
    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        """Make all workers start from the same parameters.

        Args:
            vector: The model's parameters and gradients, two 1-D tensors of equal length and type.
            optimizer: The optimizer, which updates the parameters from the gradients.
        """

    def begin_epoch(self, epoch: int) -> None:  # noqa: B027 (most strategies need nothing here)
        """Prepare for an epoch that is about to be trained.

        Args:
            epoch: The epoch, counted from 1.
        """

    def loss_divisor(self, num_own: int, num_all: int) -> float:
        """Return the number by which this worker's sum of losses is divided.

        Args:
            num_own: The examples of the step on this worker.
            num_all: The examples of the round on all workers.

        Returns:
            The divisor, by default `num_all` over `loss_scale`.
        """
        return num_all / self.loss_scale

    def rate_batch(self, shares: Sequence[Share]) -> float:
        """Return the number of examples behind one optimizer step, by which a learning-rate rule
        may scale.

        These are the examples of all workers if they step together.

        Args:
            shares: Each worker's share of the step or round, by rank.

        Returns:
            The number of examples.
        """
        return global_batch(shares)

    @abstractmethod
    def step(self) -> None:
        """Exchange this worker's gradient and update the model, or begin to."""

    def rehearse(self) -> None:  # noqa: B027
        """Run a step and the end of a round on gradients that do not count.

        This happens before the first step is timed: it makes the connections and loads the kernels.
        Afterwards the parameters, the optimizer, and all memory and counts are as before. All
        workers call it together.
        """

    @abstractmethod
    def gather(self, values: Tensor) -> Tensor:
        """Return every worker's small float64 CPU tensor (n,), stacked by rank to (members, n).

        All workers call it together.

        Args:
            values: This worker's values, a 1-D float64 tensor of n elements on the CPU.

        Returns:
            A float64 CPU tensor (members, n), whose rows follow the order of `members`.
        """

    def mean(self, values: Tensor) -> Tensor:
        """Return the element-wise mean over workers of a small float64 CPU tensor.

        All workers call it together.

        Args:
            values: This worker's values, a 1-D float64 tensor of n elements on the CPU.

        Returns:
            A float64 CPU tensor (n,), the same on all workers.
        """
        return self.gather(values).mean(dim=0)

    def gather_json(self, value: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return a small JSON object of every worker, by rank; the objects travel as bytes.

        All workers call it together.

        Args:
            value: This worker's object.

        Returns:
            One object for each worker that still takes part, by rank.
        """
        mine = torch.tensor(list(json.dumps(value).encode()), dtype=torch.float64)
        lengths = (
            self.gather(torch.tensor([len(mine)], dtype=torch.float64)).flatten().int().tolist()
        )
        padded = torch.zeros(max(lengths), dtype=torch.float64)
        padded[: len(mine)] = mine
        rows = self.gather(padded).to(torch.uint8)
        return [
            json.loads(bytes(row[:length].tolist()))
            for row, length in zip(rows, lengths, strict=True)
        ]

    def traffic(self) -> Traffic:
        """Return the bytes and seconds of the exchanges since the last call. All workers call this
        method together.

        All workers leave an exchange at the same time, and the last to arrive waits for nobody. So
        its time is the exchange alone; what the others took beyond that is waiting.

        Returns:
            Bytes and seconds, the same on all workers.
        """
        meter, self.meter = self.meter, Meter()
        meter.read_clocks()
        counts = [
            meter.sent_bytes,
            meter.received_bytes,
            meter.exchange_steps,
            meter.codec_seconds or 0.0,
        ]
        every = self.gather(torch.tensor([*counts, *meter.seconds], dtype=torch.float64))
        sent, received, exchange_steps, codec_seconds = every[:, : len(counts)].T
        seconds = every[:, len(counts) :]
        exchange = float(seconds.min(dim=0).values.sum())  # 0 if there was no exchange
        return Traffic(
            sent_bytes=int(sent.mean()),
            received_bytes=int(received.mean()),
            exchange_steps=int(exchange_steps.max()),
            exchange_seconds=None if self.hides_exchange else exchange,
            exposed_exchange_seconds=exchange,
            codec_seconds=None if meter.codec_seconds is None else float(codec_seconds.mean()),
            worker_wait_seconds=tuple((seconds.sum(dim=1) - exchange).tolist()),
        )

    @property
    def is_together(self) -> bool:
        """True if all workers synchronised after the round that has just ended, the same on all
        workers.

        This is about rounds that do not end an epoch. If False, a gather would make workers wait
        for one another.
        """
        return self.in_step

    def state(self) -> dict[str, Any]:
        """Return the part of the strategy's state that is the same on all workers, for a
        checkpoint.

        It consists of tensors, numbers, texts, and lists of them. Parameters, optimizer and random
        numbers are saved in any case. All workers have synchronised before the call.

        Returns:
            The values by name; empty if there are none.
        """
        return {}

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027 (many know nothing of their own)
        """Restore what `state` returned, after `prepare`. All workers call it together.

        Args:
            state: The values from a checkpoint, by name.
        """

    def own_state(self) -> dict[str, Any]:
        """Return the part of the state that only this worker knows, for a checkpoint.

        An example is what it has counted during the epoch. The types are those of `state`.

        Returns:
            The values by name.
        """
        self.meter.read_clocks()
        return {"meter": asdict(self.meter)}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Restore what `own_state` returned, after `load_state`.

        It is not called for the state of a worker that was lost.

        Args:
            state: The values of this worker from a checkpoint, by name.
        """
        self.meter = Meter(**state["meter"])

    def save_elsewhere(self, checkpoint: Checkpoint) -> dict[str, str]:
        """Make processes other than the workers save their state in a checkpoint.

        All workers call it together.

        Args:
            checkpoint: The checkpoint in which the processes write files of their own.

        Returns:
            The SHA-256 of each such file in hexadecimal digits, by file name; on one worker.

        Raises:
            OSError: If a process could not write its file.
        """
        return {}

    def load_elsewhere(self, checkpoint: Checkpoint) -> bool:
        """Make processes other than the workers restore their state; return True if they could.

        All workers call it together.

        Args:
            checkpoint: The checkpoint that the run resumes from.

        Returns:
            False if a process could not; the run then fails.
        """
        return True

    def close(self) -> None:  # noqa: B027
        """Release what `prepare` acquired."""


class InBackward(Strategy):
    """A strategy that can exchange gradients during the backward pass, which hides the exchange.

    `Capabilities.exchanges_in_passes` says whether it does so in this run.
    """

    see_part: Callable[[Tensor], None] | None = None
    """The function that sees each part of this worker's gradient, flat, before it is summed.

    It is set before `wrap`.
    """

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the module whose passes train the model: the model itself or a wrapper around it.
        This method is called after `prepare`.

        Args:
            model: The model, whose parameters are those of `vector`.

        Returns:
            The module, which computes the same outputs.
        """
        return model

    @abstractmethod
    def rehearse(self) -> None:
        """Run a step on gradients that do not count, as `Strategy.rehearse` does. Also complete
        the gradient exchange that the backward pass just before may have started.
        """

    @abstractmethod
    def before_last_pass(self) -> None:
        """Prepare for the last forward and backward pass of this step.

        That pass completes the gradient, so each part may travel as soon as it is ready.
        """

    def passes(self) -> AbstractContextManager[None]:
        """Return the context for forward and backward passes, in which an exchange may fail.

        Returns:
            The context; by default it does nothing.
        """
        return nullcontext()


class Rounds(Strategy):
    """A strategy whose methods the loop calls at the beginning and at the end of each round.

    It synchronises at the end of some or all rounds.
    """

    in_step = False

    is_finished = False
    """True if the run ends now, even if epochs are left."""

    def __init__(
        self, config: RunConfig, strategy: StrategyConfig, place: Place, paths: RunPaths
    ) -> None:
        super().__init__(config, strategy, place, paths)
        self.records: list[Event | Round] = []
        """The records of rounds, the same on all workers; the loop writes them and empties the
        list.
        """
        self.shares: tuple[Share, ...] = ()
        """Each worker's share of the round, by rank."""

    def begin_round(self, shares: tuple[Share, ...]) -> None:
        """Begin a round, which consists of this worker's next `shares[rank].num_steps` steps.

        Args:
            shares: Each worker's share of the round, by rank.
        """
        self.shares = shares

    @abstractmethod
    def end_round(self, epoch: int, sums: Tensor, num_examples: int, ends_epoch: bool) -> None:
        """Synchronise after a round.

        If the round ends an epoch or the run, all workers have the same parameters afterwards.

        Args:
            epoch: The epoch, from 1.
            sums: The losses, correct answers and labels of this worker's part, float64 (3,).
            num_examples: The examples that this worker took in the round.
            ends_epoch: True if an epoch ends with the round.
        """
