"""DiLoCo (Douillard et al., arXiv 2311.08105): workers take local steps, then an outer optimizer
applies the weighted mean of their parameter changes.

The outer gradient is the weighted mean of (anchor - parameters) over workers. It is a vector like
any gradient. So one of the existing exchanges sums it, with that exchange's codec if there is one.
The outer optimizer, the same on every worker, moves the anchor, and all workers continue from the
new anchor. With an outer rate of 1, no outer momentum and weights by examples, one step of SGD
without momentum a round is synchronous SGD at that learning rate; with more steps this is local
SGD.

Compared with plain training a worker also holds the anchor and, if there is one, the outer
momentum. The outer gradient uses the memory of the gradients.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from bsweep.config.card import load_object
from bsweep.config.optimizers import SGDConfig
from bsweep.config.strategies import DiLoCoConfig
from bsweep.data.plan import Share, round_size
from bsweep.numerics.vector import Anchor, Flat
from bsweep.runlog.records import Round, Traffic
from bsweep.strategies.base import Rounds, Summing

_NUM_GATHERS = 8  # by which the workers' clocks are compared


@dataclass(frozen=True)
class Arrivals:
    """The losses, counts and times of the workers that arrive at a synchronisation, one row for
    each worker.

    Times are in seconds on the first worker's clock.
    """

    sums: Tensor  # (workers, 3): losses, correct answers, labels
    num_examples: Tensor  # (workers,), as all below
    num_steps: Tensor
    began: Tensor
    arrived: Tensor


class DiLoCo(Rounds):
    synchronised_now = True

    card: DiLoCoConfig
    _round = _num_steps = 0
    _train_seconds = 0.0
    _origin: float | None = None  # the zero of the run's times, on the first worker's clock
    _last_end = 0.0  # end of the last round, since the origin
    _exchange_seconds = _codec_seconds = 0.0  # of the epoch so far, as `Traffic` has them

    def connect(self) -> None:
        inner = self.card.in_probe
        self._exchange: Summing = load_object(inner.builds)(
            self.config, inner, self.world, self.paths
        )
        # of the workers' clocks
        self._offsets = torch.zeros(self.num_workers, dtype=torch.float64)
        self._wait_seconds = torch.zeros(self.num_workers, dtype=torch.float64)  # of the epoch
        self._normalizes = self.card.weighting == "fednova" and not self.card.weights

    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        s = self.card
        self._vector, self._optimizer = vector, optimizer
        self._anchor = Anchor(vector)
        nesterov = s.outer_nesterov and s.outer_momentum > 0
        self._outer_optimizer = SGD(
            self._anchor.tensors,
            lr=s.outer_lr,
            momentum=s.outer_momentum,
            nesterov=nesterov,
            fused=True,
        )
        # From here on all workers have the first worker's anchor.
        self._exchange.prepare(self._anchor, self._outer_optimizer)
        vector.parameters.copy_(self._anchor.parameters)

    def begin_epoch(self, epoch: int) -> None:
        self._exchange.begin_epoch(epoch)
        self._offsets = clock_offsets(self.gather)

    def loss_divisor(self, num_own: int, num_all: int) -> float:
        return max(1, num_own)  # each worker's own mean

    def begin_round(self, shares: tuple[Share, ...]) -> None:
        super().begin_round(shares)
        if self._normalizes and isinstance(self.config.optimizer, SGDConfig):
            # FedNova's formula assumes a round without earlier momentum, which would move a worker
            # with few steps far.
            for state in self._optimizer.state.values():
                if state.get("momentum_buffer") is not None:
                    state["momentum_buffer"].zero_()
        self._began = time.monotonic()

    def step(self) -> None:
        self._optimizer.step()
        self._num_steps += 1

    def rehearse(self) -> None:
        self._optimizer.step()
        self._exchange.step()

    def end_round(self, epoch: int, sums: Tensor, num_examples: int, ends_epoch: bool) -> None:
        arrivals = self._meet(sums, num_examples)
        release_times, seconds = self._sum(arrivals)
        self._outer_optimizer.step()
        self._vector.parameters.copy_(self._anchor.parameters)
        self._close_round(epoch, arrivals, release_times, seconds)
        self._look_at_the_clock()

    def gather(self, values: Tensor) -> Tensor:
        return self._exchange.gather(values)

    def traffic(self) -> Traffic:
        traffic = dataclasses.replace(
            self._exchange.traffic(),
            exchange_seconds=self._exchange_seconds,
            exposed_exchange_seconds=self._exchange_seconds,
            codec_seconds=self._codec_seconds if self._exchange.has_codec else None,
            worker_wait_seconds=tuple(self._wait_seconds.tolist()),
        )
        self._wait_seconds = torch.zeros_like(self._wait_seconds)
        self._exchange_seconds = self._codec_seconds = 0.0
        return traffic

    def state(self) -> dict[str, Any]:
        return {
            "anchor": self._anchor.parameters,
            "outer_optimizer": self._outer_optimizer.state_dict(),
            "round": self._round,
            "train_seconds": self._train_seconds,
            "last_end": self._last_end,
            "epoch_seconds": (self._wait_seconds, self._exchange_seconds, self._codec_seconds),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self._anchor.parameters.copy_(state["anchor"])
        self._vector.parameters.copy_(state["anchor"])
        self._outer_optimizer.load_state_dict(state["outer_optimizer"])
        self._round, self._train_seconds = state["round"], state["train_seconds"]
        self._last_end = state["last_end"]
        self._wait_seconds, self._exchange_seconds, self._codec_seconds = state["epoch_seconds"]
        self._look_at_the_clock()  # the run may have stopped after its last round

    def own_state(self) -> dict[str, Any]:
        return self._exchange.own_state()

    def load_own_state(self, state: dict[str, Any]) -> None:
        self._exchange.load_own_state(state)

    def close(self) -> None:
        self._exchange.close()

    def _meet(self, sums: Tensor, num_examples: int) -> Arrivals:
        """Count the round that ends, and return all workers' sums, counts and times of it."""
        on_host = sums.cpu()  # this waits until the GPU has finished its steps
        counts, times = (num_examples, self._num_steps), (self._began, time.monotonic())
        numbers = torch.tensor([*counts, *times], dtype=torch.float64)
        self._num_steps = 0
        self._round += 1
        rows = self.gather(torch.cat([on_host, numbers]))
        rows[:, 5:] -= self._offsets.view(-1, 1)
        return Arrivals(rows[:, :3], *rows[:, 3:].unbind(dim=1))

    def _sum(self, arrivals: Arrivals) -> tuple[Tensor, Tensor]:
        """Sum the weighted parameter changes of the workers into the outer gradient.

        Returns:
            The time at which each worker continued, on the first worker's clock, (workers,); and
            the seconds of data transfer and of the codec's computing, (workers, 2).
        """
        weight = self._weight(arrivals.num_examples, arrivals.num_steps)
        torch.sub(
            self._anchor.parameters, self._vector.parameters, out=self._anchor.gradients
        ).mul_(weight)
        meter = self._exchange.meter
        start = sum(meter.seconds), meter.codec_seconds or 0.0
        self._exchange.exchange()  # which all workers begin together
        meter.read_clocks()  # this waits until the GPU has the sum
        seconds = sum(meter.seconds) - start[0], (meter.codec_seconds or 0.0) - start[1]
        rows = self.gather(torch.tensor([time.monotonic(), *seconds], dtype=torch.float64))
        return rows[:, 0] - self._offsets, rows[:, 1:]

    def _weight(self, num_examples: Tensor, num_steps: Tensor) -> float:
        """Return the factor of this worker's parameter change in the weighted sum over the workers.

        With FedNova (Wang et al., arXiv 2007.07481), a worker that takes more steps does not pull
        the mean further towards its own data. FedNova divides by ||a_i||_1, the total weight of a
        worker's steps, which momentum makes larger than their number.

        Args:
            num_examples: The examples that each worker took, (workers,).
            num_steps: The steps that each worker took, (workers,).
        """
        s = self.card
        if s.weights:
            weights = torch.tensor(s.weights, dtype=torch.float64)
        else:
            weights = torch.ones_like(num_steps) if s.weighting == "uniform" else num_examples
        weights = weights / weights.sum()
        if self._normalizes:
            totals = self._step_weights(num_steps)
            weights = weights * (weights * totals).sum() / totals
        return float(weights[self.rank])

    def _step_weights(self, num_steps: Tensor) -> Tensor:
        """Return, for each worker, the total weight ||a_i||_1 that FedNova gives to the worker's
        steps of a round.

        For tau steps of SGD with momentum m it is (tau - m (1 - m^tau) / (1 - m)) / (1 - m).

        For Nesterov momentum, which is a step ahead, m^2 replaces the first m. No such formula is
        known for other optimizers, so their plain number of steps is returned.
        """
        o = self.config.optimizer
        if not isinstance(o, SGDConfig):
            return num_steps
        m = o.momentum
        return (num_steps - m ** (1 + o.nesterov) * (1 - m**num_steps) / (1 - m)) / (1 - m)

    def _close_round(
        self, epoch: int, arrivals: Arrivals, release_times: Tensor, seconds: Tensor
    ) -> None:
        """Record a finished round, and add its waiting and exchange seconds to those of the epoch.

        The other workers waited for the last one to arrive.

        Args:
            epoch: The epoch.
            arrivals: What `_meet` returned.
            release_times: The first of what `_sum` returned.
            seconds: The second.
        """
        began, arrived = arrivals.began, arrivals.arrived
        if self._origin is None:
            self._origin = float(began.min()) - self._last_end
        idle = (release_times.clamp(max=float(arrived.max())) - arrived).clamp(min=0)
        exposed = release_times - arrived - idle
        travel, codec = seconds.unbind(dim=1)
        start, end = float(began.min()) - self._origin, float(release_times.max()) - self._origin
        self._train_seconds += end - max(start, self._last_end)  # clocks are not exact
        self._last_end = end
        self._wait_seconds += idle
        self._exchange_seconds += float(travel.min())
        self._codec_seconds += float(codec.mean())
        loss, _, num_labels = arrivals.sums.sum(dim=0).tolist()
        self.records.append(
            Round(
                epoch=epoch,
                round=self._round,
                workers=tuple(range(self.num_workers)),
                worker_batches=tuple(share.worker_batch for share in self.shares),
                local_steps=tuple(int(number) for number in arrivals.num_steps),
                began_seconds=tuple((began - self._origin).tolist()),
                compute_seconds=tuple((arrived - began).tolist()),
                idle_seconds=tuple(idle.tolist()),
                exposed_exchange_seconds=tuple(exposed.tolist()),
                exchange_seconds=tuple(travel.tolist()),
                codec_seconds=tuple(codec.tolist()) if self._exchange.has_codec else None,
                train_loss=loss / max(1, num_labels) if abs(loss) < float("inf") else None,
                num_examples=int(arrivals.num_examples.sum()),
                is_whole=bool(arrivals.num_examples.sum() == round_size(self.shares)),
            )
        )

    def _look_at_the_clock(self) -> None:
        limit = self.card.max_seconds
        self.is_finished = self._round == self.card.max_rounds or (
            limit is not None and self._train_seconds >= limit
        )


