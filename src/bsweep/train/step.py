"""One training step of a worker, from its examples to the updated model.

`train_round` takes the next examples of the epoch, and makes a step with each of this worker's
parts of them; with most strategies a round is one step. `compute_passes` computes the gradient of a
step in one or more passes (forward + backward), which add it up in one flat vector
(`numerics.vector`): the tensors' `grad` are views of it. The sum of losses is divided by a number
of examples that the strategy chooses: with most, the workers' gradients add up to the gradient of
the mean over all examples, or average to it (see `strategies.base.Strategy`). Then the strategy
exchanges gradients, where it does so, and updates the model.

A phase inside another one, such as "data" in "backward", interrupts it (`numerics.timing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bsweep.data import plan
from bsweep.numerics import optim
from bsweep.numerics.objective import constant
from bsweep.numerics.restoring import batchnorm_fit_for
from bsweep.numerics.timing import StepClock
from bsweep.strategies import Rounds, Staged
from bsweep.train.cursor import Cursor
from bsweep.train.job import Job


def train_round(
    job: Job,
    cursor: Cursor,
    order: Tensor,
    shares: Sequence[plan.Share],
    clock: StepClock,
    sums: Tensor,
) -> Iterator[float]:
    """Train one round of this worker, which begins at the position of the cursor.

    Args:
        job: This worker's job.
        cursor: The position in the run, which this advances.
        order: The indices of the epoch's examples in training order, int64 (num_train,).
        shares: The share of each worker, by rank.
        clock: The clock that times the steps.
        sums: The losses, correct answers and labels of this worker's examples in the round, float64
            (3,) on the device, to which each step adds.

    Yields:
        After each step, the examples that all workers have trained beyond the position of the
        cursor.
    """
    strategy, size = job.strategy, plan.round_size(shares)
    round_batch = plan.step_indices(order, cursor.position, size)
    next_batch = plan.step_indices(order, cursor.position + size, size)
    steps = plan.local_steps(round_batch, strategy.replica, shares)
    expected = [*steps, *plan.local_steps(next_batch, strategy.replica, shares)]
    cursor.global_batch = plan.global_batch(shares)
    if isinstance(strategy, Rounds):
        strategy.begin_round(tuple(shares))
    for number, examples in enumerate(steps, 1):
        job.dataset.train.expect(expected[number - 1 : number + 1])  # to load them early
        if job.noise:
            job.noise.begin_step(shares, len(round_batch), cursor.num_steps, bool(job.graphs))
        with clock.step():
            middle = cursor.epochs_done((number - 0.5) / len(steps) * len(round_batch))
            rate = optim.learning_rate(job.config, middle, strategy.rate_batch(shares))
            optim.set_learning_rate(job.optimizer, rate * job.policy.rate_factor(middle))
            crops = job.inputs.crops(cursor.epoch, job.config.seed)  # drawn once in an epoch
            sums_of_step = train_step(
                job, round_batch, examples, crops, shares[strategy.replica].num_passes
            )
            sums += sums_of_step
            cursor.recent += sums_of_step
            ends_round = number == len(steps)
            if ends_round:
                cursor.position += len(round_batch)
                if isinstance(strategy, Rounds):
                    with job.phase("exchange"):
                        strategy.end_round(
                            cursor.epoch, sums, sum(map(len, steps)), cursor.ends_epoch
                        )
        cursor.num_steps += 1
        job.heartbeat.beat()
        yield 0 if ends_round else number / len(steps) * len(round_batch)


def train_step(
    job: Job, round_batch: Tensor, examples: Tensor, crops: Tensor, num_passes: int = 1
) -> Tensor:
    """Run one training step of this worker: compute its gradient, then let the strategy update the
    model.

    Args:
        job: This worker's job.
        round_batch: The indices of the round's examples, of all workers. For most strategies, a
            round is one step.
        examples: The indices of this worker's examples.
        crops: The epoch's `Inputs.crops`.
        num_passes: The number of passes in which the examples are computed.

    Returns:
        The sum of losses, the number of correct answers and the number of labels of the examples,
        as a float64 tensor (3,) on the device.
    """
    noise = job.noise
    if noise and noise.needs_halves:
        compute_halves(job, examples, crops)
    graph = job.graphs and job.graphs.for_step(len(examples), len(round_batch), num_passes)
    if graph and not (noise and noise.needs_passes):
        with job.phase("graph"):
            sums = graph.replay(examples, crops)
    else:
        sums = compute_passes(job, round_batch, examples, crops, num_passes)
    if noise:
        noise.before_exchange()
    with job.phase("exchange"):
        job.strategy.step()
    if noise:
        noise.after_step()
    return sums


def compute_passes(
    job: Job, round_batch: Tensor, examples: Tensor, crops: Tensor, num_passes: int = 1
) -> Tensor:
    """Compute this worker's gradient by forward and backward passes, which leave it in the gradient
    vector of `job`. The arguments and the result are those of `train_step`.
    """
    strategy, sums = job.strategy, torch.zeros(3, dtype=torch.float64, device=job.device)
    divisor = strategy.loss_divisor(len(examples), len(round_batch)) * job.inputs.labels_per_example
    passes = [plan.even_part(examples, number, num_passes) for number in range(num_passes)]
    if not strategy.collective_forward:
        passes = [indices for indices in passes if len(indices)] or passes[:1]
    job.vector.zero_gradients()
    with job.phase("backward"), _slowed(job, len(examples)):
        for number, indices in enumerate(passes, 1):
            # In an epoch's last batch a worker may have no example. It then computes one with
            # weight zero, because some strategies exchange within a pass.
            weight = bool(len(indices)) / divisor
            with job.phase("data"), job.autocast():
                inputs, targets = job.inputs.training(
                    indices if len(indices) else round_batch[:1], crops
                )
            if isinstance(strategy, Staged):
                sums += _compute_stages(job, strategy, inputs, targets, weight)
                continue
            with strategy.during_pass(is_last=number == len(passes)):
                with job.phase("forward"):
                    outputs = _outputs(job, job.compiled or job.training_model, inputs)
                    loss = job.objective.loss(outputs, targets)
                # To scale the loss itself would take an operation in either direction.
                factor = constant(weight, loss.dtype, loss.device)
                loss.backward(scaled(job, factor.view_as(loss)))
                if len(indices):  # workers may each hold a part of the outputs
                    sums += job.objective.score(loss, outputs, targets)
            if job.noise:
                job.noise.after_pass(len(inputs))
    return sums if strategy.reports_sums else torch.zeros_like(sums)


def _outputs(job: Job, model: Callable[[Tensor], Any], inputs: Tensor) -> Any:
    """Return the outputs of a forward pass on the inputs (B, ...), in the run's precision."""
    with job.autocast(), batchnorm_fit_for(job.model, len(inputs)):
        return model(inputs)


