"""Measures the gradient noise scale of a run, from gradients that its steps compute in any case.

A step's gradients are those of its workers; of a lone worker, those of its accumulation passes; of
a lone pass, those of the batch's two halves, which are computed beside the step. With several
workers there is no need to part them further: more gradients a step would lower the deviation of
|G|^2 by a factor of sqrt(2) at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bsweep.config import RunConfig
from bsweep.data.plan import Share, round_size
from bsweep.numerics.noise_scale import Average, GradientNoise, of_parts, squared_norm
from bsweep.numerics.vector import Vector
from bsweep.strategies import InBackward, Strategy

RECORD_STEPS = 10
"""Steps from one record to the next at least; of a lone worker's passes, one of them is measured.
"""

NORM_STEPS = 3
"""Steps of several workers to one that is measured, which takes two norms of the whole vector."""

APART_STEPS = 100
"""Steps of a lone worker to one that is measured, where that takes passes of its own: on halves,
they are less fast.
"""


@dataclass(frozen=True)
class Measured:
    """Means over the measured steps since the last record, the same on all workers."""

    squared_norm: float
    trace: float
    num_steps: int
    num_gradients: int  # the g_i of all these steps
    gradient_batch: float  # examples of one of them
    # The first two, of each tensor by its name; empty where nobody asked.
    layers: Mapping[str, tuple[float, float]]


class NoiseHook:
    """What the loop and the step tell of their gradients; it does nothing, where nobody measures
    noise.

    They call its methods in the order in which they stand here, `after_pass` once for each pass.
    """

    @property
    def needs_passes(self) -> bool:
        """Whether this step's passes are to be shown one by one, and not as a graph."""
        return False

    def begin_step(
        self, shares: Sequence[Share], num_examples: int, num_steps: int, has_graph: bool
    ) -> None:
        """Begin a step of so many examples, after `num_steps` of the run.

        `has_graph`: one computes all passes of a full step at once, which cannot be looked at one
        by one.
        """

    def before_passes(self, pass_on_halves: Callable[[], None]) -> None:
        """Have passes on the two halves of a step's examples computed, where they are needed."""

    def after_pass(self, num_examples: int) -> None:
        """See that a backward pass has added its gradient to those of the passes before, at the
        tensors.
        """

    def before_exchange(self) -> None:
        """See this worker's gradient in the vector, before it is summed over workers."""

    def after_step(self) -> None:
        """End the step, which the optimizer has taken."""

    def record(self, gather: Callable[[Tensor], Tensor]) -> Measured | None:
        """Return what is due to go on record, if anything; all workers call it together after each
        step.

        Raises:
            ValueError: not every worker's optimizer took each step.
        """
        return None

    def estimate(self) -> GradientNoise | None:
        """Return the running estimate, the same on all workers; None before the first record."""
        return None

    def state(self) -> dict[str, Any] | None:
        """Return what all workers know alike, to go on from."""
        return None

    def own_state(self) -> dict[str, Any] | None:
        """Return what this worker has measured since the last record."""
        return None

    def load_state(self, state: dict[str, Any] | None, own: dict[str, Any] | None) -> None:
        """Take up what `state` and `own_state` gave; without the latter among another number of
        workers.
        """


