"""The strategy `pipedream`: a pipeline whose stages do not wait for one another when a step ends
(PipeDream, Narayanan et al., SOSP 2019, doi 10.1145/3341301.3359646).

A step's batch is the unit that passes through the stages. In each step of the loop a worker takes
this step's batch forward, then an earlier batch, whose gradient has come back by now, backward, and
updates its weights. With p stages, worker s lags p - 1 - s steps behind the last one. A batch goes
backward with the weights with which it went forward, so a worker keeps a version of its weights for
each batch in flight. At the end of an epoch the flow is drained: all batches go backward.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Work
from torch.optim import Optimizer

from bsweep.config.split_strategies import PipeDreamConfig
from bsweep.config.values import ConfigError
from bsweep.numerics import optim
from bsweep.numerics.vector import Flat, Vector
from bsweep.runlog.errors import worker_lost
from bsweep.runlog.records import Traffic
from bsweep.strategies.base import Rounds
from bsweep.strategies.pipeline import Pipeline


@dataclass
class _Pass:
    """A pass of a batch that has gone forward and not yet backward."""

    inputs: Tensor
    outputs: Tensor  # of the stage; of the last one, the loss
    gradient: Tensor | None = None  # of the outputs, in which it arrives from the stage behind
    arrival: Work | None = None
    sent: Work | None = None  # the message with the outputs


class _Sent(NamedTuple):
    """A gradient that travels to the stage before, which is kept until it has arrived."""

    number: int  # of its batch
    work: Work
    tensor: Tensor


@dataclass
class _Batch:
    """A batch in flight, with all that its update needs."""

    number: int  # among those of the flow, from 0
    version: int  # of the weights with which it went forward
    rates: list[float]  # the learning rates of its step, by group of the optimizer
    passes: deque[_Pass] = field(default_factory=deque)


class PipeDream(Pipeline, Rounds):
    # All workers are in the same step, with different batches and parameters of different age.
    lockstep = True
    saves_within_epochs = False
    synchronised_now = False
    card: PipeDreamConfig

    def connect(self) -> None:
        super().connect()
        # On GPUs the messages of a group follow one another, and those of the two directions would
        # wait for one another.
        self._back_group = self.divided(self.ranks)
        self._lag = self.num_parts - 1 - self.part_index
        # By how many updates the weights of a pass are behind.
        self._delay = self.num_parts - 1 if self.card.vertical_sync else self._lag
        self._flow: deque[_Batch] = deque()
        self._sent: deque[_Sent] = deque()
        self._begin_flow()

    def _begin_flow(self) -> None:
        self._num_begun, self._is_begun = 0, False  # batches of the flow; this step's, too

    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        super().prepare(vector, optimizer)
        if self.num_parts > 1 and optim.most_norm(optimizer) is not None:
            raise ConfigError(
                f"optimizer={self.config.optimizer.name} with strategy=pipedream: max_grad_norm "
                "limits the norm of the whole model's gradient, and the stages make an update at "
                "different times. Give the optimizer no max_grad_norm, or use strategy=pipeline."
            )
        assert isinstance(vector, Vector)
        self._versions = Versions(vector)
        self._updates_missed = self._num_batches = 0

    def run_passes(
        self, inputs: Tensor, targets: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        if not self._is_begun:
            self._begin_batch()
        with self._times.step():
            self._flow[-1].passes.append(self._forward(inputs, targets, loss))
            if len(self._flow) > self._lag and self._flow[0].passes:
                self._backward(self._flow[0])

    def _begin_batch(self) -> None:
        version = max(0, self._num_begun - self._delay)
        rates = [group["lr"] for group in self._optimizer.param_groups]
        self._flow.append(_Batch(self._num_begun, version, rates))
        self._updates_missed += self._num_begun - version
        self._num_batches += 1
        self._num_begun, self._is_begun = self._num_begun + 1, True
        if self._lag or self._delay:
            self._versions.keep(version)

    def _forward(
        self, inputs: Tensor, targets: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
    ) -> _Pass:
        """Take a pass of the newest batch forward through this worker's stage."""
        (stage,), size = self._stage_indices, len(inputs)
        if stage > 0:
            inputs = self._like(stage - 1, size, self.device)
            with worker_lost():
                dist.recv(inputs, group=self._replica_group, group_src=self.part_index - 1)
            self.meter.received_bytes += inputs.nbytes
            inputs.requires_grad_()
            # The stage before lags one step more. It took this batch forward after it had taken the
            # batch before backward that lags so much, whose gradient therefore has arrived.
            self._wait_for_sent(self._flow[-1].number - 2 - self._lag)
        version = self._flow[-1].version
        self._activations.leave_out(self._versions.parameters(version))
        waited, _ = self._seconds_of_messages(stage, size)
        # An optimizer may change the model's tensors in place before the backward pass. autograd
        # would refuse that, but it does not check tensors that come from hooks, such as these,
        # which count them. So no check finds a tensor that a model itself changes in place.
        counting = self._activations.counted()
        with self._times.computing(waited), self._versions.used(version), counting:
            outputs = self._modules[stage](inputs)
            if self.reports_sums:
                outputs = loss(outputs, targets)
        pass_ = _Pass(inputs, outputs)
        if not self.reports_sums:
            pass_.sent = self._send(outputs.detach(), self._replica_group, self.part_index + 1)
            pass_.gradient = torch.empty_like(outputs)
            with worker_lost():
                pass_.arrival = dist.irecv(
                    pass_.gradient, group=self._back_group, group_src=self.part_index + 1
                )
        return pass_

    def _backward(self, batch: _Batch) -> None:
        """Take the next pass of a batch backward."""
        (stage,), pass_ = self._stage_indices, batch.passes.popleft()
        if pass_.arrival:
            assert pass_.gradient is not None
            assert pass_.sent is not None
            with worker_lost():
                pass_.arrival.wait()
                pass_.sent.wait()  # not for long: the gradient is that of what was sent
            self.meter.received_bytes += pass_.gradient.nbytes
        _, waited = self._seconds_of_messages(stage, len(pass_.inputs))
        # Code of the model may read parameters again, as activation checkpointing does.
        with self._times.computing(waited), self._versions.used(batch.version):
            torch.autograd.backward(pass_.outputs, pass_.gradient)
        if stage > 0:
            assert pass_.inputs.grad is not None
            gradient = pass_.inputs.grad.contiguous()
            work = self._send(gradient, self._back_group, self.part_index - 1)
            self._sent.append(_Sent(batch.number, work, gradient))

    def _send(self, tensor: Tensor, group: dist.ProcessGroup, receiver: int) -> Work:
        """Begin to send a tensor, which the caller keeps until it has arrived."""
        with worker_lost():
            work = dist.isend(tensor, group=group, group_dst=receiver)
        assert work is not None
        self.meter.sent_bytes += tensor.nbytes
        return work

    def _wait_for_sent(self, last: int) -> None:
        """Wait until the gradients of all batches up to number `last` have arrived. Gloo does not
        say of a message that it has, unless somebody waits for it.
        """
        with worker_lost():
            while self._sent and self._sent[0].number <= last:
                self._sent.popleft().work.wait()

    def step(self) -> None:
        self._is_begun = False
        if len(self._flow) > self._lag:
            self._finish(self._flow[0])

    def _finish(self, batch: _Batch) -> None:
        """Take the remaining passes of the oldest batch backward, and update the weights."""
        self._go_back(batch)
        next_version = max(0, self._num_begun - self._delay)
        self._versions.drop_before(min([next_version, *(each.version for each in self._flow)]))
        if self._delay > self._lag:  # a later batch goes forward with these weights
            self._versions.keep(self._versions.newest)
        self.sum_between_replicas(self._vector.gradients)
        with optim.set_within(self._optimizer.param_groups, "lr", batch.rates):
            self._optimizer.step()
        self._versions.add()

    def _go_back(self, batch: _Batch) -> None:
        if batch.passes:
            with self._times.step():
                while batch.passes:
                    self._backward(batch)
        self._flow.popleft()

    def end_round(self, epoch: int, sums: Tensor, num_examples: int, ends_epoch: bool) -> None:
        if ends_epoch:
            self._drain(self._finish)

    def _drain(self, finish: Callable[[_Batch], None]) -> None:
        """Take all batches in flight backward, and wait until all messages have arrived."""
        while self._flow:
            self._vector.gradients.zero_()
            finish(self._flow[0])
        self._wait_for_sent(self._num_begun)
        self._versions.drop_all()
        self._begin_flow()

    def rehearse(self) -> None:
        self._drain(self._go_back)
        super().rehearse()

    def traffic(self) -> Traffic:
        self._drain(self._finish)  # outside of training, when steps end before an epoch does
        versions, staleness = self._versions, self._updates_missed / max(1, self._num_batches)
        stashed_bytes = versions.num_copies * self._vector.parameters.nbytes
        numbers = [versions.most, stashed_bytes, staleness]
        every = self.gather(torch.tensor(numbers, dtype=torch.float64)).tolist()
        traffic = super().traffic()
        self._updates_missed = self._num_batches = 0
        assert traffic.stage_loads is not None
        loads = (
            replace(load, weight_versions=int(n), stashed_bytes=int(num_bytes), staleness=missed)
            for load, (n, num_bytes, missed) in zip(traffic.stage_loads, every, strict=True)
        )
        return replace(traffic, stage_loads=tuple(loads))

    def own_state(self) -> dict[str, Any]:
        assert not self._flow
        return {
            **super().own_state(),
            "missed": (self._updates_missed, self._num_batches),
            "versions": (self._versions.most, self._versions.num_copies),
        }

    def load_own_state(self, state: dict[str, Any]) -> None:
        super().load_own_state(state)
        self._updates_missed, self._num_batches = state["missed"]
        self._versions.most, self._versions.num_copies = state["versions"]