def scaled(job: Job, loss: Tensor) -> Tensor:
    """Return a loss, or the factor of a loss, times the loss scale of fp16; in other precisions
    return it unchanged.

    See `Vector.scale`. Without the scale, fp16 would round small gradients to zero.
    """
    return loss * job.vector.scale.factor if job.vector.scale else loss


def _slowed(job: Job, num_examples: int) -> AbstractContextManager[None]:
    """Return the context manager for passes on some examples, which may slow them down."""
    return job.slowdown.step(num_examples) if job.slowdown else nullcontext()


def compute_halves(job: Job, examples: Tensor, crops: Tensor) -> None:
    """Compute the gradients of the two halves of a lone worker's batch, and show them to the
    gradient noise meter.

    The passes leave no trace in the model. The gradient of the whole batch is not used beside them,
    because with BatchNorm it is a gradient of another function than theirs. The arguments are those
    of `train_step`.
    """
    assert job.noise
    job.vector.zero_gradients()
    num_labels = len(examples) * job.inputs.labels_per_example
    with job.restoring(), _slowed(job, len(examples)):
        for half in (plan.even_part(examples, number, 2) for number in range(2)):
            with job.autocast():
                inputs, targets = job.inputs.training(half, crops)
            loss = job.objective.loss(_outputs(job, job.model, inputs), targets)
            scaled(job, loss / num_labels).backward()
            job.noise.after_pass(len(half))


def _compute_stages(
    job: Job, strategy: Staged, inputs: Tensor, targets: Tensor, weight: float
) -> Tensor:
    """Compute one pass by the stages of this worker's replica.

    Micro-batches have equal size. Where examples are too few for that, the first one fills them up,
    with weight zero.

    Args:
        job: This worker's job.
        strategy: Its strategy.
        inputs: The inputs of the pass (B, ...).
        targets: Their targets (B,) or (B, ...).
        weight: The factor of the losses.

    Returns:
        The sums as `train_step` returns them; zeros on workers without the last stage.
    """
    rows, number = torch.arange(len(targets)), strategy.card.num_microbatches
    microbatches = [plan.even_part(rows, i, number) for i in range(number)]
    size = max(map(len, microbatches))
    filled = torch.cat([F.pad(indices, (0, size - len(indices))) for indices in microbatches])
    if len(filled) > len(rows):
        inputs, targets = (tensor[filled.to(tensor.device)] for tensor in (inputs, targets))
    sums = torch.zeros(3, dtype=torch.float64, device=job.device)
    counts = iter(map(len, microbatches))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        count = next(counts)
        examples = outputs[: count or 1], targets[: count or 1]
        loss = job.objective.loss(*examples)
        if count and weight:
            sums.add_(job.objective.score(loss, *examples))
        return loss * (weight if count else 0.0)

    with batchnorm_fit_for(job.model, size):
        strategy.run_passes(inputs, targets, loss)
    return sums