def clock_offsets(gather: Callable[[Tensor], Tensor]) -> Tensor:
    """Return an estimate of the seconds by which each worker's clock is ahead of the first worker's
    clock, float64 (workers,).

    All workers call it together.

    Nobody leaves a gather before all have entered it. That bounds worker i's offset on both sides.
    It is at most worker i's time of leaving less the first worker's time of entering. It is at
    least worker i's time of entering less the first worker's time of leaving. NTP (RFC 5905) has
    such bounds from two messages. The tightest bounds of several gathers count.

    The estimate is the middle of these bounds. Its error is at most the mean of the times that
    worker i and the first worker took for one gather, whichever gather this is.
    """
    stamps = torch.zeros(2, _NUM_GATHERS, dtype=torch.float64)
    for number in range(_NUM_GATHERS):
        stamps[0, number] = time.monotonic()
        gather(torch.zeros(1, dtype=torch.float64))
        stamps[1, number] = time.monotonic()
    enter, leave = gather(stamps.flatten()).view(-1, 2, _NUM_GATHERS).unbind(dim=1)
    lowest, highest = (enter - leave[0]).amax(dim=1), (leave - enter[0]).amin(dim=1)
    return torch.stack([lowest, highest]).mean(dim=0)  # the first worker's offset is 0
