"""The seam between the training loop and the ways in which workers agree on one model."""

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

from bsweep.config import RunConfig, StrategyConfig, Transport
from bsweep.core.ranks import Place
from bsweep.data.plan import Share, global_batch
from bsweep.numerics.clock import Mark, mark, seconds_between
from bsweep.numerics.vector import Flat
from bsweep.runlog import Checkpoint, Event, Round, RunPaths, Traffic


@dataclass
class Meter:
    """Counts one worker's exchanges until they are reported; no step waits for a GPU to have made
    them.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    exchange_steps: int = 0
    # One for each exchange, waiting for others included; see `read_clocks`.
    seconds: list[float] = field(default_factory=list)
    codec_seconds: float | None = None

    def __post_init__(self) -> None:
        self._exchanges: list[tuple[Mark, Mark]] = []
        self._codecs: list[tuple[Mark, Mark, slice]] = []  # with the exchanges within

    @contextmanager
    def exchange(self, tensor: Tensor) -> Iterator[None]:
        """Time that `tensor` travels, from when this worker is ready to send it."""
        begin = mark(tensor.device)
        yield
        self._exchanges.append((begin, mark(tensor.device)))

    @contextmanager
    def codec(self, gradients: Tensor) -> Iterator[None]:
        """Time what a codec computes: all but the exchanges within, so that nobody seems to wait
        while it computes.
        """
        begin, num_before = mark(gradients.device), len(self._exchanges)
        yield
        self._codecs.append(
            (begin, mark(gradients.device), slice(num_before, len(self._exchanges)))
        )

    def read_clocks(self) -> None:
        """Bring `seconds` and `codec_seconds` up to date, once a GPU has come so far."""
        seconds = [seconds_between(begin, end) for begin, end in self._exchanges]
        for begin, end, within in self._codecs:
            computed = seconds_between(begin, end) - sum(seconds[within])
            self.codec_seconds = (self.codec_seconds or 0.0) + computed
        self.seconds += seconds
        self._exchanges, self._codecs = [], []


class Strategy(ABC):
    """How workers agree on one model.

    The loop scales each worker's loss by its share of the global batch, so the plain sum of the
    workers' gradients is the gradient of the global mean, also for uneven shares.

    What only some strategies do is a class of its own, which they inherit, and which the loop asks
    for.
    """

    in_step = True
    """All workers pass each step together; False: they meet where a round or an epoch ends only."""

    loss_scale = 1.0
    """What to multiply losses by, for an exchange that does not sum."""

    transport: Transport | None = None
    """How gradients travel, where that was to be chosen."""

    warnings: tuple[Event, ...] = ()
    """What a reader of the numbers should know of how it was set up, the same on all workers."""

    stop_reason: str | None = None
    """Why to stop after this round, the same on all workers; the run is saved, and may be taken up
    again.
    """

    hides_exchange = False
    """Data travel while workers compute, and are timed only from when computing is over."""

    def __init__(
        self, config: RunConfig, strategy: StrategyConfig, place: Place, paths: RunPaths
    ) -> None:
        self.meter = Meter()
        self.replicates = strategy.can.replicates
        self.rank, self.num_workers = place.rank, place.num_workers
        self.members = tuple(range(place.num_workers))
        """The ranks that still take part."""

    def new_gradients(self, parameters: Tensor) -> Tensor:
        """Zeros like these, where this worker's gradients are to lie. All workers call it together,
        before the rest.
        """
        return torch.zeros_like(parameters)

    @abstractmethod
    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        """Make all workers start from the same parameters."""

    def begin_epoch(self, epoch: int) -> None:  # noqa: B027 (most strategies need nothing here)
        """Epoch `epoch`, from 1, is about to be trained."""

    def loss_divisor(self, num_own: int, num_all: int) -> float:
        """What to divide a sum of losses by, in a round of `num_all` examples: for a step on
        `num_own` of them.
        """
        return num_all / self.loss_scale

    def rate_batch(self, shares: Sequence[Share]) -> float:
        """Examples behind an optimizer step, by which a learning rate may go: of all workers, which
        step together.
        """
        return global_batch(shares)

    @abstractmethod
    def step(self) -> None:
        """Take this worker's gradient and leave all workers with the updated model, or on the way
        to it.
        """

    def rehearse(self) -> None:  # noqa: B027
        """Do what steps and the ends of rounds do, on gradients that do not count, before the first
        step is timed.

        Connections are made and kernels loaded. Parameters, optimizer, and what is remembered or
        counted are then as they were. All workers call it together.
        """

    @abstractmethod
    def gather(self, values: Tensor) -> Tensor:
        """A small float64 CPU tensor (n,) of every worker, (members, n) by rank. All workers call
        it together.
        """

    def mean(self, values: Tensor) -> Tensor:
        """The element-wise mean over workers of a small float64 CPU tensor. All workers call it
        together.
        """
        return self.gather(values).mean(dim=0)

    def gather_json(self, value: Mapping[str, Any]) -> list[dict[str, Any]]:
        """A small object of every worker, by rank, which travels as bytes. All workers call it
        together.
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
        """The cost of the exchanges since the last call. All workers call it together.

        All workers leave an exchange together, and the last to arrive waits for nobody: its time is
        the exchange.
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
        exchange = float(seconds.min(dim=0).values.sum())  # 0 where there was none
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
        """Whether all workers meet after the round that has just ended, whose end is no epoch's;
        the same on all.

        If not, a gather would make them wait for one another.
        """
        return self.in_step

    def state(self) -> dict[str, Any]:
        """What of this strategy all workers know alike, to go on from: tensors, numbers, texts, and
        lists of them.

        Parameters, optimizer and random numbers are saved in any case. All workers have met before.
        """
        return {}

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027 (many know nothing of their own)
        """Take up what `state` gave, after `prepare`. All workers call it together."""

    def own_state(self) -> dict[str, Any]:
        """What this worker alone knows, such as what it has counted of the epoch; otherwise as
        `state`.
        """
        self.meter.read_clocks()
        return {"meter": asdict(self.meter)}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Take up what `own_state` gave, after `load_state`; not called of a worker that was
        lost.
        """
        self.meter = Meter(**state["meter"])

    def save_elsewhere(self, checkpoint: Checkpoint) -> None:  # noqa: B027
        """Have processes beside the workers put what they know into a checkpoint. All workers call
        it together.
        """

    def load_elsewhere(self, checkpoint: Checkpoint) -> bool:
        """Have them take it up; whether they could. All workers call it together."""
        return True

    def close(self) -> None:  # noqa: B027
        """Give back what `prepare` took."""


