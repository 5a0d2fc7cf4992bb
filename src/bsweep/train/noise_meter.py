"""The measurement of a run's gradient noise scale, mostly from gradients that training steps
compute anyway.

With several workers, each worker gives one gradient in a measured step. A lone worker gives the
gradients of its accumulation passes. If it has a single pass, the gradients of the batch's two
halves are computed beside the step. Several workers need no finer division: more gradients per step
would lower the standard deviation of |G|^2 by a factor of sqrt(2) at most.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from bsweep.config.run import RunConfig
from bsweep.data.plan import Share, round_size
from bsweep.numerics.noise_scale import Average, GradientNoise, of_parts, squared_norm
from bsweep.numerics.vector import Vector
from bsweep.runlog.records import NoiseScale
from bsweep.strategies import InBackward, Strategy
from bsweep.train.cursor import Cursor

RECORD_STEPS = 10
"""The least number of steps between two records of the gradient noise scale.

A lone worker with accumulation passes and no CUDA graph measures one step in so many, apart from an
epoch's smaller last step.
"""

NORM_STEPS = 3
"""The number of steps from one measured step to the next, if there are several workers.

An epoch's smaller last step is not measured. A measured step computes two norms of the whole
gradient vector.
"""

APART_STEPS = 100
"""The number of steps from one measured step to the next, if a lone worker measures at extra cost.