class NoiseMeter(NoiseHook):
    """Measures one worker's part of what all know once it is gathered; no step waits for a GPU, or
    for others.

    All that is summed is linear in the workers' own norms, so that their sums can be added up much
    later.
    """

    def __init__(
        self,
        vector: Vector,
        optimizer: Optimizer,
        *,
        rank: int,
        loss_scale: float,
        in_passes: bool,
        per_layer: bool,
    ) -> None:
        """`in_passes`: gradients travel within the backward pass, and are shown by the strategy
        before they do.
        """
        self._average = Average()
        self._vector, self._rank = vector, rank
        self._loss_scale, self._in_passes = loss_scale, in_passes
        self._slices = vector.slices if per_layer else ()
        self._step: _Step | None = None
        self._num_steps = 0  # since the last record, for which those that were measured stand
        size = len(_COUNTS) + 2 * max(1, len(self._slices))
        self._sums = torch.zeros(size, dtype=torch.float64, device=vector.gradients.device)
        # An optimizer's own hook sees what it takes: summed over workers, and without the scale of
        # fp16.
        optimizer.register_step_pre_hook(lambda *_: self._see_sum())

    def begin_step(
        self, shares: Sequence[Share], num_examples: int, num_steps: int, has_graph: bool
    ) -> None:
        self._step = None  # tails, whose noise is large, are left out
        own, num_workers = shares[self._rank], sum(share.num_steps > 0 for share in shares)
        if num_examples != round_size(shares):
            return
        if num_workers > 1:
            if num_steps % NORM_STEPS == 0:
                self._step = _Step(num_examples, own.worker_batch, num_workers, num_workers)
                self._num_steps += NORM_STEPS
            return
        num_passes = min(own.num_passes, own.worker_batch)
        interval = APART_STEPS if has_graph or num_passes == 1 else RECORD_STEPS
        if own.worker_batch > 1 and num_steps % interval == 0:
            self._step = _Step(
                num_examples, own.worker_batch, max(2, num_passes), 1, needs_halves=num_passes == 1
            )
            self._num_steps += RECORD_STEPS

    @property
    def needs_passes(self) -> bool:
        step = self._step
        return step is not None and step.num_workers == 1 and not step.needs_halves

    def before_passes(self, pass_on_halves: Callable[[], None]) -> None:
        if self._step is not None and self._step.needs_halves:
            pass_on_halves()

    def after_pass(self, num_examples: int) -> None:
        step = self._step
        if step is None or step.num_workers > 1 or step.num_seen == step.num_gradients:
            return
        flat = torch.cat([_flat(tensor) for tensor in self._vector.tensors])
        own = flat if step.before is None else flat - step.before
        step.add(self._norms(own) / self._scale() ** 2 * (step.num_examples / num_examples))
        step.before = flat
        step.num_seen += 1
        if step.num_seen == step.num_gradients:
            step.sum, step.before = self._norms(flat) / self._scale() ** 2, None

    def before_exchange(self) -> None:
        if not self._in_passes:
            self.see_part(self._vector.gradients)

    def see_part(self, part: Tensor) -> None:
        """See a part of this worker's gradient, which is about to be summed over workers."""
        step = self._step
        if step is None or step.num_workers == 1:
            return
        norms = self._norms(part) / self._scale() ** 2
        step.add(norms * (step.num_examples / step.own_examples))

    def after_step(self) -> None:
        """Take the step into the sums, unless its gradients overflowed."""
        step, self._step = self._step, None
        if step is None or step.sum is None or step.own is None:
            return
        n, size = step.num_gradients, step.num_examples
        # Each worker adds its part of what all have alike.
        parts = of_parts(step.sum / step.num_workers, step.own, n, size)
        counted = torch.ones_like(self._sums[:1])
        is_finite = step.sum.isfinite().all()
        self._sums += torch.where(
            is_finite, torch.cat([counted, counted * n, counted * size, *parts]), 0.0
        )

    def record(self, gather: Callable[[Tensor], Tensor]) -> Measured | None:
        if self._num_steps < RECORD_STEPS:
            return None
        every = gather(self._sums.to("cpu", copy=True))
        self._sums.zero_()
        self._num_steps = 0
        if (every[:, 0] != every[0, 0]).any():
            raise ValueError(
                "the gradient noise scale with a strategy of your own in which not every worker's "
                "optimizer takes each step: nobody sees the sum of all gradients there. Leave "
                "measure.noise_scale out."
            )
        num_steps, num_gradients, num_examples = every[0, : len(_COUNTS)].tolist()
        if not num_steps:
            return None
        squares, traces = (every[:, len(_COUNTS) :].sum(dim=0) / num_steps).view(2, -1).tolist()
        names = [part.name for part in self._slices]
        measured = Measured(
            math.fsum(squares),
            math.fsum(traces),
            int(num_steps),
            int(num_gradients),
            num_examples / num_gradients,
            dict(zip(names, zip(squares, traces, strict=True), strict=True)) if names else {},
        )
        self._average = self._average.joined(
            measured.squared_norm, measured.trace, measured.num_steps
        )
        return measured

    def estimate(self) -> GradientNoise | None:
        return self._average.estimate()

    def state(self) -> dict[str, Any]:
        return asdict(self._average)

    def own_state(self) -> dict[str, Any]:
        return {"sums": self._sums, "num_steps": self._num_steps}

    def load_state(self, state: dict[str, Any] | None, own: dict[str, Any] | None) -> None:
        if state:
            self._average = Average(**state)
        if own:
            self._sums.copy_(own["sums"])
            self._num_steps = own["num_steps"]

    def _see_sum(self) -> None:
        if self._step is not None and self._step.num_workers > 1:
            self._step.sum = self._norms(self._vector.gradients)

    def _norms(self, flat: Tensor) -> Tensor:
        """Squared norms (1,) of a flat tensor, or (slices,) of the slices of one that is as long as
        the vector.
        """
        parts = [flat[part.start : part.stop] for part in self._slices] or [flat]
        return torch.stack([squared_norm(part) for part in parts])

    def _scale(self) -> Tensor | float:
        """What a worker's gradients are times before they are summed."""
        scale = self._vector.scale
        return self._loss_scale * scale.factor.double() if scale else self._loss_scale