class InBackward(Strategy):
    """Exchanges within the backward pass, so that it hides there."""

    see_part: Callable[[Tensor], None] | None = None
    """Who is to see each part of this worker's gradient, flat, before it is summed; set before
    `wrap`.
    """

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module to train through, after `prepare`."""
        return model

    @abstractmethod
    def rehearse(self) -> None:
        """See `Strategy.rehearse`: an exchange has begun within the pass, and is to be
        completed.
        """

    @abstractmethod
    def before_last_pass(self) -> None:
        """The coming forward and backward pass completes this step's gradient: it may travel as it
        becomes ready.
        """

    def passes(self) -> AbstractContextManager[None]:
        """Around forward and backward passes, for an exchange within them that may break off."""
        return nullcontext()


class Rounds(Strategy):
    """Synchronises where a round ends, and not at each step."""

    in_step = False

    is_finished = False
    """The run ends here, whatever epochs are left."""

    def __init__(
        self, config: RunConfig, strategy: StrategyConfig, place: Place, paths: RunPaths
    ) -> None:
        super().__init__(config, strategy, place, paths)
        self.records: list[Event | Round] = []
        """What is to be told of rounds, the same on all workers; the loop writes and empties it."""
        self.shares: tuple[Share, ...] = ()
        """What each worker takes of the round, by rank."""

    def begin_round(self, shares: tuple[Share, ...]) -> None:
        """This worker's coming `shares[rank].num_steps` steps are a round."""
        self.shares = shares

    @abstractmethod
    def end_round(self, epoch: int, sums: Tensor, num_examples: int, ends_epoch: bool) -> None:
        """A round is over, of which this worker took `num_examples`: synchronise.

        Where an epoch, or the run, ends with it, all workers are left with the same parameters.
        `sums`: of losses, correct answers and labels of its part, float64 (3,).
        """