The cost is that of passes on halves of a batch, or of passes one by one instead of a graph.
"""


class NoiseMeter:
    """The gradient noise meter of one worker, whose measurements are summed with those of the other
    workers when a record is due.

    In each step, the loop calls the methods from `begin_step` to `after_step` in the order in which
    they stand here, and `after_pass` once for each pass that is not part of a CUDA graph.

    No step waits for a GPU or for other workers. All sums are linear in the workers' own squared
    norms, so that they can be added up across workers much later.
    """

    def __init__(self, vector: Vector, optimizer: Optimizer, strategy: Strategy) -> None:
        """Create a gradient noise meter, and let the optimizer call it before each of its steps.

        Args:
            vector: The model's parameters and gradients.
            optimizer: The optimizer that updates the vector.
            strategy: The strategy. If it exchanges gradients within the backward pass, it shows
                them to `see_part` before that.
        """
        self._average = Average()
        self._vector = vector
        # The optimizer's hook holds this meter: with a reference, a run's memory would stay.
        self._strategy: Strategy = weakref.proxy(strategy)
        self._in_passes = False
        if isinstance(strategy, InBackward) and strategy.can.exchanges_in_passes:
            self._in_passes, strategy.see_part = True, self.see_part
        device = vector.gradients.device
        copies = [vector.num_copies(piece) for piece in vector.slices]
        # Workers of a replica that hold equal gradients of a tensor each add a part of its norm.
        self._by_slice = max(copies) > 1
        self._weights = torch.tensor(
            [1 / number for number in copies], dtype=torch.float64, device=device
        )
        self._step: _Step | None = None
        self._num_steps = 0  # steps since the last record that the measured steps represent
        self._sums = torch.zeros(_NUM_COUNTS + 2, dtype=torch.float64, device=device)
        # The optimizer's hook sees the gradients that the optimizer uses: summed over workers and
        # without the loss scale of fp16.
        optimizer.register_step_pre_hook(lambda *_: self._see_sum())

    def begin_step(
        self, shares: Sequence[Share], num_examples: int, num_steps: int, has_graph: bool
    ) -> None:
        """Prepare to measure the gradients of the training step that begins now.

        Args:
            shares: The share of each worker, by rank.
            num_examples: The number of examples of all workers in this round.
            num_steps: The steps that the run has made so far.
            has_graph: A CUDA graph computes all passes of a full step at once, so that single
                passes cannot be observed.
        """
        self._step = None  # An epoch's smaller last batch is left out, because its noise is large.
        share = shares[self._strategy.replica]
        worker_batch = share.worker_batch
        num_workers = len(shares)
        if num_examples != round_size(shares):
            return
        if num_workers > 1:
            if num_steps % NORM_STEPS == 0:
                self._step = _Step(num_examples, worker_batch, num_workers, num_workers)
                self._num_steps += NORM_STEPS
            return
        num_passes = min(share.num_passes, worker_batch)
        interval = APART_STEPS if has_graph or num_passes == 1 else RECORD_STEPS
        if worker_batch > 1 and num_steps % interval == 0:
            self._step = _Step(
                num_examples, worker_batch, max(2, num_passes), 1, needs_halves=num_passes == 1
            )
            self._num_steps += RECORD_STEPS

    @property
    def needs_passes(self) -> bool:
        """True if the current step must run its passes one by one instead of as a CUDA graph."""
        step = self._step
        return step is not None and step.num_workers == 1 and not step.needs_halves

    @property
    def needs_halves(self) -> bool:
        """True if the current step is measured by the gradients of the two halves of its examples,
        which are computed beside it.
        """
        return self._step is not None and self._step.needs_halves

    def after_pass(self, num_examples: int) -> None:
        """Record the squared norm of one pass's gradient, if the noise of this step is measured by
        comparing passes. The pass has already added this gradient to the parameters' `grad`.

        `num_examples` is the number of examples of the pass.
        """
        step = self._step
        if step is None or step.num_workers > 1 or step.num_seen == step.num_gradients:
            return
        flat = self._vector.gradients.clone()
        gradient = flat if step.before is None else flat - step.before
        square = self._squared_norm(gradient) / self._scale() ** 2
        step.add(square * (step.num_examples / num_examples))
        step.before = flat
        step.num_seen += 1
        if step.num_seen == step.num_gradients:
            step.sum, step.before = self._squared_norm(flat) / self._scale() ** 2, None

    def before_exchange(self) -> None:
        """Record the squared norm of this worker's gradient before the exchange, if the step is
        measured by the workers' gradients and the strategy does not show them itself.
        """
        if not self._in_passes:
            self.see_part(self._vector.gradients)

    def see_part(self, gradients: Tensor) -> None:
        """Record the squared norm of a part of this worker's gradient, just before the workers sum
        that part, if several workers measure this step.
        """
        step = self._step
        if step is None or step.num_workers == 1:
            return
        square = self._squared_norm(gradients) / self._scale() ** 2
        step.add(square * (step.num_examples / step.own_examples))

    def after_step(self) -> None:
        """Add the gradient noise of this step to the sums since the last record, if the step is
        measured and its gradients did not overflow.
        """
        step, self._step = self._step, None
        if step is None or step.sum is None or step.squares is None:
            return
        n, size = step.num_gradients, step.num_examples
        # |G_B|^2 is the same on all workers, so each adds its fraction of it.
        parts = of_parts(step.sum / step.num_workers, step.squares, n, size)
        counted = torch.ones_like(self._sums[:1])
        is_finite = step.sum.isfinite()
        self._sums += torch.where(
            is_finite, torch.cat([counted, counted * n, counted * size, *parts]), 0.0
        )

    def record(self, cursor: Cursor) -> NoiseScale | None:
        """Return a record of the gradient noise measured since the last one, as means over the
        measured steps; None if no new record is due, no step was measured, or gradients overflowed
        on some workers alone.

        All workers call this together after each round, at the position `cursor` of the run, and
        get equal values.

        Raises:
            ValueError: If some workers' optimizers made fewer of the measured steps than others,
                with a strategy of the user's own.
        """
        if self._num_steps < RECORD_STEPS:
            return None
        every = self._strategy.gather(self._sums.to("cpu", copy=True))
        self._sums.zero_()
        self._num_steps = 0
        if (every[:, 0] != every[0, 0]).any():
            if self._strategy.can.exchanges_in_passes is not None:
                return None  # the gradients of some parts of a split model overflowed
            raise ValueError(
                "the gradient noise scale cannot be measured with a strategy of your own in which "
                "some workers skip steps of the optimizer: leave measure.noise_scale and all "
                "settings that use the noise scale out, or use another strategy."
            )
        num_steps, num_gradients, num_examples = every[0, :_NUM_COUNTS].tolist()
        if not num_steps:
            return None
        square, trace = (every[:, _NUM_COUNTS:].sum(dim=0) / num_steps).tolist()
        self._average = self._average.joined(square, trace, int(num_steps))
        return NoiseScale(
            epoch=cursor.epoch,
            num_steps=cursor.num_steps,
            num_examples=cursor.num_examples,
            epochs_done=cursor.epochs_done(),
            gradient_square=square,
            variance=trace,
            num_gradients=int(num_gradients),
            gradient_batch=num_examples / num_gradients,
        )

    def estimate(self) -> GradientNoise | None:
        """Return the running estimate of the gradient noise, the same on all workers; None before
        the first record.
        """
        return self._average.estimate()

    def state(self) -> dict[str, Any]:
        """Return the part of the noise meter's state that is the same on all workers, for a
        checkpoint.
        """
        return asdict(self._average)

    def own_state(self) -> dict[str, Any]:
        """Return this worker's noise measurements since the last record, for a checkpoint."""
        return {"sums": self._sums, "num_steps": self._num_steps}

    def load_state(self, state: dict[str, Any] | None, own_state: dict[str, Any] | None) -> None:
        """Restore the noise meter from a checkpoint: `state` is the same for all workers, and
        `own_state` belongs to this worker.

        The methods `state` and `own_state` returned these values when the checkpoint was saved.
        `own_state` is None if the run continues with another number of workers.
        """
        if state:
            self._average = Average(**state)
        if own_state:
            self._sums.copy_(own_state["sums"])
            self._num_steps = own_state["num_steps"]

    def _see_sum(self) -> None:
        if self._step is not None and self._step.num_workers > 1:
            self._step.sum = self._squared_norm(self._vector.gradients)

    def _squared_norm(self, flat: Tensor) -> Tensor:
        """Return the squared norm of a flat gradient, of shape (1,). Of a model whose parts lie on
        several workers, it is this worker's addend, and `flat` must be as long as the vector.
        """
        if not self._by_slice:
            return squared_norm(flat).view(1)
        slices = [flat[piece.start : piece.stop] for piece in self._vector.slices]
        norms = torch.stack([squared_norm(values) for values in slices]) * self._weights
        return norms.sum().view(1)

    def _scale(self) -> Tensor | float:
        """Return the factor by which this worker's gradient was multiplied before the workers sum
        their gradients.
        """
        weight, scale = self._strategy.gradient_weight, self._vector.scale
        return weight * scale.factor.double() if scale else weight