class Versions:
    """The versions of a worker's weights, by the number of updates since the flow began."""

    def __init__(self, vector: Vector) -> None:
        self._vector = vector
        self._kept: dict[int, Tensor] = {}
        self._free: list[Tensor] = []  # the memory of versions that are no longer needed
        self.newest = 0
        self.most = 1
        """The most versions that were there at one time."""
        self.num_copies = 0
        """The most copies that were there at one time. The newest version may have one."""

    def keep(self, version: int) -> None:
        """Keep a version, which is there already or is the newest one."""
        if version not in self._kept:
            assert version == self.newest
            memory = self._free.pop() if self._free else torch.empty_like(self._vector.parameters)
            self._kept[version] = memory.copy_(self._vector.parameters)
        self.num_copies = max(self.num_copies, len(self._kept))

    def add(self) -> None:
        """Count that an update made a new version."""
        self.newest += 1
        self.most = max(self.most, len({self.newest, *self._kept}))

    def parameters(self, version: int) -> Tensor:
        """Return the flat tensor of a version; without a copy, that of the newest."""
        return self._kept.get(version, self._vector.parameters)

    def used(self, version: int) -> AbstractContextManager[None]:
        """Return the context manager for passes with a version."""
        kept = self._kept.get(version)
        return nullcontext() if kept is None else self._vector.reading(kept)

    def drop_before(self, oldest: int) -> None:
        """Drop the versions before `oldest`."""
        for version in [version for version in self._kept if version < oldest]:
            self._free.append(self._kept.pop(version))

    def drop_all(self) -> None:
        """Drop all but the newest, from which numbers begin anew."""
        self.drop_before(self.newest + 1)
        self.newest = 0
