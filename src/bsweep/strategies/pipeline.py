"""The strategy `pipeline`: each worker holds consecutive pieces of the model (stages), by torch's
schedules of pipeline parallelism (GPipe, Huang et al., arXiv 1811.06965; 1F1B, Narayanan et al.,
arXiv 2006.09503 and 2104.04473; zero bubble, Qi et al., arXiv 2401.10241; DualPipe, arXiv
2412.19437).

A pass divides its examples into micro-batches. Each passes through the stages forward and backward,
and the schedule says in which order a worker computes the passes of its stages. With replicas,
workers that hold the same stages sum their gradients at the end of a step.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.optim import Optimizer

from bsweep import models
from bsweep.config.split_strategies import PipelineConfig, StagedConfig
from bsweep.numerics import optim
from bsweep.numerics.timing import seconds_of
from bsweep.numerics.vector import Flat, Vector
from bsweep.runlog.errors import worker_lost
from bsweep.runlog.reading import starts
from bsweep.runlog.records import StageLoad, Traffic
from bsweep.strategies.base import Context, Sample, Staged
from bsweep.strategies.ddp import exchange_lost
from bsweep.strategies.splitting import Split
from bsweep.strategies.stages import (
    Activations,
    StageModule,
    TimedStage,
    Times,
    balanced,
    measured,
)

_MOST_SCHEDULES = 3  # that are kept, each with buffers for micro-batches of one size
_ROUND_TRIPS = 5  # of a message, by which its seconds are measured


class Pipeline(Split, Staged):
    card: StagedConfig

    def connect(self) -> None:
        super().connect()
        num_stages = self.card.num_stages(self.num_workers)
        self._owners = [self.card.part_of(s, self.num_workers) for s in range(num_stages)]
        self._stage_indices = [
            s for s, owner in enumerate(self._owners) if owner == self.part_index
        ]
        self.reports_sums = self._owners[-1] == self.part_index
        # Of what each stage sends to the next, for `_num_measured` examples.
        self._message_seconds = [0.0] * num_stages

    def cut(self, model: nn.Module, sample: Sample, autocast: Context) -> None:
        pieces = models.pieces(self.config.model, model)
        self._num_parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
        plan: list[Any] = [None] * 3
        if self.rank == 0:
            with autocast():  # which may round inputs
                inputs = sample(max(self.config.local_batches) // self.card.num_microbatches)
            seconds, outputs = measured(pieces, model, inputs, autocast)
            plan = [len(inputs), self._cuts(seconds), outputs]
        with worker_lost():
            dist.broadcast_object_list(plan, src=0, group=self.workers)
        self._num_measured, cuts, outputs = plan
        spans = [range(*pair) for pair in pairwise([0, *cuts, len(pieces)])]
        self.stages = tuple(tuple(pieces[i][0] for i in span) for span in spans)
        self.division = f"{cuts} on {self._owners}"
        self._outputs = [outputs[span[-1]] for span in spans]
        last = len(spans) - 1
        self._modules = {
            stage: StageModule([pieces[i][1] for i in spans[stage]], autocast, stage == last)
            for stage in self._stage_indices
        }
        whole = nn.ModuleList([model, *(piece for _, piece in pieces)])
        needed = [module for stage in self._modules.values() for module in stage.modules()]
        self.receive(whole.modules(), needed)

    def _cuts(self, seconds: list[float]) -> list[int]:
        """Return the configured cuts, those with which this run began, or balanced ones."""
        if self.card.cuts is not None:
            return list(self.card.cuts)
        for start in starts(self.paths.metrics)[:1]:
            sizes = [len(stage) for stage in start["stages"]]
            return [sum(sizes[:stage]) for stage in range(1, len(sizes))]
        return balanced(seconds, len(self._owners))

    def vector(self, model: nn.Module) -> Vector:
        vector = Vector(model)
        vector.num_parameters = self._num_parameters
        vector.by_tensor = True  # other workers, with other stages, can load the optimizer's state
        return vector

    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        super().prepare(vector, optimizer)
        self._times = Times(self.device)
        self._activations = Activations(vector.parameters)
        self._schedules: dict[int, Any] = {}  # by the size of a micro-batch

    def run_passes(
        self, inputs: Tensor, targets: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        size = len(inputs) // self.card.num_microbatches
        is_new = size not in self._schedules
        if is_new:
            if len(self._schedules) == _MOST_SCHEDULES:
                self._schedules.clear()
            self._schedules[size] = self._schedule(size)
        self._loss = loss
        first = (inputs,) if self._owners[0] == self.part_index else ()
        keywords = {"target": targets} if self.reports_sums else {}
        counting = self._activations.counted() if is_new else nullcontext()
        with exchange_lost(), self._times.step(), counting:
            self._schedules[size].step(*first, return_outputs=False, **keywords)
        for stage in self._borders():  # which outputs pass forward, and their gradients backward
            num_bytes = self.card.num_microbatches * self._like(stage, size, "meta").nbytes
            self.count(num_bytes, num_bytes)

    def _schedule(self, size: int) -> Any:
        """Return torch's schedule for micro-batches of `size` examples."""
        num_stages = len(self._owners)
        stages = []
        for index in self._stage_indices:
            inputs, outputs = (
                self._like(s, size, "meta") if 0 <= s < num_stages - 1 else torch.empty(0)
                for s in (index - 1, index)
            )
            stage = TimedStage(
                self._modules[index],
                index,
                num_stages,
                self.device,
                input_args=inputs.requires_grad_(),
                output_args=outputs.requires_grad_(),
                group=self._replica_group,
            )
            stage.times = self._times
            stage.message_seconds = functools.partial(self._seconds_of_messages, index, size)
            stages.append(stage)
        assert isinstance(self.card, PipelineConfig)
        name = self.card.schedule.replace("_", "")  # torch does not mind small letters
        kind = get_schedule_class("ZBVZeroBubble" if name == "zbv" else name)
        takes_all = issubclass(kind, PipelineScheduleMulti)
        # The loop's loss is a part of a sum over all examples of the step, not a mean.
        return kind(
            stages if takes_all else stages[0],
            self.card.num_microbatches,
            self._timed_loss,
            scale_grads=False,
        )

    def _timed_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        with self._times.computing():
            return self._loss(outputs, targets)

    def _like(self, stage: int, num_examples: int, device: torch.device | str) -> Tensor:
        """Return an empty tensor like that which a stage returns for some examples."""
        like = self._outputs[stage]
        size = len(like) * num_examples // self._num_measured
        return torch.empty(size, *like.shape[1:], dtype=like.dtype, device=device)

    def _borders(self) -> Iterator[int]:
        """Yield each stage that sends its outputs from or to this worker."""
        for stage, pair in enumerate(pairwise(self._owners)):
            if self.part_index in pair and pair[0] != pair[1]:
                yield stage

    def outputs(self, inputs: Tensor) -> Tensor | None:
        x, borders = inputs, list(self._borders())
        with worker_lost():
            for stage in self._stage_indices:
                if stage - 1 in borders:
                    x = self._like(stage - 1, len(inputs), self.device)
                    dist.recv(x, group=self._replica_group, group_src=self._owners[stage - 1])
                x = self._modules[stage](x)
                if stage in borders:
                    dist.send(x, group=self._replica_group, group_dst=self._owners[stage + 1])
        return x if self.reports_sums else None

    def step(self) -> None:
        self.sum_between_replicas(self._vector.gradients)
        with self._clipping():
            self._optimizer.step()

    @contextmanager
    def _clipping(self) -> Iterator[None]:
        """Let the optimizer scale the gradient of the whole model down to its greatest norm in the
        `with` block. It sees the norm of this worker's part, which must be smaller in proportion.
        """
        most = optim.most_norm(self._optimizer)
        if most is None or len(self._stage_indices) == len(self._owners):
            yield
            return
        square = self._vector.gradients.double().square().sum()
        whole = square.clone()
        with worker_lost():
            dist.all_reduce(whole, group=self._replica_group)
        norm = float(most * (square / whole).sqrt())
        norm = norm if norm > 0 else math.inf  # a zero or NaN leaves the gradient as it is
        holders = [self._optimizer.defaults, *self._optimizer.param_groups]
        with optim.set_within(holders, "max_grad_norm", [norm] * len(holders)):
            yield

    def rehearse(self) -> None:
        Pipeline.step(self)
        with worker_lost():
            for stage in self._borders():
                self._message_seconds[stage] = self._seconds_of_message(stage)

    def _seconds_of_messages(self, stage: int, size: int) -> tuple[float, float]:
        """Return how long a message to a stage from the one before takes, and one from the stage
        behind it. Seconds are 0 where both stages are on this worker.
        """
        ratio = size / self._num_measured
        return self._message_seconds[stage - 1] * ratio, self._message_seconds[stage] * ratio

    def _seconds_of_message(self, stage: int) -> float:
        """Return how long a message between a stage and the next takes if both workers are
        ready.
        """
        message = self._like(stage, self._num_measured, self.device).zero_()
        is_first = self._owners[stage] == self.part_index
        other = self._owners[stage + is_first]
        send = functools.partial(dist.send, message, group=self._replica_group, group_dst=other)
        receive = functools.partial(dist.recv, message, group=self._replica_group, group_src=other)
        turns = (send, receive) if is_first else (receive, send)
        round_trips = [
            seconds_of(lambda: [turn() for turn in turns], self.device) for _ in range(_ROUND_TRIPS)
        ]
        return min(round_trips) / 2

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        own_weights = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
        parts: list[dict[str, Tensor]] = [{}] * self.num_parts
        with worker_lost():
            dist.all_gather_object(parts, own_weights, group=self._replica_group)
        return {name: tensor for weights in parts for name, tensor in weights.items()}

    def mean(self, values: Tensor) -> Tensor:
        """Return the element-wise mean over the workers that hold the same stages."""
        with worker_lost():
            dist.all_reduce(values, group=self._alike.group)
        return values / self.card.replicas

    def traffic(self) -> Traffic:
        numbers = [*self._times.read(), self._activations.peak_bytes]
        self._times.restart()
        loads = self.gather(torch.tensor(numbers, dtype=torch.float64))
        busy, idle, exchange, _ = loads.T
        seconds = float((busy + idle + exchange).sum())
        sums = super().traffic()  # between replicas
        assert sums.exposed_exchange_seconds is not None
        return replace(
            sums,
            exchange_steps=None,
            exchange_seconds=None,
            exposed_exchange_seconds=float(exchange.mean()) + sums.exposed_exchange_seconds,
            worker_wait_seconds=tuple(
                (idle + torch.tensor(sums.worker_wait_seconds, dtype=torch.float64)).tolist()
            ),
            stage_loads=tuple(
                StageLoad(busy, idle, exchange, int(num_bytes))
                for busy, idle, exchange, num_bytes in loads.tolist()
            ),
            bubble=float(idle.sum()) / seconds if seconds else None,
            textbook_bubble=self.card.textbook_bubble(self.num_workers),
        )

    def own_state(self) -> dict[str, Any]:
        state = {"times": self._times.read(), "peak": self._activations.peak_bytes}
        return {**super().own_state(), **state}

    def load_own_state(self, state: dict[str, Any]) -> None:
        super().load_own_state(state)
        self._times.restart(*state["times"])
        # The warm-up has seen most kinds of passes, whose peak counts, too.
        self._activations.peak_bytes = max(self._activations.peak_bytes, state["peak"])