def build(
    config: RunConfig, vector: Vector, optimizer: Optimizer, strategy: Strategy
) -> NoiseMeter | None:
    """Return the gradient noise meter of a worker, or None if the run measures no noise.

    All workers call this together, after `Strategy.prepare`, before the strategy wraps the model.

    Raises:
        ValueError: If the user's own strategy synchronises in rounds, or may exchange within the
            backward pass.
    """
    if not config.measures_noise:
        return None
    is_own = config.strategy.can.exchanges_in_passes is None
    if is_own and (isinstance(strategy, InBackward) or not strategy.lockstep):
        raise ValueError(
            "the gradient noise scale cannot be measured with a strategy of your own that "
            "synchronises in rounds or may exchange within the backward pass: leave "
            "measure.noise_scale and all settings that use the noise scale out, or use another "
            "strategy."
        )
    return NoiseMeter(vector, optimizer, strategy)


_NUM_COUNTS = 3  # of steps, gradients and examples


@dataclass
class _Step:
    """The noise measurements of one training step."""

    num_examples: int  # of all workers
    own_examples: int
    num_gradients: int  # of all workers
    num_workers: int
    needs_halves: bool = False
    squares: Tensor | None = None  # this worker's part of the sum S of `numerics.noise_scale`, (1,)
    sum: Tensor | None = None  # |G_B|^2, (1,)
    before: Tensor | None = None  # the sum of the gradients of the passes so far
    num_seen: int = 0

    def add(self, square: Tensor) -> None:
        self.squares = square if self.squares is None else self.squares + square