def build(config: RunConfig, vector: Vector, optimizer: Optimizer, strategy: Strategy) -> NoiseHook:
    """Return the meter of a worker, after `Strategy.prepare` and before a model is wrapped; where
    the run measures no noise, what does nothing.

    Raises:
        ValueError: a strategy of the user's own hides its gradients.
    """
    if not config.measures_noise:
        return NoiseHook()
    is_own = config.strategy.can.exchanges_in_passes is None
    if is_own and (isinstance(strategy, InBackward) or not strategy.in_step):
        raise ValueError(
            "the gradient noise scale with a strategy of your own that synchronises in rounds or "
            "exchanges within the backward pass: nobody sees a worker's own gradient before it "
            "travels. Leave measure.noise_scale out."
        )
    in_passes = isinstance(strategy, InBackward) and config.strategy.can.exchanges_in_passes is True
    meter = NoiseMeter(
        vector,
        optimizer,
        rank=strategy.rank,
        loss_scale=strategy.loss_scale,
        in_passes=in_passes,
        per_layer=config.measure.noise_scale_per_layer,
    )
    if in_passes:
        assert isinstance(strategy, InBackward)
        strategy.see_part = meter.see_part
    return meter


def measured_steps(num_gradients: int, num_workers: int) -> int:
    """The steps behind a record: each worker has one gradient in each; a lone worker puts every one
    on record.
    """
    return max(1, round(num_gradients / num_workers)) if num_workers > 1 else 1


_COUNTS = ("steps", "gradients", "examples")


@dataclass
class _Step:
    """What is seen of a step that is measured."""

    num_examples: int  # of all workers
    own_examples: int
    num_gradients: int  # of all workers
    num_workers: int
    needs_halves: bool = False
    own: Tensor | None = None  # this worker's part of S, (slices,)
    sum: Tensor | None = None  # |G_B|^2, (slices,)
    before: Tensor | None = None  # the sum of the gradients of the passes so far
    num_seen: int = 0

    def add(self, norms: Tensor) -> None:
        self.own = norms if self.own is None else self.own + norms


def _flat(tensor: nn.Parameter) -> Tensor:
    """Its gradient; in what order is all the same to a norm."""
    gradient = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
    return gradient.detach().reshape(-1)
